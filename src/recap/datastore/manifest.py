"""The manifest of a store on disk: what belongs to it, file by file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recap.errors import PackError
from recap.files import CHECKSUM, file_sha256, read_json
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


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store and what it must be like."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_kinds(self)
        if not OURS.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a file of a store")

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
class Segment:
    """Captions that were written together."""

    rows: int
    captions: StoredFile
    vectors: StoredFile

    def __post_init__(self) -> None:
        check_kinds(self)


@dataclass(frozen=True, slots=True)
class Removal:
    """Captions that were removed together."""

    rows: int
    ids: StoredFile

    def __post_init__(self) -> None:
        check_kinds(self)


@dataclass(frozen=True, slots=True)
class BuiltIndex:
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

    def __post_init__(self) -> None:
        check_kinds(self)

    @property
    def files(self) -> list[StoredFile]:
        """All files of the index."""
        return [self.trained, self.sizes, self.lists]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the store in a folder consists of."""

    encoder: str
    fingerprint: str
    dimension: int
    dtype: str
    next_id: int
    index: dict[str, Any]
    center: StoredFile | None = None
    segments: tuple[Segment, ...] = ()
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
    def version(self) -> int:
        """The version of the format that can say all this."""
        return VERSION_WITH_INDEX if self.index["kind"] == DISK else VERSION

    @property
    def files(self) -> list[StoredFile]:
        """All files the store consists of."""
        files = [file for segment in self.segments for file in (segment.captions, segment.vectors)]
        files += [removal.ids for removal in self.removed]
        files += [] if self.built is None else self.built.files
        return files if self.center is None else [*files, self.center]


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
        segments = [
            Segment(s["rows"], StoredFile(**s["captions"]), StoredFile(**s["vectors"])) for s in values.pop("segments")
        ]
        removed = [Removal(r["rows"], StoredFile(**r["ids"])) for r in values.pop("removed")]
        center, built = values.pop("center"), values.pop("built", None)
        return Manifest(
            segments=tuple(segments),
            removed=tuple(removed),
            center=center and StoredFile(**center),
            built=built and _built_index(built),
            **values,
        )
    except FileNotFoundError as error:
        raise PackError(f"{folder} holds no datastore: {path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackError(f"{path} is damaged: {error}") from error


def _built_index(values: dict[str, Any]) -> BuiltIndex:
    files = {name: StoredFile(**values[name]) for name in ("trained", "sizes", "lists")}
    return BuiltIndex(**{**values, **files})
