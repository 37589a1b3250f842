"""Several stores queried as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids, SearchResult, require_same_encoder
from recap.datastore.store import Datastore
from recap.errors import InputError
from recap.types import Evidence, Vectors

ID_BITS = 48
"""An id of a view is the number of the store above this many bits, and the caption's id in it below."""


class DatastoreView:
    """Stores of one encoder, centred alike, as if their captions lay together.

    Its ids say which store a caption is in: ``locate`` takes them apart. Equal similarities are in the order of the
    stores. The stores stay what they are; what changes in them shows in the view.
    """

    def __init__(self, stores: Sequence[Datastore]) -> None:
        if not stores:
            raise InputError("a view needs at least one store")
        self.stores = tuple(stores)
        first = self.stores[0]
        self.dimension, self.encoder, self.fingerprint = first.dimension, first.encoder, first.fingerprint
        for store in self.stores[1:]:
            require_same_encoder(first, store)

    def __len__(self) -> int:
        return sum(map(len, self.stores))

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre all stores by the same mean text vector."""
        for store in self.stores:
            store.set_center(center)

    def centred_by(self, center: npt.ArrayLike | None) -> DatastoreView:
        """Return a view of the same captions, searched around another centre."""
        return DatastoreView([store.centred_by(center) for store in self.stores])

    def copy_to(self, folder: str | Path) -> None:
        """Write the captions of all stores to ``folder`` as one store."""
        first = self.stores[0]
        joined = Datastore(
            self.dimension,
            encoder=self.encoder,
            fingerprint=self.fingerprint,
            center=first.center,
            index=first.index,
            dtype=first.dtype,
        )
        for store in self.stores:
            joined.merge(store)
        joined.copy_to(folder)

    def search(self, queries: npt.ArrayLike, k: int, **filters: Any) -> SearchResult:
        """Return the ``k`` nearest captions of all stores; the filters are those of ``Datastore.search``."""
        first = self.stores[0]
        for store in self.stores[1:]:
            if not np.array_equal(_or_empty(first.center), _or_empty(store.center)):
                raise InputError("the stores of a view must be centred alike: call set_center on the view first")
        found = [store.search(queries, k, **filters) for store in self.stores]
        ids = np.concatenate([_global(number, result.ids) for number, result in enumerate(found)], axis=1)
        similarities = np.concatenate([result.similarities for result in found], axis=1)
        order = np.lexsort((ids, -similarities), axis=1)[:, :k]
        return SearchResult(np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarities, order, axis=1))

    def locate(self, id: int) -> tuple[Datastore, int]:
        """Return the store of a caption and its id there."""
        number, local = divmod(int(id), 1 << ID_BITS)
        if not 0 <= number < len(self.stores):
            raise InputError(f"no caption has the id {id}")
        return self.stores[number], local

    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""
        evidence: list[Evidence] = []
        for id, similarity in zip(np.asarray(ids).tolist(), np.asarray(similarities).tolist(), strict=True):
            if id >= 0:
                store, local = self.locate(id)
                evidence += store.evidence([local], [similarity])
        return tuple(evidence)

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions."""
        return self._gathered(ids, "vectors")

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._gathered(ids, "raw_vectors")

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has in all stores together."""
        total: dict[str, int] = {}
        for store in self.stores:
            for name, count in store.sources().items():
                total[name] = total.get(name, 0) + count
        return total

    def _gathered(self, ids: npt.ArrayLike, method: str) -> Vectors:
        located = [self.locate(id) for id in np.asarray(ids, dtype=np.int64)]
        rows = [np.asarray(getattr(store, method)([local])) for store, local in located]
        return np.concatenate([np.empty((0, self.dimension), dtype=np.float32), *rows])


def _global(number: int, ids: Ids) -> Ids:
    return np.where(ids < 0, -1, ids + (number << ID_BITS))


def _or_empty(center: Vectors | None) -> npt.NDArray[Any]:
    return np.zeros(0) if center is None else center
