"""A csv file: one row a picture, without the evidence and the candidates, which are lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from recap.batch.record import Record
from recap.files import atomic_write

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(path: Path, records: Iterable[Record]) -> None:
    """Write a header and one row for each record; a file without records has the least of headers."""
    rows = ({name: _inert(value) for name, value in record.flat().items()} for record in records)
    first = next(rows, None)
    sample = {"path": "", "caption": ""} if first is None else first
    columns = [name for name, value in sample.items() if not isinstance(value, list | tuple | dict)]
    with atomic_write(path) as file:
        # names of files need not be UTF-8, and are written as they are
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(chain([] if first is None else [first], rows))
        text.flush()
        text.detach()


def _inert(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: a text that begins like one gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
