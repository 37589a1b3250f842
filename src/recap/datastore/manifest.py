"""The files of a store on disk: one manifest, whose replacement is the commit, and what it lists.

    manifest.json              what belongs to the store; a file that is not listed does not
    segment-00001.parquet      captions: id, text, source, synthetic, image_id
    segment-00001.safetensors  their vectors, in the same order
    removed-00002.safetensors  ids of captions of earlier segments that are gone
    center-00001.safetensors   the vector the index is centred by

Many captions are kept as Arrow, which can be read in place; a store that is searched on disk (format version 2) has
all of them so, and an index:

    segment-00001.arrow        instead of the Parquet file
    index-00003.faiss          what the index has learnt from a sample
    sizes-00003.safetensors    how many captions each of its inverted lists holds
    lists-00003.bin            the lists, one after the other: codes of all its captions, then their ids

New files get numbers that no file in the folder has, so nothing that is in use is ever overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from recap.errors import PackError
from recap.files import CHECKSUM, file_sha256, read_json, sealed, write_json
from recap.types import check_kinds

FORMAT = "recap-datastore"
VERSION = 1
VERSION_WITH_INDEX = 2
MANIFEST = "manifest.json"
DISK = "disk"
"""The kind of index that lies on disk."""
OURS = re.compile(r"(segment|removed|center|index|sizes|lists)-(\d+)\.(parquet|arrow|safetensors|faiss|bin)")
"""The names of files of a store; no other is ever read, written or deleted."""
MAX_DIMENSION = 1 << 20

TYPES = {"float32": "F32", "float16": "F16", "int64": "I64"}
ALIGNMENT = 64
ARROW_START = 8
"""Bytes of an Arrow file before its messages."""
MAX_HEADER = 1 << 20

MAX_ROW_BYTES = 4096
"""Limit of the texts of a row, on average."""
ALLOWANCE = 64 << 20
"""Bytes that a table may have besides."""

SMALL_SEGMENT = 16_384
"""A segment on disk of no more captions is joined with what comes after it, once that is half as much."""


class _Checked:
    """Values from a json file, whose types are checked."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_kinds(self)


@dataclass(frozen=True, slots=True)
class StoredFile(_Checked):
    """A file of the store and what it must be like."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_kinds(self)
        if not OURS.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a file of a store")

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        """Describe a file as it is."""
        return cls(path.name, path.stat().st_size, file_sha256(path))

    def check(self, folder: Path, verify: bool) -> Path:
        """Return the path; ``PackError`` when the file is not there, not whole, or (``verify``) not the same."""
        path = folder / self.name
        if not path.is_file():
            raise PackError(f"{path} is missing; the store needs it")
        if path.stat().st_size != self.bytes:
            raise PackError(f"{path} is truncated or damaged: {path.stat().st_size} bytes, not {self.bytes}")
        if verify and file_sha256(path) != self.sha256:
            raise PackError(f"{path} is damaged: its sha256 differs from the one in the manifest")
        return path


@dataclass(frozen=True, slots=True)
class StoredSegment(_Checked):
    """Captions that were written together."""

    rows: int
    captions: StoredFile
    vectors: StoredFile


@dataclass(frozen=True, slots=True)
class Removal(_Checked):
    """Captions that were removed together."""

    rows: int
    ids: StoredFile


@dataclass(frozen=True, slots=True)
class BuiltIndex(_Checked):
    """An index on disk, of the captions there were when it was built."""

    rows: int
    next_id: int
    """Captions of this id or above have come later."""
    trained: StoredFile
    sizes: StoredFile
    lists: StoredFile
    recall: float
    """How many of the true ``recall_k`` nearest it found, measured with captions of the store as queries."""
    recall_k: int
    recall_queries: int

    @property
    def files(self) -> list[StoredFile]:
        """All files of the index."""
        return [self.trained, self.sizes, self.lists]


@dataclass(frozen=True, slots=True)
class Manifest(_Checked):
    """What the store in a folder consists of."""

    encoder: str
    fingerprint: str
    dimension: int
    dtype: str
    next_id: int
    index: dict[str, Any]
    center: StoredFile | None = None
    segments: tuple[StoredSegment, ...] = ()
    removed: tuple[Removal, ...] = ()
    generation: str = ""
    """Changes with every commit, so that a writer notices another one."""
    built: BuiltIndex | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        rows = [segment.rows for segment in self.segments] + [removal.rows for removal in self.removed]
        if min([self.dimension - 1, self.next_id, *rows]) < 0 or self.dimension > MAX_DIMENSION:
            raise ValueError("a count is below zero, or the dimension is none")
        if not isinstance(self.index.get("kind"), str):
            raise ValueError("there is no kind of index")

    @property
    def on_disk(self) -> bool:
        """Whether the store is searched on disk."""
        return bool(self.index["kind"] == DISK)

    @property
    def files(self) -> list[StoredFile]:
        """All files the store consists of."""
        files = [file for segment in self.segments for file in (segment.captions, segment.vectors)]
        files += [removal.ids for removal in self.removed]
        files += [] if self.built is None else self.built.files
        return files if self.center is None else [*files, self.center]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make ``manifest`` the store in a folder, in the lowest version of the format that can say it."""
    version = VERSION_WITH_INDEX if manifest.on_disk else VERSION
    values = {"format": FORMAT, "version": version, **asdict(manifest)}
    if version == VERSION:
        del values["built"]
    write_json(folder / MANIFEST, sealed(values), follow=False)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder, or say what is wrong with it."""
    path = folder / MANIFEST
    try:
        values = read_json(path)
        values.pop(CHECKSUM, None)
        if values.pop("format") != FORMAT:
            raise PackError(f"{path} does not belong to a datastore")
        version = values.pop("version")
        if version not in (VERSION, VERSION_WITH_INDEX):
            raise PackError(
                f"{path} has the format version {version}; this recap reads up to {VERSION_WITH_INDEX}: use a newer one"
            )
        return _manifest(**values)
    except FileNotFoundError as error:
        raise PackError(f"{folder} holds no datastore: {path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackError(f"{path} is damaged: {error}") from error


def _manifest(*, segments: Any, removed: Any, center: Any, built: Any = None, **values: Any) -> Manifest:
    def files(known: dict[str, Any], *names: str) -> dict[str, Any]:
        return {**known, **{name: StoredFile(**known[name]) for name in names}}

    return Manifest(
        segments=tuple(StoredSegment(**files(segment, "captions", "vectors")) for segment in segments),
        removed=tuple(Removal(**files(removal, "ids")) for removal in removed),
        center=center and StoredFile(**center),
        built=built and BuiltIndex(**files(built, "trained", "sizes", "lists")),
        **values,
    )


def write_matrix(
    file: BinaryIO, name: str, shape: tuple[int, ...], dtype: str, pieces: Iterable[npt.NDArray[Any]]
) -> None:
    """Write ``pieces``, which together make up an array of ``shape``, as the tensor ``name`` of a safetensors file.

    The format is eight bytes with the length of a json header, the header, and the numbers. It is written and mapped
    here directly because the library wants all of a tensor at once.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    header = json.dumps({name: {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}}).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    stored = np.dtype(dtype).newbyteorder("<")
    for piece in pieces:
        file.write(np.ascontiguousarray(piece, dtype=stored).data)


def column_numbers(column: Any) -> npt.NDArray[Any]:
    """Return an Arrow column of integers without a copy; ``to_numpy`` would import pandas first, where it is there.

    So do the column's own words for its type, which fail without pandas in older versions.
    """
    if column.null_count:
        return np.asarray(column.to_numpy())
    dtype = np.dtype(str(column.type))
    return np.frombuffer(column.buffers()[1] or b"", dtype, len(column), dtype.itemsize * column.offset)


def map_batch(path: Path, schema: Any, *, texts: bool) -> Any:
    """Return the one batch of an Arrow file, mapped; ``texts`` says whether every letter is looked at.

    Nothing in it may be compressed: twenty kilobytes could become a gigabyte. Offsets of strangers may point anywhere
    in memory, so all are checked.
    """
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        source.seek(ARROW_START)
        for message in pyarrow.ipc.MessageReader.open_stream(source):
            if message.type != "schema" and _is_compressed(message):
                raise TypeError("it is compressed")
            if message.type == "record batch":
                break
        source.seek(ARROW_START)
        reader = pyarrow.ipc.open_stream(source)
        batch = next(reader, None) if reader.schema.equals(schema) else None
    if batch is None:
        raise TypeError("its columns are of other kinds, or it is empty")
    for column in batch.columns:
        text = pyarrow.types.is_large_string(column.type) and not texts
        (column.view(pyarrow.large_binary()) if text else column).validate(full=True)
    return batch


def _is_compressed(message: Any) -> bool:
    """Tell whether a batch of Arrow is; its head is a flatbuffer, of which pyarrow shows no more than the bytes."""
    data = bytes(message.metadata)

    def read(place: int, size: int) -> int:
        return int.from_bytes(data[place : place + size], "little")

    def field(table: int, number: int) -> int:
        """Return where a field of a table is, 0 where it has none."""
        names = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        there = read(names + 4 + 2 * number, 2) if 4 + 2 * number < read(names, 2) else 0
        return there and table + there

    def follow(place: int) -> int:
        return place + read(place, 4)

    batch = follow(field(follow(0), 2))
    if message.type == "dictionary":
        batch = follow(field(batch, 1))
    return field(batch, 3) > 0


def map_matrix(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the tensor ``name`` of a file, mapped; ``PackError`` names the file when it is not as expected."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name] if length <= MAX_HEADER else None
        if entry != {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}:
            raise PackError(f"{path} does not hold the {dtype} array of shape {shape} that the manifest promises")
        if path.stat().st_size != 8 + length + size:
            raise PackError(f"{path} is truncated or damaged: {path.stat().st_size} bytes, not {8 + length + size}")
        if size == 0:
            return np.empty(shape, dtype=dtype)
        return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r", offset=8 + length, shape=shape)
    except FileNotFoundError as error:
        raise PackError(f"{path} is missing; the store needs it") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackError(f"{path} is not a readable safetensors file: {error}") from error


def count_joined(rows: Sequence[int], new: int, small: int = SMALL_SEGMENT) -> int:
    """Return how many of the last segments, given by their rows, are to be written again with ``new`` captions.

    What stays is more than twice as large as what follows it, or not ``small``: so there are few segments, and a
    caption is written again only as many times as its segment doubles.
    """
    joined = 0
    for size in reversed(rows):
        if size > min(small, 2 * new):
            break
        new += size
        joined += 1
    return joined


def read_table(source: Path, columns: Mapping[str, str], rows: int | None = None) -> Any:
    """Return columns of a Parquet table, by their kinds (int, bool, text, ints), as an Arrow table.

    ``PackError`` when it cannot be read, has another number of rows, or would be far larger than such tables are. A
    table of a megabyte can say a long text thousands of times: so texts are read as a dictionary and numbers, added
    up, and written out only if they are not more than captions of people would be.
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
    check_size(size, found, source)


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
    check_size(size, table.num_rows, source)


def check_size(size: int, rows: int, source: Path) -> None:
    """Raise when so many bytes of text in so many rows of a file are far more than captions take."""
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
