"""Parquet tables out of packs, whose size is known before they are in memory.

A table of a megabyte can say a long text thousands of times. So texts are read as a dictionary and numbers, added up,
and written out only if they are not more than captions of people would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recap.errors import PackError

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
