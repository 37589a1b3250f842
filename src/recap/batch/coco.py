"""COCO results: ``[{"image_id": 42, "caption": "..."}]``, what COCO's tools and evaluation servers read.

The image id is the number in a COCO file name or of a name that is a number, and else the name without its suffix.
The format has no room for a mark that a machine wrote the captions, nor for pictures whose caption was withheld, which
are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from recap.batch.record import Record
from recap.datasets.captions import stem
from recap.errors import InputError
from recap.files import atomic_write


def write_coco(path: Path, records: Iterable[Record]) -> None:
    """Write one entry for each record that has a caption."""
    seen: dict[int | str, str] = {}
    with atomic_write(path) as file:
        separator = b"[\n"
        for record in records:
            if record.abstained:
                continue
            entry = {"image_id": _checked_id(record.path, seen), "caption": record.text}
            file.write(separator + json.dumps(entry).encode())
            separator = b",\n"
        file.write(b"\n]\n" if seen else b"[]\n")


def check_ids(paths: Sequence[str]) -> None:
    """Raise if two pictures would have the same image id."""
    seen: dict[int | str, str] = {}
    for path in paths:
        _checked_id(path, seen)


def image_id(path: str) -> int | str:
    """Return the image id of a picture."""
    name = stem(path)
    return int(name) if name.isascii() and name.isdigit() else name


def _checked_id(path: str, seen: dict[int | str, str]) -> int | str:
    number = image_id(path)
    other = seen.setdefault(number, path)
    if other != path:
        raise InputError(
            f"{other} and {path} have the same image id {number!r} in COCO results: caption them into two files, "
            "or choose another format"
        )
    return number
