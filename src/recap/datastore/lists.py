"""Inverted lists on disk: trained on a sample, filled in a stream, read in place.

The vectors of a list are kept as 8-bit codes of their difference from the list's centre. FAISS searches the file where
it lies; it is written here, because FAISS would hold its whole content in memory meanwhile. What comes in is sorted by
list in shards of some hundred megabytes, and in the end the parts of each list are gathered from all shards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids
from recap.datastore.faiss import faiss, untrained_lists
from recap.datastore.index import DiskArguments
from recap.errors import PackError
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
