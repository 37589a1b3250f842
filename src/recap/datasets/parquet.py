"""Parquet tables of pictures and captions, with the pictures beside the file or inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recap.datasets.records import as_captions, printable
from recap.errors import InputError
from recap.types import Pair

CAPTION_COLUMNS = ("caption", "captions", "text")
ID_COLUMNS = ("id", "image_id")
ROWS = 64
"""So many rows are in memory at a time: a picture inside the table may have megabytes."""


def parquet_pairs(path: Path, root: Path) -> Iterator[Pair | InputError]:
    """Yield the pairs of a table; names of pictures are relative to ``root``.

    The column ``image`` holds names, bytes, or structs of ``bytes`` and ``path`` as the Hugging Face data sets do.
    Rows that name the same picture are joined; a picture inside the table is a pair of its own.
    """
    named: dict[str, Pair] = {}
    for item in _rows(path, root):
        if isinstance(item, InputError) or isinstance(item.image, bytes):
            yield item
        else:
            known = named.get(str(item.image))
            named[str(item.image)] = item if known is None else replace(known, captions=known.captions + item.captions)
    yield from named.values()


def _rows(path: Path, root: Path) -> Iterator[Pair | InputError]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            captions, named = _columns(path, file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(ROWS, columns=["image", captions, *named]):
                for row in batch.to_pylist():
                    name = next((str(row[column]) for column in named if row[column] is not None), "")
                    yield _pair(row["image"], row[captions], name, root, f"{path}: row {number}")
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error


def _columns(path: Path, names: list[str]) -> tuple[str, list[str]]:
    captions = next((name for name in CAPTION_COLUMNS if name in names), None)
    if captions is None or "image" not in names:
        raise InputError(f"{path}: expected the columns image and caption; there are {', '.join(names)}")
    return captions, [name for name in ID_COLUMNS if name in names]


def _pair(image: Any, text: Any, name: str, root: Path, where: str) -> Pair | InputError:
    if isinstance(image, dict):
        name = name or image.get("path") or ""
        image = image.get("bytes") or image.get("path")
    if not isinstance(image, str | bytes) or not image:
        return InputError(f"{where}: no picture")
    captions = as_captions(text, where)
    if isinstance(captions, InputError):
        return captions
    if isinstance(image, str):
        return Pair(root / image, tuple(captions), printable(name or image))
    return Pair(image, tuple(captions), printable(name or where.rpartition("/")[2]))
