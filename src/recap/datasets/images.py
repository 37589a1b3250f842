"""Which files of a folder are pictures, in an order that does not change."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpeg", ".jpg", ".jxl", ".png", ".tif", ".tiff", ".webp"}
)


def find_images(inputs: Iterable[str | Path], suffixes: frozenset[str] = IMAGE_SUFFIXES) -> Iterator[Path]:
    """Yield the pictures that files, folders (searched through, hidden ones left out) and glob patterns name.

    ``suffixes`` says which files of a folder are meant.
    A file is taken whatever its suffix, so that a wrong one is reported rather than passed over in silence.
    A name that matches nothing and a folder that cannot be listed are yielded as they are: reading them gives the
    error. Nothing is yielded twice.
    """
    return map(Path, find_image_names(inputs, suffixes))


def find_image_names(inputs: Iterable[str | Path], suffixes: frozenset[str] = IMAGE_SUFFIXES) -> Iterator[str]:
    """Yield what ``find_images`` does, as texts: of ten thousand pictures, paths take longer than all the rest."""
    seen: set[str] = set()
    for given in inputs:
        for path in _matches(Path(given), suffixes):
            if path not in seen:
                seen.add(path)
                yield path


def _matches(path: Path, suffixes: frozenset[str]) -> Iterator[str]:
    if path.is_dir():
        yield from _walk(path, suffixes)
    elif not path.exists() and glob.has_magic(str(path)):
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns, which Path.glob refuses
        for match in found or [str(path)]:
            yield from _matches(Path(match), suffixes) if match != str(path) else [match]
    else:
        yield str(path)


def _walk(folder: Path, suffixes: frozenset[str]) -> list[str]:
    """Return the files of a folder and its folders, but not of hidden ones: thumbnails and the like.

    A folder that cannot be listed stands for what is in it. In the order of paths, by the names of folders and files;
    texts are compared, since paths take ten times as long.
    """
    found: list[str] = []
    for place, folders, names in os.walk(str(folder), onerror=lambda error: found.append(error.filename)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        kept = [name for name in names if name[name.rfind(".") :].lower() in suffixes and not name.startswith(".")]
        start = "" if place == "." else f"{place}{os.sep}"
        found.extend(path for path in (start + name for name in kept) if _may_be_file(path))
    return sorted(found, key=lambda path: path.split(os.sep))  # noqa: PTH206


def _may_be_file(path: str) -> bool:
    """Tell whether a name in a listing is no folder or pipe; of one that is hidden by its folder, reading says so."""
    return os.path.isfile(path) or not os.path.lexists(path)  # noqa: PTH113
