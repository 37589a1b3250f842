"""Which three words people write one after the other, kept in a Bloom filter of a megabyte.

A model goes wrong where it never was before: "a cat sitting on a blue eyes". That nobody ever wrote three words of a
sentence in a row shows it better than the model's own probabilities, which rewards have bent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recap.errors import AssetError

BITS = 1 << 23
HASHES = 3
"""One phrase in five hundred that nobody wrote is taken for one that somebody did."""

_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)

Triples = npt.NDArray[np.uint64]


class Phrases:
    """A set of triples of numbers that is never wrong about its own, and seldom about others."""

    def __init__(self, table: npt.NDArray[np.uint8]) -> None:
        self._table = table

    @classmethod
    def of(cls, triples: npt.ArrayLike, bits: int = BITS) -> Phrases:
        """Return the set of some triples."""
        phrases = cls(np.zeros(bits // 8, np.uint8))
        byte, bit = phrases._places(np.asarray(triples, np.uint64).reshape(-1, 3))
        np.bitwise_or.at(phrases._table, byte, bit)
        return phrases

    @classmethod
    def load(cls, path: Path) -> Phrases:
        """Return the set that ``save`` wrote."""
        try:
            table = np.fromfile(path, np.uint8)
        except OSError as error:
            raise AssetError(f"{path} cannot be read ({error}); install recap again") from error
        if not len(table):
            raise AssetError(f"{path} is empty; install recap again")
        return cls(table)

    def save(self, path: Path) -> None:
        """Write the set."""
        self._table.tofile(path)

    def have(self, triples: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell for each triple whether it is in the set."""
        byte, bit = self._places(np.asarray(triples, np.uint64).reshape(-1, 3))
        found: npt.NDArray[np.bool_] = ((self._table[byte] & bit) != 0).all(0)
        return found

    def _places(self, triples: Triples) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Return for each hash and triple a byte of the table and a bit of that byte."""
        mixed = ((triples + np.uint64(1)) * _ODD).sum(1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODD[1]
        steps = (mixed >> np.uint64(32)) | np.uint64(1)
        numbers = np.arange(HASHES, dtype=np.uint64)[:, None]
        places = (mixed + numbers * steps) % np.uint64(8 * len(self._table))
        return places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)


def triples_of(sentence: Sequence[int], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return every three words in a row, the sentence's beginning and end counted as words."""
    return [(one, two, three) for (one, two), (_, three) in pairwise(pairwise((begin, *sentence, end)))]


def often_written(sentences: Iterable[Sequence[int]], begin: int, end: int, least: int = 3) -> list[tuple[int, ...]]:
    """Return the triples that occur at least so often; fewer may be slips of the pen."""
    counts = Counter(triple for sentence in sentences for triple in triples_of(sentence, begin, end))
    return [triple for triple, count in counts.items() if count >= least]
