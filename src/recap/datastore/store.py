"""Stores in memory or in a folder: segments of captions, an index, and a folder where they are kept."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from recap.datastore.base import (
    CaptionRow,
    Columns,
    Excluded,
    Filters,
    Ids,
    MutableStore,
    Names,
    SearchResult,
    is_same_center,
)
from recap.datastore.home import Home, write_store, writing
from recap.datastore.index import (
    RECALL_K,
    ApproximateArguments,
    DiskArguments,
    IndexArguments,
    Searcher,
    index_arguments,
)
from recap.datastore.manifest import MANIFEST, Manifest
from recap.datastore.segments import Segments, join
from recap.errors import InputError, PackError
from recap.types import Vectors

SPILL_BYTES = 256 << 20
"""Size of vectors in memory from which on a store on disk writes them there."""

Precision = Literal["float32", "float16"]
"""What one number of a vector is kept as."""


class LocalStore(MutableStore):
    """Captions of this process: segments and a searcher, and a home once they are kept in a folder."""

    _segments: Segments
    _searcher: Searcher
    _home: Home | None = None
    _lock: threading.Lock

    def _enter(self, home: Home, arguments: IndexArguments) -> None:
        """Become the store that was opened."""
        about = home.manifest
        self.dimension, self.encoder, self.fingerprint = about.dimension, about.encoder, about.fingerprint
        self._lock, self._home, self._segments = threading.Lock(), home, home.segments
        self._searcher = Searcher(home.segments, home.center, arguments)
        self._searcher.use(home.read_lists())

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def next_id(self) -> int:
        """The id that the next caption will have."""
        return self._segments.next_id

    @property
    def center(self) -> Vectors | None:
        """The vector that is subtracted before searching."""
        return self._searcher.center

    @property
    def dtype(self) -> Precision:
        """What one number of a vector is kept as."""
        return self._segments.dtype  # type: ignore[return-value]

    @property
    def index(self) -> IndexArguments:
        """The kind of index and its arguments."""
        return self._searcher.arguments

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, or by none; the index is built again when it is needed."""
        wanted = self._checked(center)
        if not is_same_center(wanted, self.center):
            self._searcher = Searcher(self._segments, wanted, self.index)

    def centred_by(self, center: npt.ArrayLike | None) -> Self:
        """Return the same captions, searched around another centre; this store when the centre is its own.

        Both share the captions: what one adds or removes the other finds. Save them through one of the two; each
        writes its own centre and lists.
        """
        wanted = self._checked(center)
        if is_same_center(wanted, self.center):
            return self
        twin = copy(self)
        twin.set_center(wanted)
        return twin

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        return self._segments.rows(ids)

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._segments.vectors(ids)

    def ids_of_images(self, image_ids: Iterable[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        return self._segments.ids_of_images(list(image_ids))

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        return self._segments.sources()

    def content_hash(self) -> str:
        """Return a hash of ids and texts: the same for the same captions, wherever and in whatever files they are."""
        content = hashlib.sha256()
        for segment, alive in self._segments.living(0):
            for lines in segment.lines(alive):
                content.update(lines)
        return content.hexdigest()

    def facts(self) -> dict[str, str | int | float]:
        """Return how the captions are searched, and what one number of a vector is kept as."""
        return {"search": self.index.kind, "vectors": self.dtype}

    def commit(self) -> None:
        """Make the changes last, in the folder of the store: old state or new, whatever happens meanwhile."""
        if self._home is None:
            raise InputError("this store has no folder yet: use save")
        self._write(self._home, whole=False)

    def compact(self) -> None:
        """Get rid of what removed captions have left behind, in memory and in the folder of the store."""
        if self._home is None:
            self._segments.put(0, [join([part]) for part in self._segments.living(0)])
            return
        if self._searcher.lists is not None:
            self._searcher.use(None)
        self._write(self._home, whole=True)

    def copy_to(self, folder: str | Path) -> None:
        """Write the whole store to ``folder``, and stay where it is."""
        folder = Path(folder).resolve()
        if self._home is not None and self._home.folder == folder:
            self.commit()
        else:
            self._copy_to(folder)

    def _copy_to(self, folder: Path) -> None:
        write_store(folder, self._segments, self._about(), self.center, over=True)

    @contextmanager
    def held_at(self, folder: str | Path) -> Iterator[None]:
        """Keep other processes from writing to ``folder``, if it is the store's home, while the block runs."""
        if self._home is None or Path(folder).resolve() != self._home.folder:
            yield
            return
        with self._home.locked():
            yield

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Let the block put a copy of this store in the place of ``folder``, which stays its home if it was."""
        with self.held_at(folder):
            yield
        if self._home is not None and Path(folder).resolve() == self._home.folder:
            self._home.reload()
            self._searcher.use(self._home.read_lists())

    def _about(self) -> Manifest:
        index = self.index.as_dict()
        return Manifest(self.encoder, self.fingerprint, self.dimension, self.dtype, self.next_id, index)

    def _write(self, home: Home, *, whole: bool) -> None:
        lists = self._searcher.lists
        if lists is not None and lists.are_lost:
            self._searcher.use(None)
        self._build_lists_if_needed()
        home.commit(self._about(), self._searcher, whole=whole)

    def _insert(self, ids: Ids, rows: Vectors, columns: Columns) -> None:
        self._segments.add(ids, rows, columns)
        self._searcher.added(ids)

    def _remove(self, ids: Ids) -> None:
        self._segments.remove(ids)
        self._searcher.removed(ids)

    def _skip_to(self, next_id: int) -> None:
        self._segments.next_id = next_id

    def _find(self, filters: Filters, image_ids: Names | None, matching: re.Pattern[str] | None) -> Ids:
        return self._segments.find(filters, image_ids, matching)

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        with self._lock:
            self._build_lists_if_needed()
        return self._searcher.search(queries, k, filters, exclude)

    def _build_lists_if_needed(self) -> None:
        if self._home is None or not self._searcher.outgrown:
            return
        try:
            self._home.spill()
            self._searcher.build_lists(self._home.pending(), progress=self.progress)
        except FileNotFoundError as error:
            # the whole store was replaced, with all that waited in its folder
            raise self._home.changed() from error

    def _checked(self, center: npt.ArrayLike | None) -> Vectors | None:
        if center is None:
            return None
        center = np.array(center, dtype=np.float32)
        if center.shape != (self.dimension,) or not np.isfinite(center).all():
            raise InputError(f"the centre must be {self.dimension} finite numbers, not of shape {center.shape}")
        return center


class Datastore(LocalStore):
    """Captions and index in memory, kept as a folder; vectors stay in the files they were loaded from, mapped.

    The index is built when it is first needed. ``dtype="float16"`` halves the files and the memory of new captions.
    """

    def __init__(
        self,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        index: str | IndexArguments = "flat",
        dtype: Precision = "float32",
    ) -> None:
        _check(dimension, dtype)
        self.dimension, self.encoder, self.fingerprint = dimension, encoder, fingerprint
        self._lock = threading.Lock()
        self._segments = Segments(dimension, dtype)
        self._searcher = Searcher(self._segments, self._checked(center), _in_memory(index))

    @classmethod
    def load(cls, folder: str | Path, *, index: str | IndexArguments | None = None, verify: bool = False) -> Datastore:
        """Read a store; its vectors stay on disk, mapped. ``verify`` compares every file's sha256."""
        home = Home.open(Path(folder).resolve(), verify=verify)
        if home.manifest.on_disk:
            raise PackError(f"{folder} holds a datastore that is searched on disk: open it with open_store")
        store = cls.__new__(cls)
        store._enter(home, _read_arguments(home) if index is None else _in_memory(index))
        return store

    def set_index(self, index: str | IndexArguments) -> None:
        """Search with another kind of index; it is built when it is needed."""
        self._searcher = Searcher(self._segments, self.center, _in_memory(index))

    def save(self, folder: str | Path) -> None:
        """Write the store to ``folder``: old state or new, whatever happens meanwhile.

        Into the folder it came from only what has changed is written. What another store had there is replaced.
        """
        folder = Path(folder).resolve()
        if self._home is not None and self._home.folder == folder:
            self.commit()
            return
        manifest, written = write_store(folder, self._segments, self._about(), self.center, over=True)
        self._segments.put(0, written)
        self._home = Home(folder, self._segments, manifest, self.center)

    def _raw_search(self) -> Callable[[Vectors, int], SearchResult]:
        return Searcher(self._segments, None, ApproximateArguments()).search


class DiskStore(LocalStore):
    """Captions in a folder, for tens of millions on one machine; a few hundred megabytes of memory are enough.

    New captions are collected in memory and written as a segment when there are many, so that a store is filled in a
    stream. ``commit`` makes them last. From ``minimum_rows`` on they are searched by inverted lists on disk, which
    ``commit`` builds, and builds anew after a tenth has been added; what has come since is searched exactly. The share
    of the true nearest that is found is measured then, and kept in the manifest. Around another centre the lists are
    others: ``centred_by`` gives a store that builds its own when first searched.
    """

    _home: Home

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        """Open the store in a folder; ``verify`` compares every file's sha256."""
        home = Home.open(Path(folder).resolve(), verify=verify)
        if not home.manifest.on_disk:
            raise PackError(f"{folder} holds a datastore that is searched in memory: load it with Datastore.load")
        self._enter(home, _read_arguments(home))

    @classmethod
    def create(
        cls,
        folder: str | Path,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        index: DiskArguments | None = None,
        dtype: Precision = "float16",
    ) -> DiskStore:
        """Make an empty store in a folder that has none."""
        _check(dimension, dtype)
        folder, arguments = Path(folder).resolve(), index or DiskArguments()
        with writing(folder) as writer:
            writer.require_empty()
            writer.commit(Manifest(encoder, fingerprint, dimension, dtype, 0, arguments.as_dict()))
        store = cls(folder)
        store.set_center(center)
        return store

    @property
    def recall(self) -> float | None:
        """The share of the true 13 nearest that the lists find, as measured when they were built; None: all."""
        lists = self._searcher.lists
        return None if lists is None else lists.recall

    def facts(self) -> dict[str, str | int | float]:
        """Return how the captions are searched, what vectors are kept as, and how many of the nearest are found."""
        known, lists = super().facts(), self._searcher.lists
        if lists is not None and isinstance(self.index, DiskArguments):
            known |= {"lists": int(lists.index.nlist), "probes": self.index.probes}
            known |= {f"recall@{RECALL_K} in per cent": round(100 * lists.recall, 2)}
        return known

    def _copy_to(self, folder: Path) -> None:
        if self._home.is_all(self._searcher):
            self._home.copy_files(folder)
            return
        write_store(folder, self._segments, self._about(), self.center, over=False)
        copied = DiskStore(folder)
        if copied._searcher.outgrown:
            copied.commit()

    def _insert(self, ids: Ids, rows: Vectors, columns: Columns) -> None:
        super()._insert(ids, rows, columns)
        waiting = self._segments.all[self._segments.in_files :]
        if sum(segment.matrix.nbytes for segment in waiting) >= SPILL_BYTES:
            self._home.spill()


def _check(dimension: int, dtype: str) -> None:
    if dimension < 1 or dtype not in ("float32", "float16"):
        raise InputError(f"a store needs a dimension of at least 1 and float32 or float16, not {dimension}, {dtype}")


def _in_memory(index: str | IndexArguments) -> IndexArguments:
    arguments = index_arguments(index)
    if isinstance(arguments, DiskArguments):
        raise InputError("a store in memory cannot be searched on disk: make a DiskStore")
    return arguments


def _read_arguments(home: Home) -> IndexArguments:
    values = dict(home.manifest.index)
    try:
        return index_arguments(values.pop("kind"), values)
    except InputError as error:
        raise PackError(f"{home.folder / MANIFEST} is damaged: {error}") from error
