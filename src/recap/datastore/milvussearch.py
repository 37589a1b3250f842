"""The nearest captions of a collection: proposed by Milvus, scored again and put in order here."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids
from recap.datastore.collection import MOST, Collection
from recap.datastore.ranking import SPARE, dot_error, dot_products, rank, sifted
from recap.types import Vectors

ASK = 64
"""So many queries are asked at a time: what they find comes with its vectors."""


def search(
    collection: Collection,
    index: str,
    queries: Vectors,
    k: int,
    condition: str | None,
    unwanted: list[frozenset[str]] | None,
) -> tuple[Ids, Vectors]:
    """Return ids and similarities of the ``k`` nearest that fit ``condition`` (None: nothing does).

    ``unwanted`` names the images that each query leaves out.
    """
    ids, similarities = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
    for start in range(0, len(queries), ASK):
        piece = slice(start, start + ASK)
        found = _Search(collection, index, queries[piece], condition, unwanted and unwanted[piece])
        ids[piece], similarities[piece] = found.ranked(k)
    return ids, similarities


class _Search:
    """A few queries, and what was found for them so far."""

    def __init__(
        self,
        collection: Collection,
        index: str,
        queries: Vectors,
        condition: str | None,
        unwanted: list[frozenset[str]] | None,
    ) -> None:
        self._collection, self._index, self._queries = collection, index, queries
        self._condition, self._unwanted = condition, unwanted
        self._seen: dict[int, tuple[Vectors, str]] = {}
        """Vector and image of each caption that was proposed."""

    def ranked(self, k: int) -> tuple[Ids, Vectors]:
        """Return ids and similarities of the ``k`` best."""
        dimension = self._queries.shape[1]
        result = rank(
            self._propose,
            self._queries,
            k,
            error=dot_error(dimension) if self._index == "FLAT" else float("inf"),
            available=MOST if self._condition is not None else 0,
            spare=0 if self._unwanted is None else SPARE,
            rescore=self._rescore,
        )
        return result.ids, result.similarities

    def _propose(self, asked: Vectors, count: int) -> tuple[Ids, Vectors]:
        ids = np.full((len(asked), count), -1, dtype=np.int64)
        similarities = np.full((len(asked), count), -np.inf, dtype=np.float32)
        fields = ("vector", "image_id")
        hits = self._collection.search(asked, count, self._condition or "", self._index, fields)
        for row, found in enumerate(hits):
            for column, hit in enumerate(found):
                id, entity = int(hit["id"]), hit["entity"]
                ids[row, column], similarities[row, column] = id, hit["distance"]
                self._seen[id] = (np.asarray(entity["vector"], dtype=np.float32), entity["image_id"])
        return ids, similarities

    def _rescore(self, numbers: npt.NDArray[np.intp], ids: Ids) -> Vectors:
        if self._unwanted is not None:
            ids = sifted(ids, [self._unwanted[number] for number in numbers], self._images)
        return dot_products(self._queries[numbers], ids, self._vectors)

    def _images(self, ids: Ids) -> npt.NDArray[np.object_]:
        return np.array([self._seen[id][1] for id in ids.tolist()], dtype=object)

    def _vectors(self, ids: Ids) -> Vectors:
        return stacked((self._seen[id][0] for id in ids.tolist()), self._queries.shape[1])


def stacked(rows: Iterable[npt.ArrayLike], dimension: int) -> Vectors:
    """Return rows as a matrix, also when there are none."""
    return np.array(list(rows), dtype=np.float32).reshape(-1, dimension)
