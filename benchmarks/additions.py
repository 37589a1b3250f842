"""How long it takes to add captions to a large pack, and to take them out again: ``recap datastore`` as people run it.

    python benchmarks/additions.py --captions 500000 --new 1000

The pack is made of generated vectors; the new captions are embedded by the built-in text encoder, with an empty cache.
The comparison is with saving the whole pack again, as a pack without segments would have to.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from recap import PairStatistics, ReCap
from recap.assets import cache_dir
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder

BLOCK = 50_000


def make_pack(folder: Path, encoder: Encoder, captions: int) -> None:
    """Save a pack of generated captions."""
    rng = np.random.default_rng(0)
    image, text = encoder.image, encoder.text
    statistics = PairStatistics.zeros(
        image.dimension, text.dimension, image_encoder=image.fingerprint, text_encoder=text.fingerprint
    )
    statistics.update(rng.standard_normal((2000, image.dimension)), rng.standard_normal((2000, text.dimension)))
    store = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint)
    for start in range(0, captions, BLOCK):
        rows = rng.standard_normal((min(BLOCK, captions - start), text.dimension), dtype=np.float32)
        names = [f"a generated caption with the number {start + row} and some words more" for row in range(len(rows))]
        store.add(names, rows, source="generated", image_ids=[f"{(start + row) // 5}.jpg" for row in range(len(rows))])
    ReCap(encoder, statistics, store).save_pretrained(folder)


def timed(*arguments: object) -> tuple[float, float]:
    """Run ``recap`` and return wall and CPU seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "recap.cli.main", *map(str, arguments)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def hide_vectors(folder: Path) -> None:
    """Give later commands a cache that holds the weights, but no vector yet."""
    folder.mkdir()
    (folder / "assets").symlink_to(cache_dir() / "assets")
    os.environ["RECAP_CACHE"] = str(folder)


def main() -> None:
    """Make the pack, change it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=500_000)
    parser.add_argument("--new", type=int, default=1000)
    arguments = parser.parse_args()
    encoder = load_encoder("builtin")
    with TemporaryDirectory() as temporary:
        folder, new = Path(temporary) / "pack", Path(temporary) / "new.txt"
        make_pack(folder, encoder, arguments.captions)
        new.write_text("".join(f"a dog number {row} runs over the grass\n" for row in range(arguments.new)))
        hide_vectors(Path(temporary) / "cache")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"a pack of {arguments.captions:,} captions, {size / 1e6:,.0f} MB")
        for title, command in (
            (f"add {arguments.new:,} captions", ("add", folder, new)),
            ("add the same again (nothing to do)", ("add", folder, new)),
            ("remove them by source", ("remove", folder, "--source", "new")),
        ):
            wall, cpu = timed("datastore", *command)
            print(f"{title}: {wall:.1f} s, {cpu:.1f} CPU s")
        started, used = time.perf_counter(), time.process_time()
        ReCap.from_pretrained(folder).save_pretrained(folder)
        wall, cpu = time.perf_counter() - started, time.process_time() - used
        print(f"the whole pack loaded and saved again: {wall:.1f} s, {cpu:.1f} CPU s")


if __name__ == "__main__":
    main()
