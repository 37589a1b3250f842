"""A store on disk: segments that are only added to, and one manifest whose replacement is the commit.

    manifest.json              what belongs to the store; a file that is not listed does not
    segment-00001.parquet      captions: id, text, source, synthetic, image_id
    segment-00001.safetensors  their vectors, in the same order
    removed-00002.safetensors  ids of captions of earlier segments that are gone
    center-00001.safetensors   the vector the index is centred by

New files get numbers that no file in the folder has, so nothing that is in use is ever overwritten.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids
from recap.datastore.blocks import VectorBlocks
from recap.datastore.matrix import map_matrix, write_matrix
from recap.datastore.table import CaptionTable
from recap.errors import PackError
from recap.files import TEMPORARY_SUFFIX, atomic_write, exclusive, file_sha256, write_json
from recap.types import Vectors

FORMAT = "recap-datastore"
VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".lock"
OURS = re.compile(r"(segment|removed|center)-(\d+)\.(parquet|safetensors)")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store and what it must be like."""

    name: str
    bytes: int
    sha256: str

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


@dataclass(frozen=True, slots=True)
class Removal:
    """Captions that were removed together."""

    rows: int
    ids: StoredFile


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

    @property
    def files(self) -> list[StoredFile]:
        """All files the store consists of."""
        files = [file for segment in self.segments for file in (segment.captions, segment.vectors)]
        files += [removal.ids for removal in self.removed]
        return files if self.center is None else [*files, self.center]


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder, or say what is wrong with it."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise PackError(f"{path} does not belong to a datastore")
        version = values.pop("version")
        if version != VERSION:
            raise PackError(f"{path} has the format version {version}; this recap reads {VERSION}: use a newer recap")
        segments = [
            Segment(s["rows"], StoredFile(**s["captions"]), StoredFile(**s["vectors"])) for s in values.pop("segments")
        ]
        removed = [Removal(r["rows"], StoredFile(**r["ids"])) for r in values.pop("removed")]
        center = values.pop("center")
        return Manifest(
            segments=tuple(segments),
            removed=tuple(removed),
            center=center and StoredFile(**center),
            **values,
        )
    except FileNotFoundError as error:
        raise PackError(f"{folder} holds no datastore: {path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackError(f"{path} is damaged: {error}") from error


class Writer:
    """Writes into a folder that only this process changes meanwhile; made by ``writing``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = read_manifest(folder) if (folder / MANIFEST).exists() else None
        numbers = [int(match[2]) for path in folder.iterdir() if (match := OURS.fullmatch(path.name))]
        self._number = 1 + max(numbers, default=0)

    def everything(self, manifest: Manifest, table: CaptionTable, blocks: VectorBlocks) -> Manifest:
        """Write all captions, and return ``manifest`` with them."""
        return replace(manifest, segments=(self._segment(table, blocks, 0),) if len(table) else ())

    def changes(
        self, manifest: Manifest, old: Manifest, table: CaptionTable, blocks: VectorBlocks, had: Ids
    ) -> Manifest:
        """Write what has come and gone since ``old``, which had the ids ``had``; return ``manifest`` with it."""
        segments, removals = list(old.segments), list(old.removed)
        first = int(np.searchsorted(table.ids, old.next_id))
        if first < len(table):
            segments.append(self._segment(table, blocks, first))
        gone = np.setdiff1d(had, table.ids, assume_unique=True)
        if len(gone):
            removals.append(Removal(len(gone), self._array("removed", "ids", gone, "int64")))
        return replace(manifest, segments=tuple(segments), removed=tuple(removals))

    def center(self, center: Vectors) -> StoredFile:
        """Write the centre."""
        return self._array("center", "center", center, "float32")

    def commit(self, manifest: Manifest) -> Manifest:
        """Make ``manifest`` the store, then tidy up what no longer belongs to it."""
        manifest = replace(manifest, generation=secrets.token_hex(8))
        write_json(self.folder / MANIFEST, {"format": FORMAT, "version": VERSION, **asdict(manifest)})
        keep = {file.name for file in manifest.files}
        for path in self.folder.iterdir():
            leftover = path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
            if (OURS.fullmatch(path.name) or leftover) and path.name not in keep:
                _try_to_delete(path)
        return manifest

    def _segment(self, table: CaptionTable, blocks: VectorBlocks, first: int) -> Segment:
        import pyarrow.parquet

        slots = table.slots[first:]
        name = f"segment-{self._number:05d}"
        with atomic_write(self.folder / f"{name}.parquet") as file:
            pyarrow.parquet.write_table(_arrow(table, first), file, compression="zstd")
        with atomic_write(self.folder / f"{name}.safetensors") as file:
            shape = (len(slots), blocks.dimension)
            write_matrix(file, "vectors", shape, blocks.dtype.name, blocks.stream_stored(slots))
        return Segment(len(slots), self._stored(f"{name}.parquet"), self._stored(f"{name}.safetensors"))

    def _array(self, stem: str, tensor: str, values: npt.NDArray[Any], dtype: str) -> StoredFile:
        name = f"{stem}-{self._number:05d}.safetensors"
        with atomic_write(self.folder / name) as file:
            write_matrix(file, tensor, values.shape, dtype, [values])
        return self._stored(name)

    def _stored(self, name: str) -> StoredFile:
        path = self.folder / name
        return StoredFile(name, path.stat().st_size, file_sha256(path))


@contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """Yield a writer once no other process writes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / LOCK):
        yield Writer(folder)


def read_captions(folder: Path, segment: Segment, verify: bool) -> dict[str, Any]:
    """Return the columns of a segment by name."""
    import pyarrow
    import pyarrow.parquet

    path = segment.captions.check(folder, verify)
    try:
        table = pyarrow.parquet.read_table(path, columns=["id", "text", "source", "synthetic", "image_id"])
    except (pyarrow.ArrowException, OSError) as error:
        raise PackError(f"{path} is not a readable Parquet file of captions: {error}") from error
    if table.num_rows != segment.rows:
        raise PackError(f"{path} holds {table.num_rows} captions; the manifest promises {segment.rows}")
    columns = {name: table[name].to_pylist() for name in ("text", "source", "image_id")}
    return columns | {name: table[name].to_numpy() for name in ("id", "synthetic")}


def read_vectors(folder: Path, segment: Segment, manifest: Manifest, verify: bool) -> npt.NDArray[Any]:
    """Return the vectors of a segment, mapped."""
    path = segment.vectors.check(folder, verify)
    return map_matrix(path, "vectors", manifest.dtype, (segment.rows, manifest.dimension))


def read_removed(folder: Path, manifest: Manifest, verify: bool) -> Ids:
    """Return the ids of all captions that are gone."""
    parts = [map_matrix(r.ids.check(folder, verify), "ids", "int64", (r.rows,)) for r in manifest.removed]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def read_center(folder: Path, manifest: Manifest, verify: bool) -> Vectors | None:
    """Return the centre, if there is one."""
    if manifest.center is None:
        return None
    return np.array(map_matrix(manifest.center.check(folder, verify), "center", "float32", (manifest.dimension,)))


def _arrow(table: CaptionTable, first: int) -> Any:
    import pyarrow

    def labels(codes: npt.NDArray[np.int32], names: list[str]) -> Any:
        used, local = np.unique(codes, return_inverse=True)
        words = pyarrow.array([names[code] for code in used], pyarrow.large_string())
        return pyarrow.DictionaryArray.from_arrays(local.astype(np.int32), words).cast(pyarrow.large_string())

    columns = {
        "id": pyarrow.array(table.ids[first:]),
        "text": pyarrow.array(table.texts[first:], pyarrow.large_string()),
        "source": labels(table.sources.codes[first:], table.sources.names),
        "synthetic": pyarrow.array(table.synthetic[first:]),
        "image_id": labels(table.image_ids.codes[first:], table.image_ids.names),
    }
    return pyarrow.table(columns)


def _try_to_delete(path: Path) -> None:
    """Delete a file that is no longer needed; one that is still mapped (Windows) waits for the next commit."""
    try:
        path.unlink()
    except OSError:
        return
