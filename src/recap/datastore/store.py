"""Captions with their vectors, in memory and on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from recap.datastore import disk
from recap.datastore.base import CaptionRow, Excluded, Filters, Ids, Names, SearchResult
from recap.datastore.index import IndexArguments, index_arguments
from recap.datastore.manifest import DISK, MANIFEST, Manifest, read_manifest
from recap.datastore.mutable import MutableStore
from recap.datastore.searcher import Searcher
from recap.datastore.table import CaptionTable, Mask, VectorBlocks
from recap.errors import InputError, PackError
from recap.types import Vectors


@dataclass(frozen=True, slots=True)
class _Home:
    """Where the store lies on disk, and the captions it has there."""

    folder: Path
    manifest: Manifest
    ids: Ids


class Datastore(MutableStore):
    """Captions in memory, on disk as a folder; their vectors stay in the files they were loaded from, mapped.

    The index is built in memory when it is first needed. ``dtype="float16"`` halves the files and the memory of new
    captions.
    """

    def __init__(
        self,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        index: str | IndexArguments = "flat",
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        if dimension < 1 or dtype not in ("float32", "float16"):
            raise InputError(
                f"a store needs a dimension of at least 1 and float32 or float16, not {dimension}, {dtype}"
            )
        self.dimension = dimension
        self.encoder = encoder
        self.fingerprint = fingerprint
        self.dtype: Literal["float32", "float16"] = dtype
        self._table = CaptionTable()
        self._blocks = VectorBlocks(dimension, dtype)
        self._searcher = Searcher(self._table, self._blocks, self._checked(center), index_arguments(index))
        self._home: _Home | None = None

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[CaptionRow]:
        return iter(self._table)

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self._table.ids.copy()

    @property
    def next_id(self) -> int:
        """The id that the next caption will have."""
        return self._table.next_id

    @property
    def center(self) -> Vectors | None:
        """The vector that is subtracted before searching."""
        return self._searcher.center

    @property
    def index(self) -> IndexArguments:
        """The kind of index and its arguments."""
        return self._searcher.arguments

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, or by none; the index is built again when it is needed."""
        self._searcher = Searcher(self._table, self._blocks, self._checked(center), self.index)

    def centred_by(self, center: npt.ArrayLike | None) -> Datastore:
        """Return the same captions, searched around another centre; this store when the centre is its own.

        Both share the captions: what one adds or removes the other finds. Save them through one of the two.
        """
        wanted = self._checked(center)
        if self._is_centred_by(wanted):
            return self
        twin = copy(self)
        twin.set_center(wanted)
        return twin

    def set_index(self, index: str | IndexArguments) -> None:
        """Search with another kind of index; it is built when it is needed."""
        self._searcher = Searcher(self._table, self._blocks, self.center, index_arguments(index))

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""
        gone = np.zeros(len(self), dtype=bool)
        gone[self._table.positions(ids)] = True
        return self._drop(gone)

    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that fit all that is given; ``matching`` is searched for in the text."""
        mask = self._table.mask(source, None, synthetic, image_ids)
        places = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
        if matching is not None:
            texts = self._table.texts
            places = places[[matching.search(texts[place]) is not None for place in places.tolist()]]
        return self._table.ids[places]

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        return [self._table.row(position) for position in self._table.positions(ids)]

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._blocks.take(self._table.slots[self._table.positions(ids)])

    def ids_of_images(self, image_ids: Iterable[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        codes = self._table.image_ids.codes
        order = np.argsort(codes, kind="stable")
        sorted_codes = codes[order]
        found = []
        for name in image_ids:
            code = self._table.image_ids.find([name])
            ends = np.searchsorted(sorted_codes, [code[0], code[0] + 1]) if len(code) else (0, 0)
            found.append(self._table.ids[order[ends[0] : ends[1]]])
        return found

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        column = self._table.sources
        return {name: int(count) for name, count in zip(column.names, column.counts(), strict=True) if count}

    def save(self, folder: str | Path) -> None:
        """Write the store to ``folder``: old state or new, whatever happens meanwhile.

        Into the folder it came from only what has changed is written. What another store had there is replaced.
        """
        folder = Path(folder).resolve()
        self._home = _Home(folder, self._write(folder, whole=False), self._table.ids)

    def copy_to(self, folder: str | Path) -> None:
        """Write the whole store to ``folder`` without moving there: a later ``compact`` works where it did before."""
        folder = Path(folder).resolve()
        if self._home is not None and self._home.folder == folder:
            self.save(folder)
        else:
            self._write(folder, whole=True)

    @contextmanager
    def held_at(self, folder: str | Path) -> Iterator[None]:
        """Keep other processes from writing to ``folder``, if it is the store's home, while the block runs."""
        folder = Path(folder).resolve()
        if self._home is None or self._home.folder != folder:
            yield
            return
        with disk.writing(folder) as writer:
            self._check_unchanged(writer, self._home)
            yield

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Let the block put a copy of this store in the place of ``folder``, which becomes its home if it was."""
        with self.held_at(folder):
            yield
        folder = Path(folder).resolve()
        if self._home is not None and self._home.folder == folder:
            self._home = _Home(folder, read_manifest(folder), self._table.ids)

    def commit(self) -> None:
        """Save to the folder the store came from or went to last."""
        if self._home is None:
            raise InputError("this store has no folder yet: use save")
        self.save(self._home.folder)

    def facts(self) -> dict[str, str | int | float]:
        """Return how the captions are searched, and what one number of a vector is kept as."""
        return {"search": self.index.kind, "vectors": self.dtype}

    def compact(self) -> None:
        """Get rid of the vectors of removed captions, in memory and in the folder the store came from or went to."""
        if self._home is not None:
            folder = self._home.folder
            manifest = self._write(folder, whole=True)
            self._home = _Home(folder, manifest, self._table.ids)
            kept = [disk.read_vectors(folder, segment, manifest, False) for segment in manifest.segments]
        else:
            kept = list(self._blocks.stream_stored(self._table.slots))
        self._blocks.replace(kept)
        self._table.slots = np.arange(len(self), dtype=np.int64)

    @classmethod
    def load(cls, folder: str | Path, *, index: str | IndexArguments | None = None, verify: bool = False) -> Datastore:
        """Read a store; its vectors stay on disk, mapped. ``verify`` compares every file's sha256."""
        folder = Path(folder).resolve()
        while True:
            manifest = read_manifest(folder)
            try:
                return cls._read(folder, manifest, index, verify)
            except PackError:
                # another process may have replaced the files between the manifest and them
                if read_manifest(folder).generation == manifest.generation:
                    raise

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest, index: str | IndexArguments | None, verify: bool) -> Datastore:
        if manifest.index.get("kind") == DISK:
            raise PackError(f"{folder} holds a datastore that is searched on disk: open it with open_store")
        try:
            values = dict(manifest.index)
            arguments = index_arguments(values.pop("kind"), values) if index is None else index_arguments(index)
            store = cls(
                manifest.dimension,
                encoder=manifest.encoder,
                fingerprint=manifest.fingerprint,
                center=disk.read_center(folder, manifest, verify),
                index=arguments,
                dtype=manifest.dtype,  # type: ignore[arg-type]
            )
        except (InputError, KeyError) as error:
            raise PackError(f"{folder / MANIFEST} is damaged: {error}") from error
        for segment in manifest.segments:
            # first the vectors, which are only mapped: their file shows how many rows there can be
            slots = store._blocks.append(disk.read_vectors(folder, segment, manifest, verify))
            captions = disk.read_captions(folder, segment, verify)
            columns = (captions[name] for name in ("text", "source", "synthetic", "image_id"))
            disk.check_ids(captions["id"], store._table.next_id, manifest.next_id, folder / segment.captions.name)
            store._table.extend(captions["id"], slots, *columns)
        store._table.keep(~np.isin(store._table.ids, disk.read_removed(folder, manifest, verify)))
        store._table.next_id = manifest.next_id
        store._home = _Home(folder, manifest, store._table.ids)
        return store

    def _insert(
        self,
        ids: Ids,
        texts: Sequence[str],
        rows: Vectors,
        sources: Sequence[str],
        synthetic: Sequence[bool],
        image_ids: Sequence[str],
    ) -> None:
        slots = self._blocks.append(rows)
        self._table.extend(ids, slots, texts, sources, synthetic, image_ids)
        self._searcher.added(ids, slots)

    def _skip_to(self, next_id: int) -> None:
        self._table.next_id = next_id

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        mask = self._table.mask(filters.sources, filters.exclude_sources, filters.synthetic)
        return self._searcher.search(queries, k, mask, exclude)

    def _raw_search(self) -> Callable[[Vectors, int], SearchResult]:
        raw = Searcher(self._table, self._blocks, None, index_arguments("approximate"))
        return lambda rows, k: raw.search(rows, k, None, None)

    def _drop(self, gone: Mask) -> int:
        ids = self._table.ids[gone]
        if len(ids):
            self._table.keep(~gone)
            self._searcher.removed(ids)
        return len(ids)

    def _write(self, folder: Path, *, whole: bool) -> Manifest:
        """Write all of the store, or what ``folder`` lacks where it is the store's home, and return the manifest."""
        home = self._home if self._home is not None and self._home.folder == folder else None
        with disk.writing(folder) as writer:
            if home is not None:
                self._check_unchanged(writer, home)
            manifest = Manifest(
                encoder=self.encoder,
                fingerprint=self.fingerprint,
                dimension=self.dimension,
                dtype=self.dtype,
                next_id=self._table.next_id,
                index=self.index.as_dict(),
                center=None if self.center is None else writer.center(self.center),
            )
            if home is None or whole:
                manifest = writer.everything(manifest, self._table, self._blocks)
            else:
                manifest = writer.changes(manifest, home.manifest, self._table, self._blocks, home.ids)
            return writer.commit(manifest)

    @staticmethod
    def _check_unchanged(writer: disk.Writer, home: _Home) -> None:
        if writer.found is None or writer.found.generation != home.manifest.generation:
            raise PackError(f"{home.folder} was changed by another process since it was read; load it again")
