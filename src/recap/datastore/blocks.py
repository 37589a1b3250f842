"""Vectors in blocks, in memory or mapped from files, that are appended to and never moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids
from recap.types import Vectors

SMALL_BLOCK = 4096
"""A last block of fewer rows is joined with what follows, so that single additions do not pile up."""

STREAM_ROWS = 16_384


class VectorBlocks:
    """A matrix that grows: rows are numbered from the first block on."""

    def __init__(self, dimension: int, dtype: npt.DTypeLike) -> None:
        self.dimension = dimension
        self.dtype = np.dtype(dtype)
        self._blocks: list[npt.NDArray[Any]] = []
        self._starts: Ids = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def append(self, rows: npt.NDArray[Any]) -> Ids:
        """Add rows and return their numbers."""
        first = len(self)
        rows = rows.astype(self.dtype, copy=False)
        last = self._blocks[-1] if self._blocks else None
        if last is not None and len(last) < SMALL_BLOCK and not isinstance(last, np.memmap):
            self._blocks[-1] = np.concatenate([last, rows])
        elif len(rows):
            self._blocks.append(rows)
        self._starts = np.cumsum([0, *map(len, self._blocks)])
        return np.arange(first, len(self), dtype=np.int64)

    def replace(self, blocks: list[npt.NDArray[Any]]) -> None:
        """Hold ``blocks`` instead of what there was."""
        self._blocks = [block for block in blocks if len(block)]
        self._starts = np.cumsum([0, *map(len, self._blocks)])

    def take(self, numbers: Ids) -> Vectors:
        """Return rows by number, of unit length, as float32."""
        rows = self._stored(numbers, np.dtype(np.float32))
        if self.dtype != np.float32:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def stream(self, numbers: Ids) -> Iterator[tuple[slice, Vectors]]:
        """Yield what ``take`` returns in pieces, with the place of each piece."""
        for piece in _pieces(len(numbers)):
            yield piece, self.take(numbers[piece])

    def stream_stored(self, numbers: Ids) -> Iterator[npt.NDArray[Any]]:
        """Yield rows in pieces, to the bit as they were appended."""
        for piece in _pieces(len(numbers)):
            yield self._stored(numbers[piece], self.dtype)

    def _stored(self, numbers: Ids, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        rows = np.empty((len(numbers), self.dimension), dtype=dtype)
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        for owner in np.unique(owners):
            here = owners == owner
            rows[here] = self._blocks[owner][numbers[here] - self._starts[owner]]
        return rows


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + STREAM_ROWS) for start in range(0, count, STREAM_ROWS))
