"""The columns of a store: what is known about each caption, and where its vector lies.

Vectors in blocks, in memory or mapped from files, that are appended to and never moved.

Parquet tables out of packs, whose size is known before they are in memory.

A table of a megabyte can say a long text thousands of times. So texts are read as a dictionary and numbers, added up,
and written out only if they are not more than captions of people would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Ids, Names, names
from recap.errors import InputError, PackError
from recap.types import Vectors, unit_rows

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]


class Labels:
    """A column of strings that repeat: each kept once, and a number a row."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: Codes = np.empty(0, dtype=np.int32)
        self._code_of: dict[str, int] = {}

    def extend(self, values: Iterable[str]) -> None:
        """Append one value a row."""
        self.codes = np.concatenate([self.codes, np.fromiter(map(self._code, values), dtype=np.int32)])

    def find(self, values: Iterable[str]) -> Codes:
        """Return the numbers of those values that occur."""
        known = (self._code_of.get(value, -1) for value in values)
        return np.array([code for code in known if code >= 0], dtype=np.int32)

    def is_any_of(self, values: Names) -> Mask:
        """Return which rows have one of ``values``."""
        chosen = np.zeros(len(self.names) + 1, dtype=bool)
        chosen[self.find(names(values))] = True
        return chosen[self.codes]

    def values(self) -> list[str]:
        """Return the value of each row."""
        return [self.names[code] for code in self.codes.tolist()]

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of rows of each name."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    def _code(self, value: str) -> int:
        code = self._code_of.setdefault(value, len(self.names))
        if code == len(self.names):
            self.names.append(value)
        return code


class CaptionTable:
    """Captions in the order of their ids."""

    def __init__(self) -> None:
        self.ids: Ids = np.empty(0, dtype=np.int64)
        self.slots: Ids = np.empty(0, dtype=np.int64)
        """The row of each caption's vector among all vectors ever appended."""
        self.texts: list[str] = []
        self.sources = Labels()
        self.image_ids = Labels()
        self.synthetic: Mask = np.empty(0, dtype=bool)
        self.next_id = 0
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[CaptionRow]:
        return map(self.row, range(len(self)))

    def row(self, position: int) -> CaptionRow:
        """Return one caption."""
        return CaptionRow(
            id=int(self.ids[position]),
            text=self.texts[position],
            source=self.sources.names[self.sources.codes[position]],
            synthetic=bool(self.synthetic[position]),
            image_id=self.image_ids.names[self.image_ids.codes[position]],
        )

    def extend(
        self,
        ids: Ids,
        slots: Ids,
        texts: Sequence[str],
        sources: Iterable[str],
        synthetic: npt.ArrayLike,
        image_ids: Iterable[str],
    ) -> None:
        """Append captions; their ids start at ``next_id`` or above."""
        self.version += 1
        self.next_id = int(ids[-1]) + 1 if len(ids) else self.next_id
        self.ids = np.concatenate([self.ids, ids])
        self.slots = np.concatenate([self.slots, slots])
        self.texts.extend(texts)
        self.sources.extend(sources)
        self.synthetic = np.concatenate([self.synthetic, np.asarray(synthetic, dtype=bool)])
        self.image_ids.extend(image_ids)

    def keep(self, mask: Mask) -> None:
        """Drop the rows outside ``mask``."""
        self.version += 1
        self.ids, self.slots, self.synthetic = self.ids[mask], self.slots[mask], self.synthetic[mask]
        self.texts = list(compress(self.texts, mask))
        for column in (self.sources, self.image_ids):
            column.codes = column.codes[mask]

    def positions(self, ids: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return where the captions with these ids stand; an id that is not there raises ``InputError``."""
        wanted = np.asarray(ids, dtype=np.int64)
        where = np.searchsorted(self.ids, wanted)
        inside = where < len(self)
        found = inside & (self.ids[np.where(inside, where, 0)] == wanted) if len(self) else np.zeros_like(inside)
        if not found.all():
            raise InputError(f"no caption has the id {wanted[~found].flat[0]}")
        return where

    def mask(
        self,
        sources: Names | None,
        exclude_sources: Names | None,
        synthetic: bool | None,
        image_ids: Names | None = None,
    ) -> Mask | None:
        """Return which rows pass all filters; None when there are no filters."""
        parts = []
        if sources is not None:
            parts.append(self.sources.is_any_of(sources))
        if exclude_sources is not None:
            parts.append(~self.sources.is_any_of(exclude_sources))
        if synthetic is not None:
            parts.append(self.synthetic == synthetic)
        if image_ids is not None:
            parts.append(self.image_ids.is_any_of(image_ids))
        return np.logical_and.reduce(parts) if parts else None


SMALL_BLOCK = 4096
"""A last block of fewer rows is joined with what follows, so that single additions do not pile up."""

STREAM_ROWS = 16_384


class VectorBlocks:
    """A matrix that grows: rows are numbered from the first block on."""

    def __init__(self, dimension: int, dtype: npt.DTypeLike) -> None:
        self.dimension = dimension
        self.dtype = np.dtype(dtype)
        self._blocks: list[npt.NDArray[Any]] = []
        self._starts: Ids = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def append(self, rows: npt.NDArray[Any]) -> Ids:
        """Add rows and return their numbers."""
        first = len(self)
        rows = rows.astype(self.dtype, copy=False)
        last = self._blocks[-1] if self._blocks else None
        if last is not None and len(last) < SMALL_BLOCK and not isinstance(last, np.memmap):
            self._blocks[-1] = np.concatenate([last, rows])
        elif len(rows):
            self._blocks.append(rows)
        self._starts = np.cumsum([0, *map(len, self._blocks)])
        return np.arange(first, len(self), dtype=np.int64)

    def replace(self, blocks: list[npt.NDArray[Any]]) -> None:
        """Hold ``blocks`` instead of what there was."""
        self._blocks = [block for block in blocks if len(block)]
        self._starts = np.cumsum([0, *map(len, self._blocks)])

    def take(self, numbers: Ids) -> Vectors:
        """Return rows by number, of unit length, as float32."""
        rows = self._stored(numbers, np.dtype(np.float32))
        if self.dtype != np.float32:
            rows = unit_rows(rows)
        return rows

    def stream(self, numbers: Ids) -> Iterator[tuple[slice, Vectors]]:
        """Yield what ``take`` returns in pieces, with the place of each piece."""
        for piece in _pieces(len(numbers)):
            yield piece, self.take(numbers[piece])

    def stream_stored(self, numbers: Ids) -> Iterator[npt.NDArray[Any]]:
        """Yield rows in pieces, to the bit as they were appended."""
        for piece in _pieces(len(numbers)):
            yield self._stored(numbers[piece], self.dtype)

    def _stored(self, numbers: Ids, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        rows = np.empty((len(numbers), self.dimension), dtype=dtype)
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        for owner in np.unique(owners):
            here = owners == owner
            rows[here] = self._blocks[owner][numbers[here] - self._starts[owner]]
        return rows


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + STREAM_ROWS) for start in range(0, count, STREAM_ROWS))


MAX_ROW_BYTES = 4096
"""Of the texts of a row, on average."""
ALLOWANCE = 64 << 20
"""Bytes that a table may have besides."""


def read_table(source: Path, columns: Mapping[str, str], rows: int | None = None) -> Any:
    """Return columns of a table, by their kinds (int, bool, text, ints), as an Arrow table.

    ``PackError`` when it cannot be read, has another number of rows, or would be far larger than such tables are.
    """
    import pyarrow
    import pyarrow.parquet

    texts = [name for name, kind in columns.items() if kind == "text"]
    try:
        with pyarrow.parquet.ParquetFile(source, read_dictionary=texts) as file:
            check_table(file, source, columns, rows)
            table = file.read(columns=list(columns))
        check_texts(table, texts, source)
        for name in texts:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table[name].cast(pyarrow.large_string()))
        return table
    except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
        raise PackError(f"{source} is not a readable table of a pack: {error}") from error


def check_table(file: Any, source: Path, columns: Mapping[str, str], rows: int | None = None) -> None:
    """Raise by what an open ``ParquetFile`` says about itself, before any of it is read; see ``read_table``."""
    found = file.metadata.num_rows
    if rows is not None and found != rows:
        raise PackError(f"{source} holds {found} rows; {rows} are promised")
    for name, kind in columns.items():
        if not _is_of_kind(file.schema_arrow.field(name).type, kind):
            raise PackError(f"{source}: the column {name} is {file.schema_arrow.field(name).type}, not {kind}")
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    parts = [group.column(number) for group in groups for number in range(group.num_columns)]
    size = sum(max(part.total_uncompressed_size, 8 * part.num_values) for part in parts)
    _check_size(size, found, source)


def check_texts(table: Any, names: list[str], source: Path) -> None:
    """Raise unless columns that were read as dictionaries have no gaps, and are not too large when written out."""
    from pyarrow import compute

    size = 0
    for name in names:
        if table[name].null_count:
            raise PackError(f"{source}: the column {name} has gaps")
        for chunk in table[name].chunks:
            lengths = compute.take(compute.binary_length(chunk.dictionary), chunk.indices)
            size += compute.sum(lengths.cast("int64")).as_py() or 0
    _check_size(size, table.num_rows, source)


def _check_size(size: int, rows: int, source: Path) -> None:
    if size > ALLOWANCE + MAX_ROW_BYTES * rows:
        raise PackError(f"{source}: {size} bytes in {rows} rows are far more than captions take; it is not read")


def _is_of_kind(found: Any, kind: str) -> bool:
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    if kind == "text":
        return bool(types.is_string(found) or types.is_large_string(found))
    if kind == "ints":
        return bool(types.is_list(found) and types.is_int64(found.value_type))
    return bool(types.is_int64(found) if kind == "int" else types.is_boolean(found))
