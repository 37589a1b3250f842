"""The folder of a store: what is committed there, what waits to be, and how it is written."""

from __future__ import annotations

import secrets
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids, is_same_center
from recap.datastore.index import RECALL_K, RECALL_QUERIES, Searcher
from recap.datastore.manifest import (
    MANIFEST,
    OURS,
    SMALL_SEGMENT,
    BuiltIndex,
    Manifest,
    Removal,
    StoredFile,
    StoredSegment,
    count_joined,
    map_matrix,
    read_manifest,
    write_manifest,
    write_matrix,
)
from recap.datastore.segments import (
    PIECE,
    Part,
    Segment,
    Segments,
    encode_sources,
    joined_table,
)
from recap.errors import InputError, PackError
from recap.files import TEMPORARY_SUFFIX, atomic_write, exclusive, link_or_copy
from recap.types import Vectors

if TYPE_CHECKING:
    from filelock import FileLock

    from recap.datastore.lists import Lists

LOCK = ".lock"
PENDING = ".pending-"
"""How the names of hidden folders begin in which processes collect what they have not committed yet."""

MANY_REMOVALS = 16
"""Files of removed ids from which on they are joined into one."""

GROUP_BYTES = 256 << 20
"""Size of the vectors of a segment when a store that is searched on disk is written as a whole."""


class Writer:
    """Writes into a folder that only this process changes meanwhile; made by ``writing``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = read_manifest(folder) if (folder / MANIFEST).exists() else None
        numbers = [int(match[2]) for path in folder.iterdir() if (match := OURS.fullmatch(path.name))]
        self._number = 1 + max(numbers, default=0)

    def require_empty(self) -> None:
        """Raise unless there is no store yet."""
        if self.found is not None:
            raise InputError(f"{self.folder} holds a datastore already")

    def array(self, stem: str, tensor: str, values: npt.NDArray[Any]) -> StoredFile:
        """Write a centre or ids."""
        path = self.folder / f"{stem}-{self._number:05d}.safetensors"
        with atomic_write(path) as file:
            write_matrix(file, tensor, values.shape, values.dtype.name, [values])
        return StoredFile.of(path)

    def segments(self, segments: Segments, start: int, about: Manifest) -> list[Segment]:
        """Write what is left of the segments from ``start`` on: as one, or where they are mapped as large ones."""
        written = []
        for group in segments.groups(start, GROUP_BYTES if about.on_disk else None):
            mapped = about.on_disk or sum(int(alive.sum()) for _, alive in group) > SMALL_SEGMENT
            written.append(write_segment(_files(self.folder / f"segment-{self._number:05d}", mapped), group))
            self._number += 1
        return written

    def adopt_segment(self, segment: Segment) -> None:
        """Move the files of a segment in, under a number of their own."""
        assert segment.files is not None
        # where each file is has to be known even if the next step fails, for another try
        segment.files = (self.adopt(segment.files[0]), segment.files[1])
        segment.files = (segment.files[0], self.adopt(segment.files[1]))
        self._number += 1

    def adopt(self, path: Path) -> Path:
        """Move a finished file in, under the current number."""
        return path.replace(self.folder / f"{path.stem.split('-')[0]}-{self._number:05d}{path.suffix}")

    def commit(self, manifest: Manifest) -> Manifest:
        """Make ``manifest`` the store, then tidy up what no longer belongs to it."""
        manifest = replace(manifest, generation=secrets.token_hex(8))
        write_manifest(self.folder, manifest)
        keep = {file.name for file in manifest.files}
        for path in self.folder.iterdir():
            leftover = path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
            if (OURS.fullmatch(path.name) or leftover) and path.name not in keep:
                _try_to_delete(path)
        _delete_abandoned(self.folder)
        return manifest


@contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """Yield a writer once no other process writes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / LOCK):
        yield Writer(folder)


class Home:
    """A folder with a committed store, and its captions; what is not committed waits in a hidden folder inside it."""

    def __init__(self, folder: Path, segments: Segments, manifest: Manifest, center: Vectors | None = None) -> None:
        self.folder = folder
        self.segments = segments
        self.manifest = manifest
        self.center = center
        self._gone = segments.gone
        """What is marked as removed in the folder."""
        self._pending: Path | None = None

    @classmethod
    def open(cls, folder: Path, *, verify: bool = False) -> Home:
        """Read what is committed in a folder; ``verify`` compares every file's sha256."""
        manifest = read_manifest(folder)
        home = cls(folder, Segments(manifest.dimension, manifest.dtype), manifest)
        home.reload(verify=verify)
        return home

    def reload(self, *, verify: bool = False) -> None:
        """Read the folder again."""
        while True:
            self.manifest = read_manifest(self.folder)
            try:
                self._read(verify)
            except PackError:
                # another process may have replaced the files between the manifest and them
                if read_manifest(self.folder).generation == self.manifest.generation:
                    raise
            else:
                return

    def _read(self, verify: bool) -> None:
        folder, manifest, opened, least = self.folder, self.manifest, [], 0
        for stored in manifest.segments:
            files = (stored.captions.check(folder, verify), stored.vectors.check(folder, verify))
            segment = Segment.open(files, stored.rows, manifest.dimension, manifest.dtype)
            segment.check_ids(least, manifest.next_id)
            opened.append(segment)
            least = int(segment.ids[-1]) + 1
        self.center = self._array("center", manifest.center, (manifest.dimension,), "float32", verify)
        removed = [self._array("ids", r.ids, (r.rows,), "int64", verify) for r in manifest.removed]
        for file in manifest.built.files if manifest.built is not None else ():
            file.check(folder, verify)
        self.segments.put(0, opened)
        self.segments.mark_gone(np.concatenate([np.empty(0, dtype=np.int64), *removed]))
        self.segments.next_id, self._gone = manifest.next_id, self.segments.gone

    def _array(self, name: str, file: StoredFile | None, shape: tuple[int, ...], dtype: str, verify: bool) -> Any:
        return None if file is None else np.array(map_matrix(file.check(self.folder, verify), name, dtype, shape))

    def read_lists(self) -> Lists | None:
        """Return the committed lists."""
        built = self.manifest.built
        if built is None:
            return None
        from recap.datastore.lists import read_lists

        return read_lists([self.folder / f.name for f in built.files], built.rows, built.next_id, built.recall)

    def pending(self) -> Path:
        """Return the folder of what is not committed yet; it goes when nobody uses these captions any more."""
        if self._pending is None or not self._pending.exists():
            self._pending, lock = _new_pending(self.folder)
            self._delete_pending = weakref.finalize(self, _delete_pending, self._pending, lock)
        return self._pending

    def spill(self) -> None:
        """Move the captions that are in memory only to the disk, as a segment that waits to be committed."""
        start = self.segments.in_files
        if start == len(self.segments.all):
            return
        files = _files(self.pending() / f"segment-{secrets.token_hex(4)}", mapped=True)
        living = self.segments.living(start)
        self._put(start, [write_segment(files, living)] if living else [])

    def commit(self, about: Manifest, searcher: Searcher, *, whole: bool = False) -> None:
        """Make captions, removals, centre and lists the store: old state or new, never between.

        ``about`` has the rest of the manifest. ``whole`` writes all segments anew.
        """
        segments, start = self.segments, 0 if whole else self._first_to_write()
        with self.locked() as writer:
            center = None if searcher.center is None else writer.array("center", "center", searcher.center)
            removed = self._write_removals(writer, segments.gone_before(start))
            listed = self._listed()
            for segment in segments.all[:start]:
                if segment.files not in listed:
                    writer.adopt_segment(segment)
            self._put(start, writer.segments(segments, start, about))
            built = self._adopt_lists(writer, searcher.lists)
            stored = tuple(listed.get(segment.files) or describe(segment) for segment in segments.all)
            manifest = replace(about, center=center, removed=removed, segments=stored, built=built)
            self.manifest = writer.commit(manifest)
        self._gone, self.center = segments.gone, searcher.center
        # lists of a store around another centre may still wait there
        if self._pending is not None and all(path.name == LOCK for path in self._pending.glob("*")):
            self._delete_pending()

    def is_all(self, searcher: Searcher) -> bool:
        """Tell whether the files of the folder are all there is to the store, and hold nothing that has gone."""
        segments = self.segments
        same = [segment.files for segment in segments.all] == list(self._listed())
        same = same and not len(segments.gone) and segments.next_id == self.manifest.next_id
        return same and self._are_committed(searcher.lists) and is_same_center(searcher.center, self.center)

    def copy_files(self, folder: Path) -> None:
        """Make a store in ``folder`` of the same files, which are never written to again."""
        with writing(folder) as writer:
            writer.require_empty()
            try:
                for file in self.manifest.files:
                    link_or_copy(self.folder / file.name, folder / file.name)
            except FileNotFoundError as error:
                raise self.changed() from error
            if read_manifest(self.folder).generation != self.manifest.generation:
                raise self.changed()
            writer.commit(self.manifest)

    @contextmanager
    def locked(self) -> Iterator[Writer]:
        """Yield a writer; ``PackError`` when another process has changed the folder."""
        with writing(self.folder) as writer:
            if writer.found is None or writer.found.generation != self.manifest.generation:
                raise self.changed()
            yield writer

    def changed(self) -> PackError:
        """Return what to raise when another process has changed the folder."""
        return PackError(f"{self.folder} was changed by another process since it was read; open it again")

    def _first_to_write(self) -> int:
        """Return the number of the first segment to write: small ones at the end go together with what is new."""
        segments = self.segments
        new = sum(int(alive.sum()) for _, alive in segments.living(segments.in_files))
        return segments.in_files - count_joined([len(segment) for segment in segments.all[: segments.in_files]], new)

    def _put(self, start: int, new: Sequence[Segment]) -> None:
        """Put segments that have been written in the place of others, which are deleted if they waited."""
        files = [file for segment in self.segments.all[start:] for file in segment.files or ()]
        self.segments.put(start, new)
        for file in files:
            if file.parent == self._pending:
                _try_to_delete(file)

    def _write_removals(self, writer: Writer, gone: Ids) -> tuple[Removal, ...]:
        known, new = self.manifest.removed, np.setdiff1d(gone, self._gone, assume_unique=True)
        # what was gone from segments that are written again must not be marked any more
        outdated = len(self._gone) + len(new) > len(gone)
        if outdated or (len(new) and len(known) >= MANY_REMOVALS):
            known, new = (), gone
        return (*known, Removal(len(new), writer.array("removed", "ids", new))) if len(new) else known

    def _listed(self) -> dict[tuple[Path, Path] | None, StoredSegment]:
        """Return the committed segments by where they are."""
        names = [((s.captions.name, s.vectors.name), s) for s in self.manifest.segments]
        return {(self.folder / captions, self.folder / vectors): s for (captions, vectors), s in names}

    def _are_committed(self, lists: Lists | None) -> bool:
        """Tell whether these lists, or None, are what the manifest says."""
        built = self.manifest.built
        if lists is None or built is None:
            return lists is None and built is None
        return lists.files[0] == self.folder / built.trained.name

    def _adopt_lists(self, writer: Writer, lists: Lists | None) -> BuiltIndex | None:
        if lists is None or self._are_committed(lists):
            return None if lists is None else self.manifest.built
        for number, path in enumerate(lists.files):
            lists.files[number] = writer.adopt(path)
        trained, sizes, content = map(StoredFile.of, lists.files)
        return BuiltIndex(lists.rows, lists.next_id, trained, sizes, content, lists.recall, RECALL_K, RECALL_QUERIES)


def write_store(
    folder: Path, segments: Segments, about: Manifest, center: Vectors | None, *, over: bool
) -> tuple[Manifest, list[Segment]]:
    """Write all captions to a folder, ``over`` another store or not, and return its manifest and segments."""
    with writing(folder) as writer:
        if not over:
            writer.require_empty()
        file = None if center is None else writer.array("center", "center", center)
        new = writer.segments(segments, 0, about)
        return writer.commit(replace(about, center=file, segments=tuple(map(describe, new)))), new


def write_segment(files: tuple[Path, Path], parts: Sequence[Part]) -> Segment:
    """Write what is left of some segments to files as one, and return it, mapped."""
    import pyarrow
    import pyarrow.parquet

    captions, vectors = files
    table, ipc = joined_table(parts), pyarrow.ipc
    with atomic_write(captions) as file:
        if captions.suffix == ".parquet":
            pyarrow.parquet.write_table(table, file, compression="zstd")
        else:
            batch = encode_sources(table)
            with ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
    first = parts[0][0].matrix
    shape, dtype = (table.num_rows, first.shape[1]), first.dtype.name
    with atomic_write(vectors) as file:
        write_matrix(file, "vectors", shape, dtype, _stored_rows(parts))
    if captions.suffix == ".arrow":
        return Segment.open(files, *shape, dtype)
    return Segment(encode_sources(table), map_matrix(vectors, "vectors", dtype, shape), files)


def _stored_rows(parts: Sequence[Part]) -> Iterator[npt.NDArray[Any]]:
    """Yield vectors in pieces, to the bit as they were added."""
    for segment, alive in parts:
        for start in range(0, len(segment), PIECE):
            piece = slice(start, start + PIECE)
            yield segment.matrix[piece][alive[piece]]


def describe(segment: Segment) -> StoredSegment:
    """Return what a manifest says about a segment in files."""
    assert segment.files is not None
    return StoredSegment(len(segment), *map(StoredFile.of, segment.files))


def _files(stem: Path, mapped: bool) -> tuple[Path, Path]:
    """Return where captions and vectors go; many captions are mapped sooner than a Parquet file is read."""
    return stem.with_suffix(".arrow" if mapped else ".parquet"), stem.with_suffix(".safetensors")


def _new_pending(home: Path) -> tuple[Path, FileLock]:
    """Make a folder inside ``home``, locked, so that other processes leave it alone."""
    from filelock import FileLock

    while True:
        path = home / f"{PENDING}{secrets.token_hex(6)}"
        path.mkdir()
        lock = FileLock(path / LOCK, thread_local=False)
        lock.acquire()
        # before it was locked another process may have taken it for abandoned
        if (path / LOCK).exists():
            return path, lock
        lock.release()


def _delete_pending(path: Path, lock: FileLock) -> None:
    lock.release()
    shutil.rmtree(path, ignore_errors=True)


def _delete_abandoned(home: Path) -> None:
    """Delete the hidden folders whose processes have ended."""
    from filelock import FileLock, Timeout

    for path in home.glob(f"{PENDING}*"):
        if path.is_symlink():  # not ours, and its lock would be a file somewhere else
            _try_to_delete(path)
            continue
        try:
            with FileLock(path / LOCK).acquire(blocking=False):
                shutil.rmtree(path, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _try_to_delete(path: Path) -> None:
    """Delete a file that is no longer needed; one that is still mapped (Windows) waits for the next commit."""
    with suppress(OSError):
        path.unlink()
