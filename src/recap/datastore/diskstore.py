"""A store that is larger than memory: captions, vectors and index are read where they lie on disk."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from recap.datastore import disk
from recap.datastore.base import CaptionRow, Excluded, Filters, Ids, Names, SearchResult
from recap.datastore.diskhome import DiskHome
from recap.datastore.index import RECALL_K, DiskArguments
from recap.datastore.manifest import DISK, Manifest
from recap.datastore.mutable import MutableStore
from recap.datastore.parts import Parts
from recap.errors import InputError
from recap.files import atomic_folder
from recap.types import Vectors

SPILL_BYTES = 256 << 20
"""So much is collected in memory before it goes to the disk."""


class DiskStore(MutableStore):
    """Captions in a folder, for tens of millions on one machine; a few hundred megabytes of memory are enough.

    New captions are collected in memory and written as a segment when there are many, so that a store is filled in a
    stream. ``commit`` makes them last. From ``minimum_rows`` on they are searched by inverted lists on disk, which
    ``commit`` builds, and builds anew after a tenth has been added; what has come since is searched exactly. The share
    of the true nearest that is found is measured then, and kept in the manifest. Around another centre the lists are
    others: ``centred_by`` gives a store that builds its own when first searched.
    """

    _parts: Parts

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        """Open the store in a folder; ``verify`` compares every file's sha256."""
        self._lock = threading.Lock()
        self._enter(DiskHome(Path(folder).resolve(), verify=verify))

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
        dtype: Literal["float32", "float16"] = "float16",
    ) -> DiskStore:
        """Make an empty store in a folder that has none."""
        if dimension < 1 or dtype not in ("float32", "float16"):
            raise InputError(
                f"a store needs a dimension of at least 1 and float32 or float16, not {dimension}, {dtype}"
            )
        folder = Path(folder).resolve()
        arguments = index or DiskArguments()
        with disk.writing(folder) as writer:
            if writer.found is not None:
                raise InputError(f"{folder} holds a datastore already")
            writer.commit(Manifest(encoder, fingerprint, dimension, dtype, 0, arguments.as_dict()))
        store = cls(folder)
        store.set_center(center)
        return store

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self._parts.ids

    @property
    def next_id(self) -> int:
        """The id that the next caption will have."""
        return self._parts.table.next_id

    @property
    def center(self) -> Vectors | None:
        """The vector that is subtracted before searching."""
        return self._searcher.center

    @property
    def dtype(self) -> str:
        """What one number of a vector is kept as."""
        return self._parts.dtype

    @property
    def index(self) -> DiskArguments:
        """How captions are searched."""
        return self._searcher.arguments

    @property
    def recall(self) -> float | None:
        """The share of the true 13 nearest that the lists find, as measured when they were built; None: all."""
        lists = self._searcher.lists
        return None if lists is None else lists.recall

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, or by none; the lists are built again when they are needed."""
        from recap.datastore.disksearch import DiskSearcher

        wanted = self._checked(center)
        if not self._is_centred_by(wanted):
            self._searcher = DiskSearcher(self._parts, wanted, self.index)

    def centred_by(self, center: npt.ArrayLike | None) -> DiskStore:
        """Return the same captions, searched around another centre; this store when the centre is its own.

        Both share the captions: what one adds or removes the other finds, until one of them is compacted. Commit them
        through one of the two; each writes its own centre and lists.
        """
        wanted = self._checked(center)
        if self._is_centred_by(wanted):
            return self
        twin = copy(self)
        twin.set_center(wanted)
        return twin

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""
        gone = np.unique(np.asarray(ids, dtype=np.int64))
        self._parts.check(gone)
        if len(gone):
            self._parts.remove(gone)
            self._searcher.removed(gone)
        return len(gone)

    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that fit all that is given, by looking at all of them."""
        filters, table, found = Filters.of(source, None, synthetic), self._parts.table, []
        for segment in self._parts.segments:
            mask, alive = segment.mask(filters, image_ids), self._parts.alive(segment)
            alive = alive if mask is None else alive & mask
            found.append(segment.ids[alive if matching is None else segment.matching(matching, alive)])
        mask = table.mask(filters.sources, None, synthetic, image_ids)
        places = np.arange(len(table)) if mask is None else np.flatnonzero(mask)
        if matching is not None:
            places = places[[matching.search(table.texts[place]) is not None for place in places.tolist()]]
        return np.concatenate([*found, table.ids[places]])

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        return self._parts.rows(ids)

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._parts.vectors(ids)

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        column = self._parts.table.sources
        counts = [dict(zip(column.names, column.counts().tolist(), strict=True))]
        counts += [segment.source_counts(self._parts.alive(segment)) for segment in self._parts.segments]
        total: dict[str, int] = {}
        for part in reversed(counts):
            for name, count in part.items():
                total[name] = total.get(name, 0) + count
        return {name: count for name, count in total.items() if count}

    def facts(self) -> dict[str, str | int | float]:
        """Return how the captions are searched, what vectors are kept as, and how many of the nearest are found."""
        known: dict[str, str | int | float] = {"search": DISK, "vectors": self.dtype}
        lists = self._searcher.lists
        if lists is not None:
            known |= {"lists": int(lists.index.nlist), "probes": self.index.probes}
            known |= {f"recall@{RECALL_K} in per cent": round(100 * lists.recall, 2)}
        return known

    def copy_to(self, folder: str | Path) -> None:
        """Write the whole store to ``folder``, and stay where it is."""
        folder = Path(folder).resolve()
        if folder == self._home.folder:
            self.commit()
            return
        if self._home.is_all(self._searcher):
            self._home.copy_files(folder)
            return
        copied = DiskStore.create(
            folder,
            self.dimension,
            encoder=self.encoder,
            fingerprint=self.fingerprint,
            center=self.center,
            index=self.index,
            dtype=self.dtype,  # type: ignore[arg-type]
        )
        copied.take_over(self)
        copied.commit()

    def commit(self) -> None:
        """Make the changes last: old state or new, whatever happens meanwhile."""
        self._searcher.forget_lost_lists()
        self._parts.recall_small()
        self._parts.spill(self._home.pending())
        self._build_if_needed()
        self._home.commit(self._searcher)

    def compact(self) -> None:
        """Write the folder anew, without the captions that have been removed."""
        folder = self._home.folder
        with self.replaced_at(folder), atomic_folder(folder) as target:
            self.copy_to(target)

    @contextmanager
    def held_at(self, folder: str | Path) -> Iterator[None]:
        """Keep other processes from writing to ``folder``, if it is the store's home, while the block runs."""
        if Path(folder).resolve() != self._home.folder:
            yield
            return
        with self._home.locked():
            yield

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Let the block put a copy of this store in the place of ``folder``, which becomes its home if it was."""
        with self.held_at(folder):
            yield
        if Path(folder).resolve() == self._home.folder:
            self._enter(DiskHome(self._home.folder))

    def _lines(self) -> Iterator[bytes]:
        for segment in self._parts.segments:
            yield from segment.lines(self._parts.alive(segment))
        for row in self._parts.table:
            yield row.line

    def _insert(
        self,
        ids: Ids,
        texts: Sequence[str],
        rows: Vectors,
        sources: Sequence[str],
        synthetic: Sequence[bool],
        image_ids: Sequence[str],
    ) -> None:
        self._parts.add(ids, texts, rows, sources, synthetic, image_ids)
        self._searcher.added(ids, rows)
        if self._parts.bytes_in_memory >= SPILL_BYTES:
            self._parts.spill(self._home.pending())

    def _skip_to(self, next_id: int) -> None:
        self._parts.table.next_id = next_id

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        with self._lock:
            self._build_if_needed()
        return self._searcher.search(queries, k, filters, exclude)

    def _build_if_needed(self) -> None:
        if self._searcher.outgrown:
            folder = self._home.pending()
            try:
                self._parts.spill(folder)
                self._searcher.build(folder)
            except FileNotFoundError as error:
                # the whole store was replaced, with all that waited in its folder
                raise self._home.changed() from error

    def _enter(self, home: DiskHome) -> None:
        about = home.manifest
        self.dimension, self.encoder, self.fingerprint = about.dimension, about.encoder, about.fingerprint
        self._home, self._parts, self._searcher = home, home.parts, home.searcher()
