"""Which files of a folder are pictures, in an order that does not change."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
)


def find_images(inputs: Iterable[str | Path], suffixes: frozenset[str] = IMAGE_SUFFIXES) -> Iterator[Path]:
    """Yield the pictures that files, folders (searched through, hidden ones left out) and glob patterns name.

    ``suffixes`` says which files of a folder are meant.
    A file is taken whatever its suffix, so that a wrong one is reported rather than passed over in silence.
    A name that matches nothing is yielded as it is: reading it gives the error. Nothing is yielded twice.
    """
    seen: set[Path] = set()
    for given in inputs:
        for path in _matches(Path(given), suffixes):
            if path not in seen:
                seen.add(path)
                yield path


def _matches(path: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(
            child
            for child in path.rglob("*")
            if child.suffix.lower() in suffixes and not _is_hidden(child.relative_to(path)) and child.is_file()
        )
    elif not path.exists() and glob.has_magic(str(path)):
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns, which Path.glob refuses
        for match in found or [str(path)]:
            yield from _matches(Path(match), suffixes) if match != str(path) else [path]
    else:
        yield path


def _is_hidden(path: Path) -> bool:
    """Tell whether a file or one of its folders is hidden: thumbnails and the like, not somebody's pictures."""
    return any(part.startswith(".") for part in path.parts)
