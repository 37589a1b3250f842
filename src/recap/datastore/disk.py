"""A store on disk: segments that are only added to, and one manifest whose replacement is the commit.

    manifest.json              what belongs to the store; a file that is not listed does not
    segment-00001.parquet      captions: id, text, source, synthetic, image_id
    segment-00001.safetensors  their vectors, in the same order
    removed-00002.safetensors  ids of captions of earlier segments that are gone
    center-00001.safetensors   the vector the index is centred by

A store that is searched on disk (format version 2) has its captions as Arrow, which can be read in place, and an index:

    segment-00001.arrow        instead of the Parquet file
    index-00003.faiss          what the index has learnt from a sample
    sizes-00003.safetensors    how many captions each of its inverted lists holds
    lists-00003.bin            the lists, one after the other: codes of all its captions, then their ids

New files get numbers that no file in the folder has, so nothing that is in use is ever overwritten. Small segments at
the end are written again together with what is new, so that many small commits do not make many files.

Hidden folders in which processes collect what they have not committed yet.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from recap.datastore.base import Ids
from recap.datastore.manifest import (
    FORMAT,
    MANIFEST,
    OURS,
    VERSION,
    Manifest,
    Removal,
    Segment,
    StoredFile,
    read_manifest,
)
from recap.datastore.table import CaptionTable, VectorBlocks, read_table
from recap.errors import PackError
from recap.files import TEMPORARY_SUFFIX, atomic_write, exclusive, file_sha256, sealed, write_json
from recap.types import Vectors

TYPES = {"float32": "F32", "float16": "F16", "int64": "I64"}
ALIGNMENT = 64
MAX_HEADER = 1 << 20


def write_matrix(
    file: BinaryIO, name: str, shape: tuple[int, ...], dtype: str, pieces: Iterable[npt.NDArray[Any]]
) -> None:
    """Write ``pieces``, which together make up an array of ``shape``, as the tensor ``name``."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    header = json.dumps({name: {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}}).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    stored = np.dtype(dtype).newbyteorder("<")
    for piece in pieces:
        file.write(np.ascontiguousarray(piece, dtype=stored).data)


def map_matrix(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the tensor ``name`` of a file, mapped; ``PackError`` names the file when it is not as expected."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name] if length <= MAX_HEADER else None
        wanted = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}
        if entry != wanted:
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


PREFIX = ".pending-"
PENDING_LOCK = ".lock"


class Pending:
    """A new folder inside ``home``, locked, so that other processes leave it alone; it goes when ``owner`` goes."""

    def __init__(self, home: Path, owner: object) -> None:
        while True:
            self.path = home / f"{PREFIX}{secrets.token_hex(6)}"
            self.path.mkdir()
            lock = FileLock(self.path / PENDING_LOCK, thread_local=False)
            lock.acquire()
            # before it was locked another process may have taken it for abandoned
            if (self.path / PENDING_LOCK).exists():
                break
            lock.release()
        self.close = weakref.finalize(owner, _delete, self.path, lock)
        """Deletes the folder with what is in it, once."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in it; also when the folder around it has been replaced."""
        return not self.path.is_dir() or all(path.name == PENDING_LOCK for path in self.path.iterdir())


def delete_abandoned(home: Path) -> None:
    """Delete the folders in ``home`` whose processes have ended."""
    for path in home.glob(f"{PREFIX}*"):
        try:
            with FileLock(path / PENDING_LOCK).acquire(blocking=False):
                shutil.rmtree(path, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _delete(path: Path, lock: FileLock) -> None:
    lock.release()
    shutil.rmtree(path, ignore_errors=True)


LOCK = ".lock"
SMALL_SEGMENT = 16_384
"""A segment of no more captions is joined with what comes after it, once that is half as much."""

CAPTION_COLUMNS = {"id": "int", "text": "text", "source": "text", "synthetic": "bool", "image_id": "text"}

MANY_REMOVALS = 16
"""So many files of removed ids are joined into one."""


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
        segments, first = list(old.segments), int(np.searchsorted(table.ids, old.next_id))
        joined = count_joined([segment.rows for segment in segments], len(table) - first)
        if joined:
            captions = self.folder / segments[-joined].captions.name
            first_id = read_table(captions, {"id": "int"}, segments[-joined].rows)["id"][0].as_py()
            first = int(np.searchsorted(table.ids, first_id))
            del segments[-joined:]
        if first < len(table):
            segments.append(self._segment(table, blocks, first))
        gone = np.setdiff1d(had, table.ids, assume_unique=True)
        removals = list(old.removed)
        if len(gone) and len(removals) >= MANY_REMOVALS:
            gone, removals = np.union1d(read_removed(self.folder, old, False), gone), []
        if len(gone):
            removals.append(self.removal(gone))
        return replace(manifest, segments=tuple(segments), removed=tuple(removals))

    def center(self, center: Vectors) -> StoredFile:
        """Write the centre."""
        return self._array("center", "center", center, "float32")

    def removal(self, ids: Ids) -> Removal:
        """Write which captions are gone."""
        return Removal(len(ids), self._array("removed", "ids", ids, "int64"))

    def adopt(self, path: Path) -> StoredFile:
        """Move a finished file in, under a number of its own."""
        name = f"{path.stem.split('-')[0]}-{self._number:05d}{path.suffix}"
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(self.folder / name)
        return self._stored(name)

    def next_number(self) -> None:
        """Give what is written from now on another number."""
        self._number += 1

    def commit(self, manifest: Manifest) -> Manifest:
        """Make ``manifest`` the store, then tidy up what no longer belongs to it."""
        manifest = replace(manifest, generation=secrets.token_hex(8))
        values = {"format": FORMAT, "version": manifest.version, **asdict(manifest)}
        if manifest.version == VERSION:
            del values["built"]
        write_json(self.folder / MANIFEST, sealed(values), follow=False)
        keep = {file.name for file in manifest.files}
        for path in self.folder.iterdir():
            leftover = path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
            if (OURS.fullmatch(path.name) or leftover) and path.name not in keep:
                _try_to_delete(path)
        delete_abandoned(self.folder)
        return manifest

    def _segment(self, table: CaptionTable, blocks: VectorBlocks, first: int) -> Segment:
        import pyarrow.parquet

        slots = table.slots[first:]
        name = f"segment-{self._number:05d}"
        with atomic_write(self.folder / f"{name}.parquet") as file:
            pyarrow.parquet.write_table(arrow_table(table, first), file, compression="zstd")
        write_vectors(self.folder / f"{name}.safetensors", blocks, slots)
        return Segment(len(slots), self._stored(f"{name}.parquet"), self._stored(f"{name}.safetensors"))

    def _array(self, stem: str, tensor: str, values: npt.NDArray[Any], dtype: str) -> StoredFile:
        name = f"{stem}-{self._number:05d}.safetensors"
        with atomic_write(self.folder / name) as file:
            write_matrix(file, tensor, values.shape, dtype, [values])
        return self._stored(name)

    def _stored(self, name: str) -> StoredFile:
        path = self.folder / name
        return StoredFile(name, path.stat().st_size, file_sha256(path))


def count_joined(rows: Sequence[int], new: int) -> int:
    """Return how many of the last segments, given by their rows, are to be written again with ``new`` captions.

    What stays is more than twice as large as what follows it, or large: so there are few segments, and a caption is
    written again only as many times as its segment doubles.
    """
    joined = 0
    for size in reversed(rows):
        if size > min(SMALL_SEGMENT, 2 * new):
            break
        new += size
        joined += 1
    return joined


def write_vectors(path: Path, blocks: VectorBlocks, slots: Ids) -> None:
    """Write the vectors in ``slots``."""
    with atomic_write(path) as file:
        shape = (len(slots), blocks.dimension)
        write_matrix(file, "vectors", shape, blocks.dtype.name, blocks.stream_stored(slots))


@contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """Yield a writer once no other process writes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / LOCK):
        yield Writer(folder)


def read_captions(folder: Path, segment: Segment, verify: bool) -> dict[str, Any]:
    """Return the columns of a segment by name."""
    path = segment.captions.check(folder, verify)
    table = read_table(path, CAPTION_COLUMNS, segment.rows)
    columns = {name: table[name].to_pylist() for name in ("text", "source", "image_id")}
    return columns | {name: table[name].to_numpy() for name in ("id", "synthetic")}


def check_ids(ids: Ids, least: int, end: int, path: Path) -> None:
    """Raise unless ids ascend from ``least`` on and stay below ``end``."""
    if len(ids) and (ids[0] < least or ids[-1] >= end or (np.diff(ids) <= 0).any()):
        raise PackError(f"{path} is damaged: the ids of its captions do not ascend, or are not those of the manifest")


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


def arrow_table(table: CaptionTable, first: int, *, coded: bool = False) -> Any:
    """Return the captions from ``first`` on; ``coded`` keeps each name of a source once, and a number a caption."""
    import pyarrow

    def labels(codes: npt.NDArray[np.int32], names: list[str], coded: bool = False) -> Any:
        used, local = np.unique(codes, return_inverse=True)
        words = pyarrow.array([names[code] for code in used], pyarrow.large_string())
        column = pyarrow.DictionaryArray.from_arrays(local.astype(np.int32), words)
        return column if coded else column.cast(pyarrow.large_string())

    columns = {
        "id": pyarrow.array(table.ids[first:]),
        "text": pyarrow.array(table.texts[first:], pyarrow.large_string()),
        "source": labels(table.sources.codes[first:], table.sources.names, coded),
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
