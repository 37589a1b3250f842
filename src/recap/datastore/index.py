"""What finds the nearest captions: one abstract index, the arguments of each kind, and the search of a store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionStore, Excluded, Filters, Ids, SearchResult, centred
from recap.datastore.ranking import GATHER_NUMBERS, dot_error, float32_rows, rank
from recap.datastore.segments import Segments
from recap.errors import InputError
from recap.types import Vectors, check_kinds, unit_rows

if TYPE_CHECKING:
    from recap.datastore.lists import Lists

RECALL_K = 13
RECALL_QUERIES = 100
"""An index on disk is measured by how many of the true 13 nearest it finds for so many captions of the store."""

REMEMBERED = 4
"""Filters for which it is kept which captions pass."""

SCANNED_QUERIES = 32
"""So many queries read the stored vectors where they lie; together they take about as long as building an index."""

SCANNED = 512
"""Rows that are scanned at a time: they stay in the cache from their decoding to the last product."""

NEAR = 0.5
"""Rows nearer to the centre are moved away from it before the product, not after, which would cost digits."""


class VectorIndex(ABC):
    """Unit vectors under growing ids, searched by dot product.

    An index proposes; the store computes the similarities of what it proposed once more and puts them in order.
    So an index may round its vectors, as long as it says how far its similarities can be off.
    """

    error: float = float("inf")
    """The largest difference between a similarity it returns and the true one. When finite, nothing better than its
    last result by more than that is missing, and the store's answer is exact."""

    @property
    def outgrown(self) -> bool:
        """Whether it has become so large, or so different, that it should be built anew."""
        return False

    def sample_size(self, rows: int) -> int:
        """Return how many of ``rows`` vectors it wants to see in ``prepare``; 0 when it learns nothing."""
        return 0

    @abstractmethod
    def prepare(self, rows: int, sample: Vectors) -> None:
        """Make ready, once and while empty, for about ``rows`` vectors that look like ``sample``."""

    @abstractmethod
    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Append unit rows; ``ids`` are ascending and above all before."""

    @abstractmethod
    def remove(self, ids: Ids) -> None:
        """Forget the vectors of ``ids`` (ascending, all present)."""

    @abstractmethod
    def search(self, queries: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return ids and similarities, (queries, k), best first, among ``allowed`` (ascending) where given.

        Where fewer exist the id is -1 and the similarity minus infinity.
        """

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory its vectors take."""


@dataclass(frozen=True, slots=True)
class IndexArguments:
    """Base of the arguments of an index; an instance says which kind and how."""

    kind: ClassVar[str]

    def build(self, dimension: int) -> VectorIndex:
        """Return an empty index in memory; of an index on disk, one for captions that are not in its lists yet."""
        from recap.datastore.faiss import ApproximateIndex, ExactIndex

        if isinstance(self, ApproximateArguments):
            return ApproximateIndex(dimension, self)
        return ExactIndex(dimension, half=not isinstance(self, FlatArguments))

    def as_dict(self) -> dict[str, Any]:
        """Return kind and arguments as plain values, ready for json."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class FlatArguments(IndexArguments):
    """Exact search over float32: 4 bytes a number."""

    kind: ClassVar[str] = "flat"


@dataclass(frozen=True, slots=True)
class HalfArguments(IndexArguments):
    """Exact search over float16: 2 bytes a number, and the same answers as ``flat``."""

    kind: ClassVar[str] = "half"


@dataclass(frozen=True, slots=True)
class ListArguments(IndexArguments):
    """Base of the arguments of inverted lists, of which a search looks at the ``probes`` nearest only."""

    probes: int = 64
    lists: int = 0
    """0: the square root of the number of vectors."""
    minimum_rows: int = 20_000
    """Below this the search is exact."""
    sample_per_list: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.probes < 1 or self.lists < 0 or self.minimum_rows < 1 or self.sample_per_list < 1:
            raise InputError("probes, minimum_rows and sample_per_list must be at least 1, and lists at least 0")

    def list_count(self, rows: int) -> int:
        """Return the number of lists for that many vectors."""
        return self.lists or int(rows**0.5)

    def sample_size(self, rows: int) -> int:
        """Return how many of that many vectors the lists are trained on."""
        return min(rows, self.list_count(rows) * self.sample_per_list)


@dataclass(frozen=True, slots=True)
class ApproximateArguments(ListArguments):
    """Inverted lists over float16, in memory.

    On COCO captions (MiniLM, 100,000 x 384) 64 probes find 99.4% of the true 13 nearest in a seventh of the time a
    single query takes with ``flat``; 16 find 95.8% in a thirtieth. A graph (HNSW) answered three times as fast as the
    64 probes at 99.2%, but took sixteen times as long to build and cannot forget captions.
    """

    kind: ClassVar[str] = "approximate"


@dataclass(frozen=True, slots=True)
class DiskArguments(ListArguments):
    """Inverted lists of 8-bit codes that stay on disk, for stores larger than memory; see ``DiskStore``."""

    kind: ClassVar[str] = "disk"

    minimum_rows: int = 100_000
    """Below this the search is exact, in memory."""


KINDS: dict[str, type[IndexArguments]] = {
    a.kind: a for a in (FlatArguments, HalfArguments, ApproximateArguments, DiskArguments)
}


def index_arguments(kind: str | IndexArguments, values: dict[str, Any] | None = None) -> IndexArguments:
    """Return the arguments of a kind given by name; unknown names and values raise ``InputError``."""
    if isinstance(kind, IndexArguments):
        return kind
    if kind not in KINDS:
        raise InputError(f"unknown index {kind!r}; choose one of {', '.join(KINDS)}")
    values = values or {}
    unknown = sorted(set(values) - {field.name for field in fields(KINDS[kind])})
    if unknown:
        raise InputError(f"the index {kind!r} has no argument {', '.join(unknown)}")
    try:
        made = KINDS[kind](**values)
        check_kinds(made)
    except TypeError as error:
        raise InputError(f"the index {kind!r}: {error}") from error
    return made


class Scan:
    """The exact search of an index, in the stored vectors themselves: nothing is built, and nothing kept."""

    def __init__(self, segments: Segments, center: Vectors | None) -> None:
        self._segments = segments
        self._center = center
        # the difference of two products, divided by a distance of at least NEAR that comes from two more
        self.error = 8 * dot_error(segments.dimension) / NEAR**2

    def __len__(self) -> int:
        return len(self._segments)

    def search(self, queries: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return ids and similarities as an index does."""
        parts = [(ids, self._similarities(rows, queries)) for ids, rows in self._segments.stored(SCANNED)]
        ids = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
        found = np.concatenate([np.empty((0, len(queries)), np.float32), *(part for _, part in parts)]).T
        if allowed is not None:
            ids, found = allowed, found[:, np.searchsorted(ids, allowed)]
        if missing := max(0, k - len(ids)):
            ids = np.pad(ids, (0, missing), constant_values=-1)
            found = np.pad(found, ((0, 0), (0, missing)), constant_values=-np.inf)
        order = np.argpartition(-found, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(found, order, axis=1)
        ranked = np.argsort(-best, axis=1, kind="stable")
        return ids[np.take_along_axis(order, ranked, axis=1)], np.take_along_axis(best, ranked, axis=1)

    def _similarities(self, stored: npt.NDArray[Any], queries: Vectors) -> Vectors:
        """Return the similarity of each stored row with each query."""
        rows = float32_rows(stored)
        center = np.zeros(rows.shape[1], np.float32) if self._center is None else self._center
        with np.errstate(all="ignore"):  # of rows without a direction
            products = rows @ np.vstack([queries, center]).T
            products /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
            distances = np.sqrt(np.maximum(1 + center @ center - 2 * products[:, -1], 0))
            similarities: Vectors = (products[:, :-1] - queries @ center) / distances[:, None]
        if (near := np.flatnonzero(distances < NEAR)).size:
            similarities[near] = centred(unit_rows(rows[near]), self._center) @ queries.T
        return np.where(np.isnan(similarities), -np.inf, similarities)


def build_index(store: CaptionStore) -> None:
    """Let a store build what many searches are answered from now, and not in the midst of them."""
    store.search(np.ones((SCANNED_QUERIES + 1, store.dimension), np.float32), 1)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The captions that pass some filters."""

    in_lists: int
    """How many of those in the lists."""
    selector: Any
    """Lets these pass; None: all of them pass."""
    fresh: Ids | None
    """Those outside of the lists; None: all of them."""


class Searcher:
    """Searches captions, centred by ``center``: those in inverted lists on disk there, all others in memory."""

    def __init__(self, segments: Segments, center: Vectors | None, arguments: IndexArguments) -> None:
        self.center = center
        self.arguments = arguments
        self.lists: Lists | None = None
        self._segments = segments
        self._index: VectorIndex | None = None
        """Of the captions that are not in the lists; built when first needed."""
        self._version = -1
        """The segments' when ``_index`` was last equal to them; another searcher's captions may have come since."""
        self._scanned = 0
        self._lock = threading.Lock()
        self._remembered: dict[tuple[Filters, int], _Allowed] = {}
        """Which captions pass, by filters and the segments' version."""

    def added(self, ids: Ids) -> None:
        """Take note that captions have just come."""
        if self._index is not None and self._version == self._segments.version - 1:
            self._index.add(ids, self.vectors(ids))
            self._version = self._segments.version

    def removed(self, ids: Ids) -> None:
        """Take note that captions have just gone."""
        if self._index is not None and self._version == self._segments.version - 1:
            self._index.remove(ids[ids >= self._first_fresh])
            self._version = self._segments.version

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions."""
        return centred(self._segments.vectors(ids), self.center)

    @property
    def outgrown(self) -> bool:
        """Whether lists on disk should be made, or made anew because too much has come since."""
        if not isinstance(self.arguments, DiskArguments):
            return False
        if self.lists is None:
            return len(self._segments) >= self.arguments.minimum_rows
        fresh = self._segments.count_from(self._first_fresh)
        return fresh > max(self.arguments.minimum_rows, self.lists.rows // 10)

    def use(self, lists: Lists | None) -> None:
        """Search these lists, or none."""
        self.lists, self._index = lists, None
        self._remembered.clear()

    def build_lists(self, folder: Path, *, progress: bool = False) -> None:
        """Make the lists, in files in ``folder``, and measure how many of the nearest they find."""
        from recap.datastore.lists import build_lists, measure_recall

        assert isinstance(self.arguments, DiskArguments)
        self.use(build_lists(self._segments, self.center, self.arguments, folder, progress=progress))
        assert self.lists is not None
        self.lists.recall = measure_recall(self._segments, self.center, self.arguments.seed, self.search)

    def search(
        self, queries: Vectors, k: int, filters: Filters | None = None, exclude: Excluded | None = None
    ) -> SearchResult:
        """Return the ``k`` nearest among the captions that pass ``filters``, without those of the excluded images."""
        with self._lock:
            index = self._scan(len(queries)) or self._up_to_date()
            allowed = self._allowed(filters or Filters())
        lists, arguments = self.lists, self.arguments

        def propose(asked: Vectors, count: int) -> tuple[Ids, Vectors]:
            found = index.search(asked, count, allowed.fresh)
            if lists is None:
                return found
            assert isinstance(arguments, DiskArguments)
            there = lists.search(asked, count, arguments.probes, allowed.in_lists, allowed.selector)
            return _best(count, *there, *found)

        found = rank(
            propose,
            queries,
            k,
            error=index.error if lists is None else float("inf"),
            available=allowed.in_lists + (len(index) if allowed.fresh is None else len(allowed.fresh)),
            vectors=self.vectors,
            images=self._segments.image_ids,
            exclude=exclude,
        )
        return SearchResult(*found)

    def _scan(self, queries: int) -> Scan | None:
        """Return what takes the place of an index at first: who captions one picture never needs to build one."""
        exact = isinstance(self.arguments, FlatArguments | HalfArguments) and self.lists is None
        if not exact or self._index is not None or self._scanned + queries > SCANNED_QUERIES:
            return None
        if queries * len(self._segments) > GATHER_NUMBERS:
            return None
        self._scanned += queries
        return Scan(self._segments, self.center)

    @property
    def _first_fresh(self) -> int:
        return 0 if self.lists is None else self.lists.next_id

    def _up_to_date(self) -> VectorIndex:
        if self._index is None or self._version != self._segments.version or self._index.outgrown:
            self._index = None
            self._index = self._build()
            self._version = self._segments.version
        return self._index

    def _build(self) -> VectorIndex:
        segments, index = self._segments, self.arguments.build(self._segments.dimension)
        rows = len(segments) if self.lists is None else segments.count_from(self._first_fresh)
        sample = segments.sample(index.sample_size(rows), 0)
        index.prepare(rows, centred(sample, self.center))
        for ids, vectors in segments.stream(self._first_fresh):
            index.add(ids, centred(vectors, self.center))
        return index

    def _allowed(self, filters: Filters) -> _Allowed:
        if self.lists is None and filters == Filters():
            return _Allowed(0, None, None)
        key = (filters, self._segments.version)
        if key not in self._remembered:
            if len(self._remembered) == REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = self._find_allowed(filters)
        return self._remembered[key]

    def _find_allowed(self, filters: Filters) -> _Allowed:
        ids, first = self._segments.find(filters), self._first_fresh
        old, fresh = np.split(ids, [int(np.searchsorted(ids, first))])
        chosen = None
        if self.lists is not None and len(old) < self.lists.rows:
            from recap.datastore.faiss import selector

            passing = np.zeros(first, dtype=bool)
            passing[old] = True
            chosen = selector(passing)
        return _Allowed(len(old), chosen, None if filters == Filters() else fresh)


def _best(k: int, ids: Ids, similarities: Vectors, more: Ids, their: Vectors) -> tuple[Ids, Vectors]:
    """Return the ``k`` best of two results."""
    ids, similarities = np.concatenate([ids, more], axis=1), np.concatenate([similarities, their], axis=1)
    order = np.lexsort((ids, -similarities), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarities, order, axis=1)
