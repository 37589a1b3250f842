"""Captions without pictures, to be added to a datastore."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recap.datasets.records import as_captions
from recap.datasets.text import parse_json, read_lines, read_table
from recap.errors import InputError

IMAGE_FIELDS = ("image_id", "image")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One caption, with what its file says about where it comes from."""

    text: str
    source: str = ""
    image_id: str = ""
    synthetic: bool = False


def read_sentences(path: str | Path) -> list[Sentence]:
    """Return captions from text (one a line), ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``; ``-`` is standard input.

    All but text need a field ``caption``, and may have ``source``, ``image`` (or ``image_id``) and ``synthetic``.
    """
    path = Path(path)
    if str(path) == "-":
        return [Sentence(text) for line in sys.stdin if (text := " ".join(line.split()))]
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    rows: Iterator[tuple[str, Mapping[str, Any]]]
    match path.suffix.lower():
        case ".jsonl":
            rows = ((f"{path}:{number}", parse_json(line, f"{path}:{number}")) for number, line in read_lines(path))
        case ".csv" | ".tsv":
            rows = ((f"{path}: row {number}", row) for number, row in enumerate(read_table(path), 1))
        case ".parquet":
            rows = _parquet(path)
        case _:
            return [Sentence(" ".join(line.split())) for _, line in read_lines(path)]
    return [sentence for where, row in rows for sentence in _sentences(row, where)]


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    return ((f"{path}: row {number}", row) for number, row in enumerate(rows))


def _sentences(row: Any, where: str) -> Iterator[Sentence]:
    if not isinstance(row, Mapping) or not ("caption" in row or "captions" in row):
        raise InputError(f"{where}: expected a caption")
    captions = as_captions(row.get("captions", row.get("caption")), where)
    if isinstance(captions, InputError):
        raise captions
    image = next((str(row[name]) for name in IMAGE_FIELDS if row.get(name) not in (None, "")), "")
    flag = str(row.get("synthetic") or "").casefold() in ("1", "true", "yes")
    for caption in captions:
        yield Sentence(caption, str(row.get("source") or ""), image, flag)
