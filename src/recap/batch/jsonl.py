"""One object a line, with everything that is known about a caption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recap.batch.record import Record, json_line
from recap.files import atomic_write


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Write one line for each record."""
    with atomic_write(path) as file:
        file.writelines(json_line(record.as_dict()) for record in records)
