"""How long ``recap search`` takes over a folder that was searched before, against the first search.

    python benchmarks/search.py [--pictures 10000] [--first 50]

The folder has small pictures of noise, and the cache a vector for each, as a first search would have left it. The whole
command is timed, from its start to its end, three times. The first search is timed on ``--first`` other pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from recap.assets import cache_dir
from recap.encoders.cache import VectorCache, file_state
from recap.packs.search import PictureSearch


def main() -> None:
    """Print the seconds of each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=50)
    arguments = parser.parse_args()
    search = PictureSearch.load("builtin")
    with tempfile.TemporaryDirectory() as temporary:
        known, new, cache = (Path(temporary) / name for name in ("known", "new", "cache"))
        cache.mkdir()
        # the built-in pack and the weights stay where they are; only the vectors are this benchmark's own
        for place in cache_dir().iterdir():
            if not place.name.startswith("vectors.sqlite"):
                (cache / place.name).symlink_to(place)
        paths = draw(known, arguments.pictures)
        with VectorCache(cache / "vectors.sqlite") as store:
            fill(store, search, paths)
        draw(new, arguments.first)
        for run in range(3):
            report(f"{arguments.pictures} known pictures, run {run + 1}", cache, known)
        report(f"{arguments.first} new pictures", cache, new)


def draw(folder: Path, count: int) -> list[str]:
    """Save small pictures of noise."""
    folder.mkdir()
    random = np.random.default_rng(len(folder.name))
    for number in range(count):
        pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05d}.jpg")
    return [str(path) for path in sorted(folder.iterdir())]


def fill(store: VectorCache, search: PictureSearch, paths: list[str]) -> None:
    """Put a vector of noise for each picture into a cache."""
    contents = {path: hashlib.sha256(Path(path).read_bytes()).digest() for path in paths}
    rows = np.random.default_rng(0).standard_normal((len(paths), len(search.alignment.image_mean_)), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    store.put(search.image_fingerprint, {contents[path]: row for path, row in zip(paths, rows, strict=True)})
    store.put_files({path: (file_state(path), content) for path, content in contents.items()})


def report(what: str, cache: Path, folder: Path) -> None:
    """Time the command."""
    command = [sys.executable, "-m", "recap", "search", "two dogs in the snow", str(folder), "-k", "5"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # with the bytecode that an installed program has
    environment = {**os.environ, "RECAP_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what}: {seconds:.2f} s, of which {cpu:.2f} s CPU")


if __name__ == "__main__":
    main()
