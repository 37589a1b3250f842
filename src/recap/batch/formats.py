"""One captioned picture as every output sees it, what takes such records, and the formats of files they are written to.

COCO results are ``[{"image_id": 42, "caption": "..."}]``, what COCO's tools and evaluation servers read. The image id
is the number in a COCO file name or of a name that is a number, and else the name without its suffix. The format has no
room for provenance, nor for pictures whose caption was withheld, which are left out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Protocol, Self, get_args, get_origin, get_type_hints

from recap.datasets.captions import stem
from recap.errors import InputError
from recap.files import atomic_write
from recap.registry import Entry, Registry
from recap.types import Candidate, Caption, Evidence


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one file from another, and whether it was touched since."""

    sha256: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Record:
    """A picture, its caption, and its provenance."""

    path: str
    """As it was given."""
    caption: Mapping[str, Any]
    """All of ``Caption.as_dict()``; where a least confidence was asked for, of ``withheld_below``."""
    generated_by: Mapping[str, str]
    """What wrote it: ``recap`` (the version), ``pack``, ``encoder``, ``language_model`` and a hash of the settings."""
    file: FileFacts

    @property
    def text(self) -> str:
        """The caption itself; empty where there is none."""
        return self.caption["caption"] or ""

    @property
    def abstained(self) -> bool:
        """Whether the caption was withheld, since it was less sure than was asked for."""
        return bool(self.caption.get("abstained"))

    @property
    def unsure(self) -> bool:
        """Whether the caption is there and probably wrong."""
        return not self.abstained and bool(self.caption.get("unsure"))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for json."""
        return {"path": self.path, **self.caption, "generated_by": dict(self.generated_by), "file": asdict(self.file)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that ``as_dict`` described; other values raise KeyError, TypeError or ValueError."""
        caption = dict(values)
        path, generated_by, file = (caption.pop(name) for name in ("path", "generated_by", "file"))
        if not isinstance(path, str) or "caption" not in caption or "settings" not in generated_by:
            raise ValueError("not a caption with its path and the settings it was written with")
        return cls(path, caption, generated_by, FileFacts(**file))

    def as_caption(self) -> Caption:
        """Return the caption as the object it was, a withheld one too."""
        values = {**self.caption, "text": self.caption["withheld" if self.abstained else "caption"]}
        values["evidence"] = tuple(Evidence(**item) for item in values["evidence"])
        values["candidates"] = tuple(Candidate(**item) for item in values["candidates"])
        return Caption(**{field.name: values[field.name] for field in fields(Caption) if field.name in values})

    def flat(self) -> dict[str, Any]:
        """Return the values as columns of a table: the provenance as text."""
        wrote = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.generated_by.items())
        return {"path": self.path, **self.caption, "generated_by": wrote, "sha256": self.file.sha256}


def json_line(values: Mapping[str, Any]) -> bytes:
    """Return one line of json; a file name that is not UTF-8 is kept in escapes that Python turns back into it."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(values, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True)
class Format(Entry):
    """A kind of output file."""

    suffixes: tuple[str, ...]
    write: Callable[[Path, Iterable[Record]], None]
    """Writes records to a file, atomically."""
    check: Callable[[Sequence[str]], None] = lambda paths: None
    """Raises when it cannot hold these pictures."""


class Sink(Protocol):
    """Something that does its part with each caption: a file beside the picture, a line on the screen, a report.

    After a run was killed and resumed the same record may come again, so ``add`` must do no harm the second time.
    """

    def add(self, record: Record) -> None:
        """Take one captioned picture. Records come in any order."""
        ...

    def close(self) -> None:
        """Finish: all records were added. Not called when the run breaks off; by default nothing is left to do."""
        return


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Write one line for each record."""
    with atomic_write(path) as file:
        file.writelines(json_line(record.as_dict()) for record in records)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(path: Path, records: Iterable[Record]) -> None:
    """Write a header and one row for each record; a file without records has the least of headers."""
    rows = (record.flat() for record in records)
    first = next(rows, None)
    sample = {"path": "", "caption": ""} if first is None else first
    columns = [name for name, value in sample.items() if not isinstance(value, list | tuple | dict)]
    with atomic_write(path) as file:
        for line in csv_lines(chain([] if first is None else [first], rows), columns):
            # names of files need not be UTF-8, and are written as they are
            file.write(line.encode("utf-8", "surrogateescape"))


def csv_lines(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    """Yield a header and rows; what no column is for is left out."""
    buffer = io.StringIO(newline="")
    table = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in rows:
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        table.writerow({name: _inert(value) for name, value in row.items()})
    yield buffer.getvalue()


def _inert(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: a text that begins like one gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


GROUP = 1000
"""Pictures in memory at a time: the size of a row group."""


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
    """Return a path as text; bytes that are not UTF-8 are replaced, since Parquet has no room for them."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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


FORMATS = Registry(
    "format",
    (
        Format("jsonl", "everything, one line a picture", (".jsonl", ".ndjson"), write_jsonl),
        Format("csv", "one row a picture, without evidence and candidates", (".csv",), write_csv),
        Format("parquet", "everything", (".parquet",), write_parquet),
        Format("coco", "COCO results", (".json",), write_coco, check_ids),
    ),
)


def format_of(path: Path) -> str:
    """Return the format a file's suffix stands for."""
    names = {suffix: entry.name for entry in FORMATS for suffix in entry.suffixes}
    known = names.get(path.suffix.lower())
    if known is None:
        raise InputError(
            f"{path}: the suffix stands for no format; end it with {', '.join(names)}, or say --format "
            f"{' or '.join(FORMATS.names())}"
        )
    return known


def write_records(path: Path, kind: str, records: Iterable[Record]) -> None:
    """Write records to a file, atomically; ``kind`` is one of ``FORMATS``."""
    FORMATS.get(kind).write(path, records)


def check_paths(kind: str, paths: Sequence[str]) -> None:
    """Raise now, rather than after the work, when a format cannot hold these pictures."""
    if kind:
        FORMATS.get(kind).check(paths)
