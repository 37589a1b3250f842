"""Stores opened and taken together: a folder or an address, several as one, and images beside captions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from recap.datastore.base import (
    BATCH,
    CaptionRow,
    Excluded,
    Ids,
    MutableStore,
    SearchResult,
    is_same_center,
    require_same_encoder,
)
from recap.datastore.manifest import read_manifest
from recap.datastore.store import Datastore, DiskStore
from recap.errors import InputError
from recap.types import Evidence, Vectors

MILVUS = "milvus:"
DATABASES = {MILVUS: "recap.datastore.milvus"}
"""Modules of databases by how their addresses begin; each has ``open_address``, ``fill`` and ``check_free``."""

ID_BITS = 48
"""An id of a view is the number of the store above this many bits, and the caption's id in it below."""


class DatastoreView:
    """Stores of one encoder, centred alike, as if their captions lay together.

    Its ids say which store a caption is in: ``locate`` takes them apart. Equal similarities are in the order of the
    stores. The stores stay what they are; what changes in them shows in the view.
    """

    def __init__(self, stores: Sequence[MutableStore], *, url: str = "") -> None:
        if not stores:
            raise InputError("a view needs at least one store")
        self.stores = tuple(stores)
        self.url = url
        """Where the stores are when they have one address together."""
        first = self.stores[0]
        self.dimension, self.encoder, self.fingerprint = first.dimension, first.encoder, first.fingerprint
        for store in self.stores[1:]:
            require_same_encoder(first, store)

    def __len__(self) -> int:
        return sum(map(len, self.stores))

    def __iter__(self) -> Iterator[CaptionRow]:
        for number, store in enumerate(self.stores):
            for row in store:
                yield replace(row, id=row.id + (number << ID_BITS))

    @property
    def ids(self) -> Ids:
        """The ids of all captions, store by store."""
        return self.find()

    def find(self, **filters: Any) -> Ids:
        """Return the ids of the captions that fit; the filters are those of ``MutableStore.find``."""
        return np.concatenate([_global(number, store.find(**filters)) for number, store in enumerate(self.stores)])

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        wanted = np.asarray(ids, dtype=np.int64)
        found: dict[int, CaptionRow] = {}
        for store, places, local in self._by_store(wanted):
            found.update(zip(places.tolist(), store.rows(local), strict=True))
        return [replace(found[place], id=int(id)) for place, id in enumerate(wanted)]

    def walk(self, ids: Ids) -> Iterator[CaptionRow]:
        """Yield captions by id without having all of them in memory at once."""
        for start in range(0, len(ids), BATCH):
            yield from self.rows(ids[start : start + BATCH])

    def facts(self) -> dict[str, str | int | float]:
        """Return what there is to know about the first of the stores, and how many there are."""
        return {**self.stores[0].facts(), "stores": len(self.stores)}

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre all stores by the same mean text vector."""
        for store in self.stores:
            store.set_center(center)

    def centred_by(self, center: npt.ArrayLike | None) -> DatastoreView:
        """Return a view of the same captions, searched around another centre."""
        return DatastoreView([store.centred_by(center) for store in self.stores], url=self.url)

    def copy_to(self, folder: str | Path) -> None:
        """Write the captions of all stores to ``folder`` as one store."""
        first = self.stores[0]
        about: dict[str, Any] = {"encoder": self.encoder, "fingerprint": self.fingerprint, "center": first.center}
        if isinstance(first, Datastore):
            joined = Datastore(self.dimension, index=first.index, dtype=first.dtype, **about)
            for store in self.stores:
                joined.merge(store)
            joined.copy_to(folder)
            return
        # a database keeps vectors in full, so nothing is to be lost of them
        dtype: Any = getattr(first, "dtype", "float32")
        on_disk = DiskStore.create(folder, self.dimension, dtype=dtype, **about)
        for store in self.stores:
            on_disk.merge(store)
        on_disk.commit()

    def search(self, queries: npt.ArrayLike, k: int, **filters: Any) -> SearchResult:
        """Return the ``k`` nearest captions of all stores; the filters are those of ``MutableStore.search``."""
        first = self.stores[0]
        for store in self.stores[1:]:
            if not is_same_center(first.center, store.center):
                raise InputError("the stores of a view must be centred alike: call set_center on the view first")
        found = [store.search(queries, k, **filters) for store in self.stores]
        ids = np.concatenate([_global(number, result.ids) for number, result in enumerate(found)], axis=1)
        similarities = np.concatenate([result.similarities for result in found], axis=1)
        order = np.lexsort((ids, -similarities), axis=1)[:, :k]
        return SearchResult(np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarities, order, axis=1))

    def locate(self, id: int) -> tuple[MutableStore, int]:
        """Return the store of a caption and its id there."""
        number, local = divmod(int(id), 1 << ID_BITS)
        if not 0 <= number < len(self.stores):
            raise InputError(f"no caption has the id {id}")
        return self.stores[number], local

    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""
        wanted, known = np.asarray(ids, dtype=np.int64), np.asarray(similarities)
        found: dict[int, Evidence] = {}
        for store, places, local in self._by_store(wanted):
            found.update(zip(places.tolist(), store.evidence(local, known[places]), strict=True))
        return tuple(found[place] for place in sorted(found))

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions."""
        return self._gathered(ids, "vectors")

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._gathered(ids, "raw_vectors")

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has in all stores together."""
        return dict(sum((Counter(store.sources()) for store in self.stores), Counter()))

    def content_hash(self) -> str:
        """Return what differs between views with other captions."""
        return hashlib.sha256(" ".join(store.content_hash() for store in self.stores).encode()).hexdigest()

    def _gathered(self, ids: npt.ArrayLike, method: str) -> Vectors:
        wanted = np.asarray(ids, dtype=np.int64)
        rows = np.empty((len(wanted), self.dimension), dtype=np.float32)
        for store, places, local in self._by_store(wanted):
            rows[places] = getattr(store, method)(local)
        return rows

    def _by_store(self, ids: Ids) -> Iterator[tuple[MutableStore, npt.NDArray[np.intp], Ids]]:
        """Yield each store that has some of ``ids``, where these stand, and their ids there; -1 is nowhere."""
        numbers = ids >> ID_BITS
        for number in np.unique(numbers[ids >= 0]):
            places = np.flatnonzero(numbers == number)
            yield self.locate(int(ids[places[0]]))[0], places, ids[places] & ((1 << ID_BITS) - 1)


def _global(number: int, ids: Ids) -> Ids:
    return np.where(ids < 0, -1, ids + (number << ID_BITS))


def is_address(location: object) -> TypeGuard[str]:
    """Tell whether a location is the address of a database, not a folder or a kind of index."""
    return isinstance(location, str) and location.startswith(tuple(DATABASES))


def database_of(address: str) -> Any:
    """Import the module of the database that an address leads to; see ``DATABASES``."""
    return import_module(next(module for start, module in DATABASES.items() if address.startswith(start)))


def open_store(location: str | Path, *, verify: bool = False) -> MutableStore | DatastoreView:
    """Open the store in a folder, or at an address such as ``milvus:http://host:19530?collection=captions``.

    With several collections, separated by commas, it is a view of all of them. ``verify`` compares the sha256 of files.
    """
    if is_address(location):
        opened: MutableStore | DatastoreView = database_of(location).open_address(location)
        return opened
    if read_manifest(Path(location)).on_disk:
        return DiskStore(location, verify=verify)
    return Datastore.load(location, verify=verify)


class ImageTable:
    """Vectors of images under their names, beside a store that has their captions.

    Inside it is a store whose captions are the names, so that it is searched, saved and loaded in the same way.
    """

    def __init__(self, dimension: int, **options: Any) -> None:
        """Make an empty table; the options are those of ``Datastore``."""
        self._images = Datastore(dimension, **options)

    def __len__(self) -> int:
        return len(self._images)

    def __contains__(self, image_id: str) -> bool:
        return len(self._images.find(image_ids=image_id)) > 0

    @property
    def fingerprint(self) -> str:
        """The image encoder's fingerprint."""
        return self._images.fingerprint

    def add_images(self, image_ids: Sequence[str], vectors: npt.ArrayLike) -> None:
        """Add the image encoder's rows; an image that is there already gets the new one."""
        if len(set(image_ids)) != len(image_ids):
            raise InputError("an image was given twice in one call")
        before = self._images.find(image_ids=image_ids)
        self._images.add(image_ids, vectors, image_ids=image_ids)
        self._images.remove(before)

    def remove_images(self, image_ids: Sequence[str]) -> int:
        """Remove images by name, and return how many were there."""
        return self._images.remove_where(image_ids=image_ids)

    def search_images(
        self, queries: Vectors, k: int, *, exclude_image_ids: Excluded | None = None
    ) -> list[list[tuple[str, float]]]:
        """Return for each query the names of the ``k`` nearest images with their similarities, best first."""
        found = self._images.search(queries, k, exclude_image_ids=exclude_image_ids)
        pairs = zip(found.ids, found.similarities, strict=True)
        return [[(item.text, item.similarity) for item in self._images.evidence(*pair)] for pair in pairs]

    def search_captions(
        self, store: MutableStore, queries: Vectors, k_images: int, *, exclude_image_ids: Excluded | None = None
    ) -> SearchResult:
        """Return the captions that ``store`` has of the ``k_images`` nearest images, with the images' similarities.

        The result has as many columns as the longest row needs.
        """
        images = self.search_images(queries, k_images, exclude_image_ids=exclude_image_ids)
        names = list(dict.fromkeys(name for row in images for name, _ in row))
        captions = dict(zip(names, store.ids_of_images(names), strict=True))
        rows = [[(id, near) for name, near in row for id in captions[name].tolist()] for row in images]
        width = max(map(len, rows), default=0)
        ids = np.full((len(rows), width), -1, dtype=np.int64)
        similarities = np.full((len(rows), width), -np.inf, dtype=np.float32)
        for number, row in enumerate(rows):
            if row:
                ids[number, : len(row)], similarities[number, : len(row)] = zip(*row, strict=True)
        return SearchResult(ids, similarities)

    def save(self, folder: str | Path) -> None:
        """Write the table to ``folder``, as ``Datastore.save`` does."""
        self._images.save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> ImageTable:
        """Read a table."""
        table = cls.__new__(cls)
        table._images = Datastore.load(folder)
        return table
