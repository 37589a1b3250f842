"""Parquet tables of pictures and captions, with the pictures beside the file or inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recap.datasets.records import MissingCaptionError, as_captions, printable
from recap.errors import InputError
from recap.types import Pair

CAPTION_COLUMNS = ("caption", "captions", "text")
ID_COLUMNS = ("id", "image_id")
ROWS = 64
"""So many rows are in memory at a time: a picture inside the table may have megabytes."""


def parquet_pairs(path: Path, root: Path, *, captions_required: bool = True) -> Iterator[Pair | InputError]:
    """Yield the pairs of a table; names of pictures are relative to ``root``.

    The column ``image`` holds names, bytes, or structs of ``bytes`` and ``path`` as the Hugging Face data sets do.
    Rows that name the same picture are joined; a picture inside the table is a pair of its own. Where captions are not
    required, a picture without any is a pair, too.
    """
    named: dict[str, Pair] = {}
    for item in _rows(path, root, captions_required):
        if isinstance(item, InputError) or isinstance(item.image, bytes):
            yield item
        else:
            known = named.get(str(item.image))
            named[str(item.image)] = item if known is None else replace(known, captions=known.captions + item.captions)
    yield from named.values()


def _rows(path: Path, root: Path, captions_required: bool) -> Iterator[Pair | InputError]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            captions, named = _columns(path, file.schema_arrow.names, captions_required)
            number = 0
            for batch in file.iter_batches(ROWS, columns=["image", *captions, *named]):
                for row in batch.to_pylist():
                    name = next((str(row[column]) for column in named if row[column] is not None), "")
                    text = row[captions[0]] if captions else None
                    yield _pair(row["image"], text, name, root, f"{path}: row {number}", captions_required)
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error


def _columns(path: Path, names: list[str], captions_required: bool) -> tuple[list[str], list[str]]:
    """Return the column of the captions, if there is one, and those that may name a picture."""
    captions = [name for name in CAPTION_COLUMNS if name in names][:1]
    if "image" not in names or (captions_required and not captions):
        wanted = "columns image and caption" if captions_required else "column image"
        raise InputError(f"{path}: expected the {wanted}; there are {', '.join(names)}")
    return captions, [name for name in ID_COLUMNS if name in names]


def _pair(image: Any, text: Any, name: str, root: Path, where: str, captions_required: bool) -> Pair | InputError:
    if isinstance(image, dict):
        name = name or image.get("path") or ""
        image = image.get("bytes") or image.get("path")
    if not isinstance(image, str | bytes) or not image:
        return InputError(f"{where}: no picture")
    captions = as_captions(text, where)
    if isinstance(captions, MissingCaptionError) and not captions_required:
        captions = []
    if isinstance(captions, InputError):
        return captions
    if isinstance(image, str):
        return Pair(root / image, tuple(captions), printable(name or image))
    return Pair(image, tuple(captions), printable(name or where.rpartition("/")[2]))
