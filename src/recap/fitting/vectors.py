"""Vectors in Parquet: a folder, on this machine or in a bucket, with one file for each part of the input.

    000000-1f0c....parquet     a row for each picture (or caption without one) of the first part
    vectors.json               the files that belong together; written last, so a folder with it is complete

| column            | what                                                                          |
|-------------------|-------------------------------------------------------------------------------|
| ``id``            | the name of the picture within the input                                      |
| ``image``         | its path or URL; null inside archives                                         |
| ``sha256``        | of the picture's file                                                         |
| ``error``         | why there is no vector; null where there is one                               |
| ``image_vector``  | unit length, as the image encoder made it; zeros where there is an error      |
| ``captions``      | what people wrote about the picture                                           |
| ``caption_vectors`` | one for each caption                                                        |

The schema's metadata holds name and fingerprints of the encoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from recap.datasets import printable
from recap.datasets.records import rows_at_a_time
from recap.errors import EncoderMismatchError, InputError
from recap.files import TEMPORARY_SUFFIX
from recap.parallel import storage
from recap.parallel.parts import NAME
from recap.parallel.runners import LocalRunner, Runner
from recap.types import Vectors

MANIFEST = "vectors.json"
FORMAT = 1
LEFTOVER = re.compile(rf"\.({NAME.pattern}|{re.escape(MANIFEST)})\.[0-9a-f]+{re.escape(TEMPORARY_SUFFIX)}")
"""What a killed process leaves of a file that it was writing."""
ROWS = 512
"""Rows in memory at a time: the size of a row group."""
LIGHT = ("id", "image", "sha256", "error", "captions")
"""The columns without vectors."""


@dataclass(frozen=True, slots=True)
class Space:
    """Which encoder made the vectors."""

    encoder: str
    """The name it can be loaded by."""
    image_fingerprint: str
    text_fingerprint: str
    image_dimension: int
    text_dimension: int

    @classmethod
    def of(cls, encoder: Any) -> Self:
        """Return what tells an encoder from others."""
        image, text = encoder.image, encoder.text
        return cls(encoder.name, image.fingerprint, text.fingerprint, image.dimension, text.dimension)

    def check(self, other: Space, where: str) -> None:
        """Raise unless the other vectors are of the same encoder."""
        ours = (self.image_fingerprint, self.text_fingerprint)
        if ours != (other.image_fingerprint, other.text_fingerprint):
            raise EncoderMismatchError(
                f"{where}: these vectors are of {other.encoder}, not of this {self.encoder}: name that encoder, or "
                "embed the pictures again into another folder"
            )

    def schema(self) -> Any:
        """Return the columns of a shard."""
        import pyarrow

        image = pyarrow.list_(pyarrow.float32(), self.image_dimension)
        text = pyarrow.list_(pyarrow.float32(), self.text_dimension)
        columns = [
            *((name, pyarrow.string()) for name in ("id", "image", "sha256", "error")),
            ("image_vector", image),
            ("captions", pyarrow.list_(pyarrow.string())),
            ("caption_vectors", pyarrow.list_(text)),
        ]
        metadata: Any = {f"recap.{name}": str(value) for name, value in asdict(self).items()}
        return pyarrow.schema(columns, metadata={"recap.format": f"vectors {FORMAT}", **metadata})

    @classmethod
    def from_schema(cls, schema: Any, where: str) -> Self:
        """Return what the metadata of a shard says."""
        noted = {
            key.decode(errors="replace"): value.decode(errors="replace")
            for key, value in (schema.metadata or {}).items()
        }
        if noted.get("recap.format") != f"vectors {FORMAT}":
            raise InputError(f"{where}: not a shard of vectors that recap embed wrote")
        names = ("encoder", "image_fingerprint", "text_fingerprint")
        try:
            sizes = [int(noted[f"recap.{side}_dimension"]) for side in ("image", "text")]
            return cls(*(noted[f"recap.{name}"] for name in names), *sizes)
        except (KeyError, ValueError) as error:
            raise InputError(f"{where}: damaged ({error})") from error


@dataclass(slots=True)
class Row:
    """A picture or a caption with what was made of it."""

    id: str
    captions: tuple[str, ...] = ()
    image: str = ""
    sha256: str = ""
    error: str = ""
    vector: Vectors | None = None
    caption_vectors: Vectors | None = None


@dataclass(slots=True)
class ShardFacts:
    """What a shard holds."""

    file: str
    rows: int = 0
    pictures: int = 0
    captions: int = 0
    broken: list[str] = field(default_factory=list)
    """What is wrong with rows."""
    unread: list[str] = field(default_factory=list)
    """Pictures that were not there or could not be reached; another time they may be."""

    def add(self, image: str, sha256: str, error: str, captions: Sequence[str]) -> None:
        """Count one more row."""
        self.rows += 1
        self.pictures += bool(sha256) and not error
        self.captions += len(captions)
        if error:
            self.broken.append(error)
            self.unread += [image] if image and not sha256 else []

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for json."""
        return {**asdict(self), "broken": len(self.broken), "unread": len(self.unread)}


def batch(rows: Sequence[Row], schema: Any) -> Any:
    """Return rows as a batch of Arrow."""
    import pyarrow

    texts = schema.field("caption_vectors").type.value_type
    made = [row.caption_vectors for row in rows if row.caption_vectors is not None and len(row.caption_vectors)]
    flat = np.concatenate(made) if made else np.zeros((0, texts.list_size), np.float32)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.ravel()), type=texts)
    ends = np.cumsum([0, *(len(row.captions) for row in rows)])
    width = schema.field("image_vector").type.list_size
    blank = np.zeros(width, np.float32)
    images = np.stack([blank if row.vector is None else row.vector for row in rows]).astype(np.float32, copy=False)
    columns = [
        *(pyarrow.array(_texts(rows, name), pyarrow.string()) for name in LIGHT[:4]),
        # zeros and no nulls: pyarrow before 24 cannot read lists of one size with nulls among them
        pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(images.ravel()), width),
        pyarrow.array([list(row.captions) for row in rows], pyarrow.list_(pyarrow.string())),
        pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), vectors),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _texts(rows: Sequence[Row], name: str) -> list[str | None]:
    return [printable(getattr(row, name)) or None for row in rows]


def write_shard(place: str, blocks: Iterable[Sequence[Row]], space: Space) -> ShardFacts:
    """Write blocks of rows to a shard, which appears when it is complete."""
    import pyarrow.parquet

    schema, facts = space.schema(), ShardFacts(storage.name(place))
    with (
        storage.whole_file(place) as file,
        # vectors do not get smaller by compression, but slower
        pyarrow.parquet.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer,
    ):
        for block in blocks:
            writer.write_batch(batch(block, schema))
            for row in block:
                facts.add(row.image, row.sha256, row.error, row.captions)
    return facts


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a shard as arrays."""

    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many captions each row has."""
        lengths: npt.NDArray[np.int64] = self.table.column("caption_vectors").value_lengths().to_numpy()
        return lengths.astype(np.int64)

    def texts(self, name: str) -> list[str]:
        """Return a column of texts; what is null is empty."""
        return [value or "" for value in self.table.column(name).to_pylist()]

    @property
    def captions(self) -> list[list[str]]:
        """The captions of each row."""
        captions: list[list[str]] = self.table.column("captions").to_pylist()
        return captions

    @property
    def image_vectors(self) -> Vectors:
        """One row for each row; meaningless where there is none."""
        column = self.table.column("image_vector")
        flat: Vectors = column.values.to_numpy(zero_copy_only=False)
        width = column.type.list_size
        return flat[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)

    @property
    def caption_vectors(self) -> Vectors:
        """One row for each caption, in the order of the rows."""
        column = self.table.column("caption_vectors").flatten()
        flat: Vectors = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(-1, column.type.list_size)


def read_shard(place: str, columns: Sequence[str] | None = None) -> Iterator[Block]:
    """Yield the rows of a shard in blocks; ``columns`` leaves out the others."""
    import pyarrow
    import pyarrow.parquet

    with storage.local_copy(place) as path:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                if not file.schema_arrow.equals(Space.from_schema(file.schema_arrow, place).schema()):
                    raise InputError(f"{place}: its columns are not those that recap embed writes")
                at_a_time = rows_at_a_time(file.metadata, ROWS, LIGHT)
                for rows in file.iter_batches(at_a_time, columns=None if columns is None else list(columns)):
                    rows.validate(full=True)
                    _check_rows(rows, place)
                    yield Block(rows)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{place}: not a readable Parquet file ({error})") from error


def _check_rows(rows: Any, place: str) -> None:
    """Raise unless hashes are hashes, and no caption is null."""
    known = rows.schema.names
    hashes = rows.column("sha256").to_pylist() if "sha256" in known else ()
    captions = rows.column("captions") if "captions" in known else None
    if not all(re.fullmatch("[0-9a-f]{64}", sha) for sha in hashes if sha):
        raise InputError(f"{place}: damaged (a hash that is none); run recap embed again")
    if captions is not None and (captions.null_count or captions.flatten().null_count):
        raise InputError(f"{place}: damaged (a caption that is none); run recap embed again")


def read_space(place: str) -> Space:
    """Return which encoder made the vectors of a shard."""
    import pyarrow
    import pyarrow.parquet

    with storage.local_copy(place) as path:
        try:
            return Space.from_schema(pyarrow.parquet.read_schema(path), place)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{place}: not a readable Parquet file ({error})") from error


def shard_facts(place: str) -> ShardFacts:
    """Return what a shard holds that was written before."""
    facts = ShardFacts(storage.name(place))
    for block in read_shard(place, ("image", "sha256", "error", "captions")):
        columns = (block.texts(name) for name in ("image", "sha256", "error"))
        for row in zip(*columns, block.captions, strict=True):
            facts.add(*row)
    return facts


@dataclass(frozen=True)
class VectorFolder:
    """A folder of vectors."""

    place: str
    runner: Runner = field(default_factory=LocalRunner)
    """What goes through the shards."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What ``vectors.json`` says."""
        where = storage.joined(self.place, MANIFEST)
        try:
            manifest = json.loads(storage.read_bytes(where))
            if manifest["format"] != FORMAT:
                raise InputError(f"{where}: format {manifest['format']!r} is not known to this version of recap")
            space = Space(**manifest["space"])
            space.schema()
            names = [shard["file"] for shard in manifest["shards"]]
            if not names or not all(map(NAME.fullmatch, names)) or not isinstance(space.encoder, str):
                raise ValueError("it does not name its encoder and its shards")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{where}: damaged ({error}); run recap embed again") from error
        return dict(manifest)

    @property
    def space(self) -> Space:
        """Which encoder made the vectors."""
        return Space(**self.manifest["space"])

    @property
    def shards(self) -> list[str]:
        """The places of the shards, in the order of the input."""
        return [storage.joined(self.place, shard["file"]) for shard in self.manifest["shards"]]

    @property
    def source(self) -> str:
        """What the vectors were made of, as ``embed`` was told; empty where it was not, or has not finished."""
        return str(self.manifest.get("source") or "") if is_vectors(self.place) else ""

    def shard_names(self) -> set[str]:
        """Return the names of shards in the folder, complete or not as a whole."""
        if not storage.exists(self.place):
            return set()
        return {file.name for file in storage.listing(self.place) if NAME.fullmatch(file.name)}

    def finish(self, space: Space, facts: Sequence[ShardFacts], source: str = "", started: float = 0.0) -> None:
        """Write the manifest; delete shards of an earlier input, and what a process killed before ``started`` left."""
        shards = [shard.as_dict() for shard in facts]
        manifest = {"format": FORMAT, "source": source, "space": asdict(space), "shards": shards}
        with storage.whole_file(storage.joined(self.place, MANIFEST)) as file:
            file.write((json.dumps(manifest, indent=1) + "\n").encode())
        for name in self.shard_names() - {shard.file for shard in facts}:
            storage.remove(storage.joined(self.place, name))
        if not storage.is_url(self.place):  # in a bucket nothing is there until it is complete
            for left in Path(self.place).iterdir():
                with suppress(FileNotFoundError):
                    if LEFTOVER.fullmatch(left.name) and left.stat().st_mtime < started:
                        left.unlink()


def is_vectors(place: str) -> bool:
    """Tell whether a folder holds vectors, all of them."""
    return storage.exists(storage.joined(place, MANIFEST))
