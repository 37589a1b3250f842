"""Nearest captions of a store on disk: inverted lists on disk for most of them, the newest ones in memory.

Inverted lists on disk: trained on a sample, filled in a stream, read in place.

The vectors of a list are kept as 8-bit codes of their difference from the list's centre. FAISS searches the file where
it lies; it is written here, because FAISS would hold its whole content in memory meanwhile. What comes in is sorted by
list in shards of some hundred megabytes, and in the end the parts of each list are gathered from all shards.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Excluded, Filters, Ids, SearchResult, centred
from recap.datastore.disk import write_matrix
from recap.datastore.faiss import ExactIndex, faiss, search_lists, selector, untrained_lists
from recap.datastore.index import RECALL_K, RECALL_QUERIES, DiskArguments
from recap.datastore.parts import Parts
from recap.datastore.ranking import SPARE, dot_products, left_out, rank, sifted
from recap.errors import PackError, damaged
from recap.files import atomic_write
from recap.types import Vectors

SHARD_BYTES = 192 << 20
"""How much is collected in memory before it is sorted and written."""

RANGE_MARGIN = 0.2
"""How far codes reach beyond the numbers of the sample, on either side, as a share of their range."""


def train(sample: Vectors, rows: int, arguments: DiskArguments) -> Any:
    """Return empty lists for about ``rows`` vectors that look like ``sample``."""
    dimension = sample.shape[1]
    count = min(arguments.list_count(rows), len(sample))
    lists = untrained_lists(dimension, count, faiss.ScalarQuantizer.QT_8bit, arguments, by_residual=True)
    # numbers beyond those of the sample are cut off: leave some room for them
    lists.sq.rangestat = faiss.ScalarQuantizer.RS_minmax
    lists.sq.rangestat_arg = RANGE_MARGIN
    lists.train(np.ascontiguousarray(sample))
    return lists


class ListBuilder:
    """Fills lists in a stream; ``folder`` holds the shards meanwhile."""

    def __init__(self, lists: Any, folder: Path) -> None:
        self._lists = lists
        self._folder = folder
        self._record = np.dtype([("code", np.uint8, (lists.code_size,)), ("id", "<i8")])
        self._collected: list[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = []
        self._shards: list[tuple[Path, npt.NDArray[np.int64]]] = []
        """Each with where in it the records of each list begin."""

    def add(self, ids: Ids, rows: Vectors) -> None:
        """Append unit rows; ``ids`` are ascending and above all before."""
        rows = np.ascontiguousarray(rows)
        _, near = self._lists.quantizer.search(rows, 1)
        numbers = np.ascontiguousarray(near[:, 0])
        codes = np.empty((len(rows), self._lists.code_size), dtype=np.uint8)
        pointers = map(faiss.swig_ptr, (rows, numbers, codes))
        self._lists.encode_vectors(len(rows), *pointers)
        records = np.empty(len(rows), dtype=self._record)
        records["code"], records["id"] = codes, ids
        self._collected.append((numbers, records))
        if sum(len(part) for _, part in self._collected) * self._record.itemsize >= SHARD_BYTES:
            self._flush()

    def finish(self, path: Path) -> Ids:
        """Write the file, and return how many vectors each list holds."""
        self._flush()
        sizes = np.zeros(self._lists.nlist, dtype=np.int64)
        with atomic_write(path) as file:
            for number in range(self._lists.nlist):
                parts = [np.empty(0, dtype=self._record), *(self._part(*shard, number) for shard in self._shards)]
                records = np.concatenate(parts)
                file.write(np.ascontiguousarray(records["code"]).data)
                file.write(np.ascontiguousarray(records["id"]).data)
                sizes[number] = len(records)
        for shard, _ in self._shards:
            shard.unlink()
        return sizes

    def _flush(self) -> None:
        if not self._collected:
            return
        numbers = np.concatenate([part for part, _ in self._collected])
        records = np.concatenate([part for _, part in self._collected])
        self._collected.clear()
        path = self._folder / f"shard-{len(self._shards):05d}"
        # stable, so that the captions of a list stay in the order of their ids
        order = np.argsort(numbers, kind="stable")
        with atomic_write(path) as file:
            for start in range(0, len(order), 1 << 14):
                file.write(records[order[start : start + (1 << 14)]].data)
        starts = np.searchsorted(numbers[order], np.arange(self._lists.nlist + 1))
        self._shards.append((path, starts.astype(np.int64)))

    def _part(self, shard: Path, starts: npt.NDArray[np.int64], number: int) -> npt.NDArray[Any]:
        first, count = int(starts[number]), int(starts[number + 1] - starts[number])
        return np.fromfile(shard, dtype=self._record, count=count, offset=first * self._record.itemsize)


def save_trained(lists: Any, path: Path) -> None:
    """Write what lists have learnt, without their content."""
    with atomic_write(path) as file:
        file.write(faiss.serialize_index(lists).data)


def open_lists(trained: Path, path: Path, sizes: Ids) -> Any:
    """Return lists whose content stays in the file at ``path``."""
    try:
        lists = faiss.read_index(str(trained))
    except RuntimeError as error:
        raise PackError(f"{trained} is not a readable index: {error}") from error
    if len(sizes) != getattr(lists, "nlist", -1) or (sizes < 0).any():
        raise PackError(f"{trained} is not an index of the {len(sizes)} lists that belong to it")
    content = faiss.OnDiskInvertedLists(lists.nlist, lists.code_size, str(path))
    content.read_only = True
    # threads that touch pages before they are read cost more than they save
    content.prefetch_nthread = 0
    counts = sizes.astype(np.uint64)
    content.set_all_lists_sizes(faiss.swig_ptr(counts))
    content.totsize = int(sizes.sum()) * (lists.code_size + 8)
    if path.stat().st_size != content.totsize:
        raise PackError(f"{path} is truncated or damaged: {path.stat().st_size} bytes, not {content.totsize}")
    content.do_mmap()
    content.this.disown()
    lists.replace_invlists(content, True)
    lists.ntotal = int(sizes.sum())
    return lists


REMEMBERED = 4
"""For so many filters it is kept which captions pass."""


FEW = 8
"""When recall is measured so many queries are asked at a time: they look at pages all over the disk."""


@dataclass(frozen=True, slots=True)
class Lists:
    """Inverted lists on disk, and what they hold."""

    index: Any
    rows: int
    next_id: int
    """Captions of this id or above have come later."""
    files: list[Path]
    """What was learnt, sizes, content."""
    recall: float = float("nan")


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The captions that pass some filters."""

    in_lists: int
    """How many of those in the lists."""
    selector: Any
    """Lets these pass; None: all of them pass."""
    fresh: Ids | None
    """Those outside of the lists; None: all of them."""


class DiskSearcher:
    """Searches the captions in ``parts``, centred by ``center``."""

    def __init__(self, parts: Parts, center: Vectors | None, arguments: DiskArguments) -> None:
        self.center = center
        self.arguments = arguments
        self.lists: Lists | None = None
        self._parts = parts
        self._fresh: ExactIndex | None = None
        """Of the captions that are not in the lists."""
        self._version = -1
        """The parts' when ``_fresh`` was last equal to them; another searcher's captions may have come since."""
        self._lock = threading.Lock()
        self._remembered: dict[tuple[Filters, int], _Allowed] = {}
        """Which captions pass, by filters and the parts' version."""

    def added(self, ids: Ids, rows: Vectors) -> None:
        """Take note that captions have just come."""
        if self._fresh is not None and self._version == self._parts.version - 1:
            self._fresh.add(ids, centred(rows, self.center))
            self._version = self._parts.version

    def removed(self, ids: Ids) -> None:
        """Take note that captions have just gone."""
        if self._fresh is not None and self._version == self._parts.version - 1:
            self._fresh.remove(ids[ids >= self._first_fresh])
            self._version = self._parts.version

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions."""
        return centred(self._parts.vectors(ids), self.center)

    @property
    def outgrown(self) -> bool:
        """Whether lists should be made, or made anew because too much has come since."""
        if self.lists is None:
            return len(self._parts) >= self.arguments.minimum_rows
        parts, first = [*(segment.ids for segment in self._parts.segments), self._parts.table.ids], self._first_fresh
        fresh = sum(len(ids) - int(np.searchsorted(ids, first)) for ids in parts)
        return fresh > max(self.arguments.minimum_rows, self.lists.rows // 10)

    def forget_lost_lists(self) -> None:
        """Forget the lists if their files are gone: somebody has committed others for the same captions."""
        if self.lists is not None and not all(file.exists() for file in self.lists.files):
            self._use(None)

    def build(self, folder: Path) -> None:
        """Make the lists, in files in ``folder``, and measure how many of the nearest they find."""
        parts, rows = self._parts, len(self._parts)
        lists = train(self._sample(rows), rows, self.arguments)
        builder = ListBuilder(lists, folder)
        for ids, vectors in parts.stream():
            builder.add(ids, centred(vectors, self.center))
        stem = secrets.token_hex(4)
        files = [folder / f"index-{stem}.faiss", folder / f"sizes-{stem}.safetensors", folder / f"lists-{stem}.bin"]
        sizes = builder.finish(files[2])
        save_trained(lists, files[0])
        _write_sizes(files[1], sizes)
        opened = open_lists(files[0], files[2], sizes)
        self._use(Lists(opened, rows, parts.table.next_id, files))
        self.lists = Lists(opened, rows, parts.table.next_id, files, self._recall(rows))

    def search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        """Return the ``k`` nearest among the captions that pass ``filters``, without those of the excluded images."""
        with self._lock:
            fresh = self._up_to_date()
            allowed = self._allowed(filters)
        unwanted = left_out(exclude)

        def propose(asked: Vectors, count: int) -> tuple[Ids, Vectors]:
            return _best(count, *(self._in_lists(asked, count, allowed)), *fresh.search(asked, count, allowed.fresh))

        def rescore(numbers: npt.NDArray[np.intp], ids: Ids) -> Vectors:
            if unwanted is not None:
                ids = sifted(ids, [unwanted[number] for number in numbers], self._parts.image_ids)
            return dot_products(queries[numbers], ids, self.vectors)

        return rank(
            propose,
            queries,
            k,
            error=fresh.error if self.lists is None else float("inf"),
            available=allowed.in_lists + (len(fresh) if allowed.fresh is None else len(allowed.fresh)),
            spare=0 if unwanted is None else SPARE,
            rescore=rescore,
        )

    @property
    def _first_fresh(self) -> int:
        return 0 if self.lists is None else self.lists.next_id

    def _up_to_date(self) -> ExactIndex:
        if self._fresh is None or self._version != self._parts.version:
            self._fresh = ExactIndex(self._parts.dimension, half=True)
            for ids, rows in self._parts.stream(self._first_fresh):
                self._fresh.add(ids, centred(rows, self.center))
            self._version = self._parts.version
        return self._fresh

    def _in_lists(self, queries: Vectors, k: int, allowed: _Allowed) -> tuple[Ids, Vectors]:
        if self.lists is None:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        return search_lists(
            self.lists.index,
            queries,
            k,
            probes=self.arguments.probes,
            available=allowed.in_lists,
            selector=allowed.selector,
        )

    def _use(self, lists: Lists | None) -> None:
        self.lists, self._fresh = lists, None
        self._remembered.clear()

    def _allowed(self, filters: Filters) -> _Allowed:
        key = (filters, self._parts.version)
        if key not in self._remembered:
            if len(self._remembered) == REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = self._find_allowed(filters)
        return self._remembered[key]

    def _find_allowed(self, filters: Filters) -> _Allowed:
        parts, first = self._parts, self._first_fresh
        passing = np.zeros(first, dtype=bool)
        fresh: list[Ids] = []
        for segment in parts.segments:
            alive, mask = parts.alive(segment), segment.mask(filters)
            ids = segment.ids[alive if mask is None else alive & mask]
            passing[ids[ids < first]] = True
            fresh.append(ids[ids >= first])
        mask = parts.table.mask(filters.sources, filters.exclude_sources, filters.synthetic)
        ids = parts.table.ids if mask is None else parts.table.ids[mask]
        passing[ids[ids < first]] = True
        fresh.append(ids[ids >= first])
        count = int(np.count_nonzero(passing))
        whole = self.lists is None or count == self.lists.rows
        return _Allowed(
            in_lists=count,
            selector=None if whole else selector(passing),
            fresh=None if filters == Filters() else np.concatenate(fresh),
        )

    def _sample(self, rows: int) -> Vectors:
        """Return centred vectors to learn from, gathered while all are read once."""
        size = min(rows, self.arguments.list_count(rows) * self.arguments.sample_per_list)
        chosen = np.zeros(rows, dtype=bool)
        chosen[np.random.default_rng(self.arguments.seed).choice(rows, size, replace=False)] = True
        sample = np.empty((size, self._parts.dimension), dtype=np.float32)
        seen = taken = 0
        for ids, vectors in self._parts.stream():
            picked = vectors[chosen[seen : seen + len(ids)]]
            sample[taken : taken + len(picked)] = centred(picked, self.center)
            seen, taken = seen + len(ids), taken + len(picked)
        return sample

    def _recall(self, rows: int) -> float:
        """Return the share of the true nearest that a search finds: some captions are the queries, and do not count."""
        places = np.sort(np.random.default_rng(self.arguments.seed).choice(rows, min(rows, RECALL_QUERIES), False))
        k = min(RECALL_K + 1, rows)
        queries = self.vectors(self._parts.ids[places])
        best = faiss.ResultHeap(len(queries), k, keep_max=True)
        for ids, vectors in self._parts.stream():
            moved = np.ascontiguousarray(centred(vectors, self.center))
            similarities, found = faiss.knn(queries, moved, min(k, len(ids)), faiss.METRIC_INNER_PRODUCT)
            best.add_result(similarities, ids[found])
        best.finalize()
        if k < 2:
            return 1.0
        # by similarity and not by id: of captions that are equally near, any will do
        near = np.concatenate(
            [self._similarities(queries[start : start + FEW], k) for start in range(0, len(queries), FEW)]
        )
        return float((near[:, 1:] >= best.D[:, -1:] - 1e-6).mean())

    def _similarities(self, queries: Vectors, k: int) -> Vectors:
        """Search for a few queries, and let go of the pages that were looked at."""
        found = self.search(queries, k, Filters(), None).similarities
        self._parts.let_go()
        return found


def read_lists(files: list[Path], rows: int, next_id: int, recall: float) -> Lists:
    """Return lists that were made before."""
    trained, sizes, content = files
    return Lists(open_lists(trained, content, _read_sizes(sizes)), rows, next_id, files, recall)


def _write_sizes(path: Path, sizes: Ids) -> None:
    with atomic_write(path) as file:
        write_matrix(file, "sizes", sizes.shape, "int64", [sizes])


def _read_sizes(path: Path) -> Ids:
    from safetensors.numpy import load_file

    with damaged(path):
        sizes = np.asarray(load_file(path)["sizes"])
        if sizes.dtype != np.int64 or sizes.ndim != 1:
            raise ValueError("it does not hold sizes")
        return sizes


def _best(k: int, ids: Ids, similarities: Vectors, more: Ids, their: Vectors) -> tuple[Ids, Vectors]:
    """Return the ``k`` best of two results."""
    ids, similarities = np.concatenate([ids, more], axis=1), np.concatenate([similarities, their], axis=1)
    order = np.lexsort((ids, -similarities), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarities, order, axis=1)
