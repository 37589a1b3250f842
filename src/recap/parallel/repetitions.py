"""What came before: the same picture again, or the same picture with the same caption.

``recap.fitting.pairs`` finds that while it reads one picture after the other. Here shards are read by several machines
at once; each sends hashes only, and what is first is decided from all of them, in the order of the input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from recap.fitting.fit import is_apart
from recap.parallel.shards import read_shard

Hashes: TypeAlias = npt.NDArray[np.uint64]
"""Two numbers a row: 128 bits, so that two contents never have the same."""
Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]

ABSENT, FITTED, APART, WITHHELD = range(4)
"""What becomes of a picture: it cannot be used; it is fitted; it is kept apart; it is one of the validation pairs."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What is known of a shard without its vectors."""

    contents: Hashes
    """One for each row; zero where there is no picture or no caption."""
    captions: Hashes
    """One for each caption, of picture and caption together."""
    counts: Places
    """How many captions each row has."""
    roles: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Selected:
    """What of a shard is used."""

    new: Mask
    """Which captions come with this picture for the first time."""
    roles: npt.NDArray[np.uint8]
    first: Places
    """For each row the number of the row, among those of all shards, that has its content first."""
    counts: Places

    def fitted(self) -> Mask:
        """Return which captions are fitted."""
        fitted: Mask = self.new & np.repeat(self.roles == FITTED, self.counts)
        return fitted

    def rows(self, start: int, stop: int, caption: int) -> Selected:
        """Return what of some rows is used; ``caption`` says how many captions come before them."""
        part = slice(start, stop)
        counts = self.counts[part]
        new = self.new[caption : caption + int(counts.sum())]
        return Selected(new, self.roles[part], self.first[part], counts)


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """Reads the keys of shards."""

    share: float = 0.0
    """Of the pictures that are kept apart."""
    withheld: frozenset[str] = frozenset()
    """Contents of the validation pairs."""

    def __call__(self) -> Callable[[str], Keys]:
        """Return what reads a shard."""
        return self.read

    def read(self, place: str) -> Keys:
        """Return the keys of a shard."""
        contents, captions, counts, roles = [], [], [], []
        for block in read_shard(place, ("sha256", "error", "captions")):
            for sha, error, texts in zip(block.texts("sha256"), block.texts("error"), block.captions, strict=True):
                contents.append(bytes.fromhex(sha)[:16] if sha and texts else bytes(16))
                captions += [hashlib.blake2b(f"{sha} {text}".encode(), digest_size=16).digest() for text in texts]
                counts.append(len(texts))
                roles.append(self._role(sha, bool(error) or not texts))
        return Keys(_hashes(contents), _hashes(captions), np.array(counts, np.int64), np.array(roles, np.uint8))

    def _role(self, sha: str, unusable: bool) -> int:
        if unusable or not sha:
            return ABSENT
        if sha in self.withheld:
            return WITHHELD
        return APART if is_apart(sha, self.share) else FITTED


def select(shards: Sequence[Keys]) -> Iterator[Selected]:
    """Decide for all shards, in their order, what is new."""
    contents, captions = (np.concatenate([getattr(keys, name) for keys in shards]) for name in ("contents", "captions"))
    counts = np.concatenate([keys.counts for keys in shards])
    # rows without content repeat nothing, though their hashes are alike
    known = contents.any(axis=1)
    first = np.where(known, first_places(contents), np.arange(len(contents)))
    new = (first_places(captions) == np.arange(len(captions))) & np.repeat(known, counts)
    row = caption = 0
    for keys in shards:
        rows, texts = slice(row, row + len(keys.counts)), slice(caption, caption + len(keys.captions))
        yield Selected(new[texts], keys.roles, first[rows], keys.counts)
        row, caption = rows.stop, texts.stop


def first_places(hashes: Hashes) -> Places:
    """Return for each row the place of the first row that is the same."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (hashes[order[1:]] != hashes[order[:-1]]).any(axis=1)
    places = np.empty(len(order), np.int64)
    # sorting is stable: of equal rows the first of all comes first
    places[order] = order[begins][np.cumsum(begins) - 1]
    return places


def _hashes(digests: Sequence[bytes]) -> Hashes:
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
