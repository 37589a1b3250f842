"""The indexes on FAISS: its kernels and containers, and a way to use BLAS whenever BLAS is faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import faiss as faiss_module
import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids, Mask
from recap.datastore.index import ApproximateArguments, ListArguments, VectorIndex
from recap.datastore.ranking import dot_error, float32_rows
from recap.types import Vectors

faiss: Any = faiss_module
"""Its type stubs know the C++ signatures only, not those of its Python layer."""

SMALL_BATCH = 4
"""From this many queries on BLAS wins: at d = 1024 it takes a seventh of FAISS's plain loop for 64 queries, three
quarters for 4, and twice and a half as much for one."""

BLOCK = 4096
"""Rows that are decoded or gathered at a time: small enough to stay in the cache until BLAS reads them."""

ROWS_PER_THREAD = 8192
"""A thread is started for no fewer rows."""

_blas_lock = threading.Lock()
_blas_users = 0
_blas_threshold = 0


@contextmanager
def _blas() -> Iterator[None]:
    """Make FAISS use BLAS inside the block, whatever the size of the batch.

    The threshold is global to FAISS. The first thread in sets it and the last one out puts it back. It only chooses
    between two ways of computing the same numbers, so another user of FAISS sees at most a different speed.
    """
    global _blas_users, _blas_threshold
    with _blas_lock:
        if _blas_users == 0:
            _blas_threshold = faiss.cvar.distance_compute_blas_threshold
            faiss.cvar.distance_compute_blas_threshold = 1
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                faiss.cvar.distance_compute_blas_threshold = _blas_threshold


class ExactIndex(VectorIndex):
    """Every vector is looked at: float32, or float16 with a known rounding error."""

    def __init__(self, dimension: int, *, half: bool = False) -> None:
        self._dimension = dimension
        self._type = np.dtype(np.float16 if half else np.float32)
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._faiss: Any
        if half:
            float16 = faiss.ScalarQuantizer.QT_fp16
            self._faiss = faiss.IndexScalarQuantizer(dimension, float16, faiss.METRIC_INNER_PRODUCT)
        else:
            self._faiss = faiss.IndexFlatIP(dimension)
        self.error = dot_error(dimension, half=half)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """The memory its vectors take."""
        return len(self) * self._dimension * self._type.itemsize

    def prepare(self, rows: int, sample: Vectors) -> None:
        """Reserve the room, so that a growing container does not copy itself again and again."""
        self._faiss.codes.resize(rows * self._dimension * self._type.itemsize)
        self._faiss.codes.resize(0)

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Append unit rows."""
        self._faiss.add(np.ascontiguousarray(vectors))
        self._ids = np.concatenate([self._ids, ids])

    def remove(self, ids: Ids) -> None:
        """Forget the vectors of ``ids``."""
        gone = np.zeros(len(self), dtype=bool)
        gone[np.searchsorted(self._ids, ids)] = True
        self._faiss.remove_ids(selector(gone))
        self._ids = self._ids[~gone]

    def search(self, queries: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return the nearest among ``allowed``."""
        mask = None
        if allowed is not None:
            mask = np.zeros(len(self), dtype=bool)
            mask[np.searchsorted(self._ids, allowed)] = True
        count = min(k, len(self) if allowed is None else len(allowed))
        if count == 0 or len(queries) == 0:
            return _padded(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32), k)
        with _blas() if len(queries) >= SMALL_BATCH else nullcontext():
            positions, similarities = _in_parts(len(self), lambda part: self._search_part(queries, count, mask, part))
        return _padded(self._ids[positions], similarities, k)

    def _search_part(self, queries: Vectors, k: int, mask: Mask | None, part: slice) -> tuple[Ids, Vectors]:
        """Return positions and similarities of the nearest among the rows of ``part``; -1 where fewer exist."""
        if self._type == np.float16 and len(queries) < SMALL_BATCH:
            return self._scan(queries, k, mask, part)
        rows = self._rows()
        best = faiss.ResultHeap(len(queries), k, keep_max=True)
        # whole rows of float32 are searched where they lie; others are decoded or gathered block by block
        step = BLOCK if mask is not None or self._type == np.float16 else part.stop - part.start
        for start in range(part.start, part.stop, step):
            block = rows[start : min(start + step, part.stop)]
            here = None if mask is None else np.flatnonzero(mask[start : start + len(block)])
            picked = float32_rows(block if here is None else block[here])
            if len(picked):
                similarities, found = faiss.knn(queries, picked, min(k, len(picked)), faiss.METRIC_INNER_PRODUCT)
                best.add_result(similarities, (found if here is None else here[found]) + start)
        best.finalize()
        return best.I, best.D

    def _scan(self, queries: Vectors, k: int, mask: Mask | None, part: slice) -> tuple[Ids, Vectors]:
        """Search float16 with FAISS's own loop, which for few queries is faster than decoding."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[part] = True if mask is None else mask[part]
        parameters = faiss.SearchParameters(sel=selector(chosen))
        similarities, positions = self._faiss.search(queries, k, params=parameters)
        return positions, similarities

    def _rows(self) -> npt.NDArray[Any]:
        """Return the container's memory as a matrix, without a copy; valid until the next change."""
        codes = self._faiss.codes
        return np.asarray(faiss.rev_swig_ptr(codes.data(), codes.size()).view(self._type).reshape(len(self), -1))


class ApproximateIndex(VectorIndex):
    """Inverted lists: exact while small, trained on a sample once large enough."""

    def __init__(self, dimension: int, arguments: ApproximateArguments) -> None:
        self._dimension = dimension
        self._arguments = arguments
        self._small: ExactIndex | None = ExactIndex(dimension)
        self._lists: Any = None
        self._trained_for = 0
        self._next_id = 0

    @property
    def error(self) -> float:  # type: ignore[override]
        """Finite while it is exact."""
        return float("inf") if self._small is None else self._small.error

    @property
    def outgrown(self) -> bool:
        """Whether it should be trained, or trained anew because it holds four times what it was made for."""
        if self._small is not None:
            return len(self._small) >= self._arguments.minimum_rows
        return int(self._lists.ntotal) > 4 * self._trained_for

    def __len__(self) -> int:
        return len(self._small) if self._small is not None else int(self._lists.ntotal)

    @property
    def nbytes(self) -> int:
        """The memory its vectors take."""
        return self._small.nbytes if self._small is not None else len(self) * self._dimension * 2

    def sample_size(self, rows: int) -> int:
        """Return how many vectors the training wants."""
        return self._arguments.sample_size(rows) if rows >= self._arguments.minimum_rows else 0

    def prepare(self, rows: int, sample: Vectors) -> None:
        """Train on ``sample`` when ``rows`` are enough for lists."""
        if rows < self._arguments.minimum_rows:
            return
        count = min(self._arguments.list_count(rows), len(sample))
        lists = untrained_lists(self._dimension, count, faiss.ScalarQuantizer.QT_fp16, self._arguments)
        with _blas():
            lists.train(np.ascontiguousarray(sample))
        self._lists, self._small, self._trained_for = lists, None, rows

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Append unit rows."""
        if self._small is not None:
            self._small.add(ids, vectors)
        elif len(ids):
            with _blas():
                self._lists.add_with_ids(np.ascontiguousarray(vectors), ids)
            self._next_id = int(ids[-1]) + 1

    def remove(self, ids: Ids) -> None:
        """Forget the vectors of ``ids``."""
        if self._small is not None:
            self._small.remove(ids)
        else:
            self._lists.remove_ids(self._chosen(ids))

    def search(self, queries: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return the nearest that the probed lists hold, always as many as were asked for and exist."""
        if self._small is not None:
            return self._small.search(queries, k, allowed)
        count = len(self) if allowed is None else len(allowed)
        chosen = None if allowed is None else self._chosen(allowed)
        return search_lists(self._lists, queries, k, probes=self._arguments.probes, available=count, selector=chosen)

    def _chosen(self, ids: Ids) -> Any:
        mask = np.zeros(self._next_id, dtype=bool)
        mask[ids] = True
        return selector(mask)


def untrained_lists(
    dimension: int, count: int, codes: int, arguments: ListArguments, *, by_residual: bool = False
) -> Any:
    """Return ``count`` inverted lists of ``codes`` (of a vector, or of its difference from the list's centre)."""
    coarse = faiss.IndexFlatIP(dimension)
    kind = faiss.METRIC_INNER_PRODUCT
    lists = faiss.IndexIVFScalarQuantizer(coarse, dimension, count, codes, kind, by_residual)
    lists.cp.spherical = True
    lists.cp.seed = arguments.seed
    lists.cp.min_points_per_centroid = 1
    lists.cp.max_points_per_centroid = arguments.sample_per_list
    return lists


def search_lists(
    lists: Any, queries: Vectors, k: int, *, probes: int, available: int, selector: Any = None
) -> tuple[Ids, Vectors]:
    """Return the nearest that ``probes`` inverted lists hold among the ``available`` captions ``selector`` lets pass.

    As many are returned as were asked for and exist.
    """
    count = min(k, available)
    if count == 0 or len(queries) == 0:
        return _padded(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32), k)

    def probe(asked: Vectors, number: int) -> tuple[Ids, Vectors]:
        parameters = faiss.SearchParametersIVF(sel=selector, nprobe=min(number, lists.nlist))
        similarities, ids = lists.search(asked, count, params=parameters)
        return ids, similarities

    # a filter thins the lists out: more of them are read to see as many allowed captions as without it
    ids, similarities = probe(queries, int(probes * lists.ntotal / available))
    short = np.flatnonzero(ids[:, -1] < 0)
    if len(short):
        ids[short], similarities[short] = probe(queries[short], lists.nlist)
    return _padded(ids, similarities, k)


def _in_parts(rows: int, search: Callable[[slice], tuple[Ids, Vectors]]) -> tuple[Ids, Vectors]:
    """Search parts of ``rows`` in as many threads as FAISS may use, each by itself, and join what they found.

    FAISS's own threads meet again after each of many small products, which on a busy machine costs several times
    the work. Inside each of these threads FAISS uses one: that setting belongs to the thread that makes it.
    """
    threads = min(int(faiss.omp_get_max_threads()), max(1, rows // ROWS_PER_THREAD))
    if threads == 1:
        return search(slice(0, rows))
    edges = [rows * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(search, map(slice, edges[:-1], edges[1:])))
    queries, k = found[0][0].shape
    best = faiss.ResultHeap(queries, k, keep_max=True)
    for positions, similarities in found:
        best.add_result(similarities, positions)
    best.finalize()
    return best.I, best.D


def selector(mask: Mask) -> Any:
    """Return what lets the ids pass where ``mask`` is true."""
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def _padded(ids: Ids, similarities: Vectors, k: int) -> tuple[Ids, Vectors]:
    """Bring a result to ``k`` columns."""
    all_ids = np.full((len(ids), k), -1, dtype=np.int64)
    all_ids[:, : ids.shape[1]] = ids
    best = np.full((len(ids), k), -np.inf, dtype=np.float32)
    best[:, : ids.shape[1]] = np.where(ids < 0, -np.inf, similarities)
    return all_ids, best
