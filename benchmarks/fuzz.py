"""Caption files that were pictures once: truncated, with flipped bytes, of another kind than they say, far too large.

    python benchmarks/fuzz.py FOLDER [--pack PACK] [--count 500]

FOLDER holds pictures to mutate. Every file must end as a caption or as a listed error; the exit code is 1 if one does
not, or if memory went over 2 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from PIL import Image

from recap.datasets import find_images

LIMIT = 2048
"""MB."""


def main() -> None:
    """Mutate, caption, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pack", default="builtin")
    parser.add_argument("--count", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, out = Path(temporary) / "fuzzed", Path(temporary) / "captions.jsonl"
        folder.mkdir()
        mutate(list(find_images([arguments.folder])), folder, arguments.count)
        command = [sys.executable, "-m", "recap.cli.main", "caption", folder, "--out", out, "--pack", arguments.pack]
        code = subprocess.run(command, check=False).returncode
        captions, errors = paths(out), paths(out.with_name("errors.jsonl"))
        wanted = sorted(map(str, folder.iterdir()))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{len(wanted)} files: {len(captions)} captions, {len(errors)} listed errors, exit code {code}")
    print(f"peak memory {peak:.0f} MB")
    sys.exit(sorted(captions + errors) != wanted or code not in (0, 1) or peak > LIMIT)


def mutate(pictures: list[Path], folder: Path, count: int) -> None:
    """Write ``count`` mutated files, six of them far too large."""
    draws = random.Random(0)
    large = too_large()
    for number, name in enumerate(large):
        (folder / f"{number:04d}-{name}.png").write_bytes(large[name])
    for number in range(len(large), count):
        picture = draws.choice(pictures)
        content = bytearray(picture.read_bytes())
        suffix = picture.suffix
        how = draws.choice(("truncated", "flipped", "header", "renamed", "transcoded"))
        if how == "truncated":
            del content[draws.randrange(len(content)) :]
        elif how in ("flipped", "header"):
            span = len(content) if how == "flipped" else min(700, len(content))
            for _ in range(draws.randint(1, 40)):
                content[draws.randrange(span)] = draws.randrange(256)
        elif how == "renamed":
            suffix = draws.choice((".gif", ".tiff", ".png", ".webp"))
        target = folder / f"{number:04d}-{how}{suffix}"
        if how == "transcoded":
            content = transcoded(picture, target, draws)
        target.write_bytes(content)


def transcoded(picture: Path, target: Path, draws: random.Random) -> bytearray:
    """Return a picture in another format, with a few bytes flipped."""
    with Image.open(picture) as opened:
        opened.save(target, draws.choice(("PNG", "GIF", "TIFF", "WEBP", "BMP")))
    content = bytearray(target.read_bytes())
    for _ in range(draws.randint(1, 20)):
        content[draws.randrange(len(content))] = draws.randrange(256)
    return content


def too_large() -> dict[str, bytes]:
    """Return small files that say they are large, and some that are."""
    return {
        "30000": png(30_000, 30_000, channels=3, rows=30),
        "30000-whole": png(30_000, 30_000, channels=1),
        "10000": png(10_000, 10_000, channels=3),
        "10000-alpha": png(10_000, 10_000, channels=4),
        "10000-grey": png(10_000, 10_000, channels=1),
        "wide": png(1_000_000, 90, channels=3),
    }


def png(width: int, height: int, *, channels: int, rows: int | None = None) -> bytes:
    """Return a black PNG of so many pixels, or the first rows of one."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    packer = zlib.compressobj(1)
    row = bytes(1 + channels * width)
    data = b"".join(packer.compress(row) for _ in range(height if rows is None else rows)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def paths(file: Path) -> list[str]:
    """Return the paths that a file of json lines lists."""
    return [json.loads(line)["path"] for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
