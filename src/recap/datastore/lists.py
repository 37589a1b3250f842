"""Inverted lists on disk: trained on a sample, filled in a stream, read in place.

The vectors of a list are kept as 8-bit codes of their difference from the list's centre. FAISS searches the file where
it lies; it is written here, because FAISS would hold its whole content in memory meanwhile. What comes in is sorted by
list in shards of some hundred megabytes, and in the end the parts of each list are gathered from all shards.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Filters, Ids, SearchResult, centred
from recap.datastore.faiss import faiss, search_lists, untrained_lists
from recap.datastore.index import RECALL_K, RECALL_QUERIES, DiskArguments
from recap.datastore.manifest import write_matrix
from recap.datastore.segments import Segments
from recap.errors import PackError, damaged
from recap.files import atomic_write, progress_bar
from recap.types import Vectors

SHARD_BYTES = 192 << 20
"""How much is collected in memory before it is sorted and written."""

RANGE_MARGIN = 0.2
"""How far codes reach beyond the numbers of the sample, on either side, as a share of their range."""

FEW = 8
"""Queries that are asked at a time when recall is measured: they look at pages all over the disk."""


@dataclass(slots=True)
class Lists:
    """Inverted lists on disk, and what they hold."""

    index: Any
    rows: int
    next_id: int
    """Captions of this id or above have come later."""
    files: list[Path]
    """What was learnt, sizes, content."""
    recall: float = float("nan")

    def search(self, queries: Vectors, k: int, probes: int, available: int, selector: Any) -> tuple[Ids, Vectors]:
        """Return ids and similarities of the nearest among the ``available`` captions that ``selector`` lets pass."""
        return search_lists(self.index, queries, k, probes=probes, available=available, selector=selector)

    @property
    def are_lost(self) -> bool:
        """Whether files are gone: somebody has committed other lists for the same captions."""
        return not all(file.exists() for file in self.files)


def build_lists(
    segments: Segments, center: Vectors | None, arguments: DiskArguments, folder: Path, *, progress: bool = False
) -> Lists:
    """Make lists of all captions, in files in ``folder``."""
    rows = len(segments)
    sample = centred(segments.sample(arguments.sample_size(rows), arguments.seed), center)
    lists = train(sample, rows, arguments)
    builder = ListBuilder(lists, folder)
    with progress_bar(total=rows, desc="index", unit="caption", progress=progress) as bar:
        for ids, vectors in segments.stream():
            builder.add(ids, centred(vectors, center))
            bar.update(len(ids))
    stem = secrets.token_hex(4)
    files = [folder / f"index-{stem}.faiss", folder / f"sizes-{stem}.safetensors", folder / f"lists-{stem}.bin"]
    sizes = builder.finish(files[2])
    save_trained(lists, files[0])
    with atomic_write(files[1]) as file:
        write_matrix(file, "sizes", sizes.shape, "int64", [sizes])
    return Lists(open_lists(files[0], files[2], sizes), rows, segments.next_id, files)


def read_lists(files: list[Path], rows: int, next_id: int, recall: float) -> Lists:
    """Return lists that were made before."""
    from safetensors.numpy import load_file

    trained, path, content = files
    with damaged(path):
        sizes = np.asarray(load_file(path)["sizes"])
        if sizes.dtype != np.int64 or sizes.ndim != 1:
            raise ValueError("it does not hold sizes")
    return Lists(open_lists(trained, content, sizes), rows, next_id, files, recall)


def measure_recall(
    segments: Segments, center: Vectors | None, seed: int, search: Callable[[Vectors, int], SearchResult]
) -> float:
    """Return the share of the true nearest that a search finds: some captions are the queries, and do not count."""
    rows = len(segments)
    places = np.sort(np.random.default_rng(seed).choice(rows, min(rows, RECALL_QUERIES), False))
    k = min(RECALL_K + 1, rows)
    queries = centred(segments.vectors(segments.find(Filters())[places]), center)
    best = faiss.ResultHeap(len(queries), k, keep_max=True)
    for ids, vectors in segments.stream():
        moved = np.ascontiguousarray(centred(vectors, center))
        similarities, found = faiss.knn(queries, moved, min(k, len(ids)), faiss.METRIC_INNER_PRODUCT)
        best.add_result(similarities, ids[found])
    best.finalize()
    if k < 2:
        return 1.0
    near = []
    for start in range(0, len(queries), FEW):
        near.append(search(queries[start : start + FEW], k).similarities[:, 1:])
        for segment in segments.all:
            segment.release()
    # by similarity and not by id: of captions that are equally near, any will do
    return float((np.concatenate(near) >= best.D[:, -1:] - 1e-6).mean())


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
