"""What everything that takes captions promises, and which format a file's name stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from recap.batch.record import Record
from recap.errors import InputError

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "coco",
}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


class Sink(Protocol):
    """Something that does its part with each caption: a file beside the picture, a line on the screen, a report.

    After a run was killed and resumed the same record may come again, so ``add`` must do no harm the second time.
    """

    def add(self, record: Record) -> None:
        """Take one captioned picture. Records come in any order."""
        ...

    def close(self) -> None:
        """Finish: all records were added. Not called when the run breaks off."""
        ...


def format_of(path: Path) -> str:
    """Return the format a file's suffix stands for."""
    known = SUFFIXES.get(path.suffix.lower())
    if known is None:
        raise InputError(
            f"{path}: the suffix stands for no format; end it with {', '.join(SUFFIXES)}, or say --format "
            f"{' or '.join(FORMATS)}"
        )
    return known


def write_records(path: Path, kind: str, records: Iterable[Record]) -> None:
    """Write records to a file, atomically; ``kind`` is one of ``FORMATS``."""
    writer(kind)(path, records)


def writer(kind: str) -> Callable[[Path, Iterable[Record]], None]:
    """Return the function that writes a format."""
    if kind == "jsonl":
        from recap.batch.jsonl import write_jsonl as write
    elif kind == "csv":
        from recap.batch.table import write_csv as write
    elif kind == "parquet":
        from recap.batch.parquet import write_parquet as write
    elif kind == "coco":
        from recap.batch.coco import write_coco as write
    else:
        raise InputError(f"unknown format {kind!r}; known: {', '.join(FORMATS)}")
    return write


def check_paths(kind: str, paths: Sequence[str]) -> None:
    """Raise now, rather than after the work, when a format cannot hold these pictures."""
    if kind == "coco":
        from recap.batch.coco import check_ids

        check_ids(paths)
