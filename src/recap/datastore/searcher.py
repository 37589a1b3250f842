"""Nearest captions of a table: the index, built when first needed, and the images a query leaves out."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Excluded, Ids, SearchResult, centred, names
from recap.datastore.index import IndexArguments, VectorIndex
from recap.datastore.ranking import dot_products, rank, sifted
from recap.datastore.table import CaptionTable, Codes, Mask, VectorBlocks
from recap.types import Vectors

FEW_EXCLUDED = 512
"""A query that leaves out no more captions than this is searched with the others, and what it finds is sifted."""


class Searcher:
    """Searches the captions of ``table``, whose vectors are in ``blocks``, centred by ``center``."""

    def __init__(
        self, table: CaptionTable, blocks: VectorBlocks, center: Vectors | None, arguments: IndexArguments
    ) -> None:
        self.center = center
        self.arguments = arguments
        self._table = table
        self._blocks = blocks
        self._index: VectorIndex | None = None
        self._version = -1
        """The table's when the index was last equal to it; another searcher's captions may have come since."""
        self._lock = threading.Lock()

    def added(self, ids: Ids, slots: Ids) -> None:
        """Take note that captions have just come into the table."""
        if self._index is not None and self._version == self._table.version - 1:
            self._index.add(ids, centred(self._blocks.take(slots), self.center))
            self._version = self._table.version

    def removed(self, ids: Ids) -> None:
        """Take note that captions have just gone from the table."""
        if self._index is not None and self._version == self._table.version - 1:
            self._index.remove(ids)
            self._version = self._table.version

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions."""
        return centred(self._blocks.take(self._table.slots[self._table.positions(ids)]), self.center)

    def search(self, queries: Vectors, k: int, mask: Mask | None, exclude: Excluded | None) -> SearchResult:
        """Return the ``k`` nearest among the captions in ``mask``, without those of the excluded images."""
        if exclude is None:
            return self._ranked(queries, k, mask)
        images = self._image_codes(exclude)
        counts = self._table.image_ids.counts()
        sizes = np.array([counts[codes].sum() for codes in images], dtype=np.int64)
        few, many = np.flatnonzero(sizes <= FEW_EXCLUDED), np.flatnonzero(sizes > FEW_EXCLUDED)
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        similarities = np.full((len(queries), k), -np.inf, dtype=np.float32)
        if len(few):
            found = self._ranked(queries[few], k, mask, [images[query] for query in few], int(sizes[few].max()))
            ids[few], similarities[few] = found.ids, found.similarities
        for query in many:
            others = ~np.isin(self._table.image_ids.codes, images[query])
            found = self._ranked(queries[query : query + 1], k, others if mask is None else mask & others)
            ids[query], similarities[query] = found.ids[0], found.similarities[0]
        return SearchResult(ids, similarities)

    def _image_codes(self, exclude: Excluded) -> list[Codes]:
        known = self._table.image_ids
        return [np.unique(known.find(name for name in names(entry or ()) if name)) for entry in exclude]

    def _ranked(
        self, queries: Vectors, k: int, mask: Mask | None, excluded: list[Codes] | None = None, spare: int = 0
    ) -> SearchResult:
        left_out = None if excluded is None else [frozenset(codes.tolist()) for codes in excluded]

        def rescore(numbers: npt.NDArray[np.intp], ids: Ids) -> Vectors:
            if spare and left_out is not None:
                ids = sifted(ids, [left_out[number] for number in numbers], self._images)
            return dot_products(queries[numbers], ids, self.vectors)

        allowed = None if mask is None else self._table.ids[mask]
        available = len(self._table) if allowed is None else len(allowed)
        index = self._built()
        return rank(
            lambda asked, count: index.search(asked, count, allowed),
            queries,
            k,
            error=index.error,
            available=available,
            spare=spare,
            rescore=rescore,
        )

    def _images(self, ids: Ids) -> Codes:
        return self._table.image_ids.codes[self._table.positions(ids)]

    def _built(self) -> VectorIndex:
        with self._lock:
            if self._index is None or self._version != self._table.version or self._index.outgrown:
                self._index = None
                self._index = self._build()
                self._version = self._table.version
            return self._index

    def _build(self) -> VectorIndex:
        count, slots = len(self._table), self._table.slots
        index = self.arguments.build(self._blocks.dimension)
        sample = np.sort(np.random.default_rng(0).permutation(count)[: index.sample_size(count)])
        index.prepare(count, centred(self._blocks.take(slots[sample]), self.center))
        for piece, rows in self._blocks.stream(slots):
            index.add(self._table.ids[piece], centred(rows, self.center))
        return index
