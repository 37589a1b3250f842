"""A Parquet file: everything, evidence and candidates as lists, and the marks in the file's metadata too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from recap.batch.record import Record
from recap.files import atomic_write
from recap.types import Caption

GROUP = 1000
"""So many pictures are in memory, and in a row group, at a time."""


def write_parquet(path: Path, records: Iterable[Record]) -> None:
    """Write one row for each record."""
    import pyarrow
    import pyarrow.parquet

    remaining = iter(records)
    first = next(remaining, None)
    schema = _schema(first)
    with atomic_write(path) as file, pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        remaining = chain([] if first is None else [first], remaining)
        while group := list(islice(remaining, GROUP)):
            rows = [{**record.flat(), "path": _text(record.path)} for record in group]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _schema(first: Record | None) -> Any:
    """Return the columns: of a caption by the types it is declared with, of anything else by its first value."""
    import pyarrow

    hints = get_type_hints(Caption)
    hints["caption"] = hints.pop("text")
    if first is None:
        values: Mapping[str, Any] = dict.fromkeys(("path", "caption"), "")
    else:
        values = first.flat()
    columns = [(name, _arrow_type(hints.get(name, type(value)))) for name, value in values.items()]
    made_by = json.dumps(dict(first.generated_by)) if first is not None else "recap"
    return pyarrow.schema(columns, metadata={"generated_by": made_by, "machine_written": "true"})


def _arrow_type(hint: Any) -> Any:
    """Return the column type for a Python type."""
    import pyarrow

    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return pyarrow.struct([(field.name, _arrow_type(hints[field.name])) for field in fields(hint)])
    if get_origin(hint) is tuple:
        return pyarrow.list_(_arrow_type(get_args(hint)[0]))
    if get_origin(hint) is Literal:
        return pyarrow.string()
    optional = [kind for kind in get_args(hint) if kind is not NoneType]
    if optional:
        return _arrow_type(optional[0])
    return {float: pyarrow.float64(), int: pyarrow.int64(), bool: pyarrow.bool_()}.get(hint, pyarrow.string())


def _text(path: str) -> str:
    """Return a path as text; bytes that are not UTF-8 become replacement marks, since Parquet has no room for them."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
