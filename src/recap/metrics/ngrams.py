"""Word n-grams as integers: every n-gram of a corpus gets a small id, and counting becomes sorting.

An n-gram is the pair (id of its first n-1 words, id of its last word), so ids of length n are made from ids of length
n-1 and stay dense whatever the size of the vocabulary. Nothing is hashed: two n-grams never share an id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
IntType = TypeVar("IntType", np.int32, np.int64)
Small: TypeAlias = npt.NDArray[np.int32]
"""What there is one of for each n-gram of a corpus is kept short: memory costs more than arithmetic."""

MAX_N = 4
"""BLEU and CIDEr look at n-grams of one to four words."""

_PAIR_SHIFT = 32
_WORD_MASK = (1 << _PAIR_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of word ids: those of sentence ``i`` are ``words[offsets[i] : offsets[i + 1]]``."""

    words: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ints:
        return self.words[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Ints:
        """The number of words of each sentence."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """How often each n-gram of one length occurs in each sentence: parallel columns, one row a sentence and n-gram.

    Rows of one n-gram are neighbours, in the order of the sentences.
    """

    gram: Small
    sentence: Small
    count: Small


@dataclass(frozen=True, slots=True)
class NgramTable:
    """The n-grams that occur in some sentences. An id is a rank among the sorted pairs (prefix, word)."""

    words: int
    """Word ids below this one are known."""
    pairs: tuple[Ints, ...]
    """For n = 2, 3, ...: the sorted pairs, prefix in the upper and word in the lower 32 bits."""

    @classmethod
    def build(cls, sentences: Sentences, words: int) -> tuple[NgramTable, list[NgramCounts]]:
        """Collect the n-grams of ``sentences`` whose word ids are below ``words``; return their counts too."""
        walk = _Walk(sentences)
        counts, pairs = [walk.count_words()], []
        for _ in range(1, MAX_N):
            rows, distinct = walk.count_longer()
            counts.append(rows)
            pairs.append(distinct)
            walk.names = np.arange(len(distinct))
        return cls(words, tuple(pairs)), counts

    def size(self, n: int) -> int:
        """The number of n-grams of ``n`` words: unknown ones have ids from here on."""
        return self.words if n == 1 else len(self.pairs[n - 2])

    def count(self, sentences: Sentences) -> tuple[list[NgramCounts], list[Ints]]:
        """Count the n-grams of other sentences; those that the table does not hold get ids above its own.

        Return the pairs of these too, for n = 2, 3, ... in the order of their ids.
        """
        walk = _Walk(sentences)
        counts, new = [walk.count_words()], []
        for known in self.pairs:
            rows, distinct = walk.count_longer()
            hit, rank = find_sorted(known, distinct)
            walk.names = len(known) + np.cumsum(~hit) - 1
            walk.names[hit] = rank
            counts.append(replace(rows, gram=walk.names.astype(np.int32)[rows.gram]))
            new.append(distinct[~hit])
        return counts, new

    def find(self, n: int, pairs: Ints, prefixes: Ints, words: Ints) -> Ints:
        """Find n-grams of another table: its pairs, and what its prefixes and words are called here.

        What is not found gets the id ``size(n)``.
        """
        known = self.pairs[n - 2]
        prefix, word = prefixes[pairs >> _PAIR_SHIFT], words[pairs & _WORD_MASK]
        hit, rank = find_sorted(known, (prefix << _PAIR_SHIFT) | word)
        ids = np.full(len(pairs), len(known))
        ids[hit] = rank
        return ids


@dataclass(frozen=True, slots=True)
class GroupedCounts:
    """How often each n-gram occurs in each reference, grouped by n-gram and image."""

    rows: NgramCounts
    images: int
    keys: Ints
    """The distinct ``id * images + image``, sorted."""
    starts: Small
    """Rows ``starts[k] : starts[k + 1]`` belong to ``keys[k]``."""
    maximum: Small
    """For each key the largest count in any one reference."""

    @classmethod
    def of(cls, rows: NgramCounts, image_of: Ints) -> GroupedCounts:
        """Group counts, where ``image_of`` (not decreasing) gives the image of each reference."""
        images = int(image_of[-1]) + 1
        keys = np.multiply(rows.gram, images, dtype=np.int64)
        keys += image_of[rows.sentence]
        heads = np.flatnonzero(_run_heads(keys))
        maximum = np.maximum.reduceat(rows.count, heads) if len(heads) else rows.count
        return cls(rows, images, keys[heads], np.append(heads, len(keys)).astype(np.int32), maximum)

    def find(self, gram: Small, image: Ints) -> tuple[Mask, Ints]:
        """Tell which pairs of n-gram and image occur, and the index in ``keys`` of those that do."""
        return find_sorted(self.keys, np.multiply(gram, self.images, dtype=np.int64) + image)

    def document_frequency(self, size: int) -> Ints:
        """Return for each of ``size`` n-grams the number of images with it in any reference."""
        return np.bincount(self.keys // self.images, minlength=size)


def find_sorted(known: Ints, wanted: Ints) -> tuple[Mask, Ints]:
    """Tell which of ``wanted`` are in the sorted ``known``, and where those are."""
    rank = np.searchsorted(known, wanted)
    hit = rank < len(known)
    hit[hit] = known[rank[hit]] == wanted[hit]
    return hit, rank[hit]


def ranges(starts: Ints | Small, stops: Ints | Small) -> Ints:
    """Return the numbers of all half-open ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths, dtype=np.int64)
    numbers: Ints = np.repeat(starts - ends + lengths, lengths)
    numbers += np.arange(len(numbers))
    return numbers


def offsets_of(lengths: Ints) -> Ints:
    """Return where runs of these lengths start, closed by the total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


class _Walk:
    """Counts n-grams of growing length. One sort a length gives ranks and counts together."""

    def __init__(self, sentences: Sentences) -> None:
        self.words = sentences.words.astype(np.int32)
        self.sentence = np.repeat(np.arange(len(sentences), dtype=np.int32), sentences.lengths)
        left = np.repeat(sentences.offsets[1:], sentences.lengths) - np.arange(len(self.words))
        self.left = np.minimum(left, MAX_N).astype(np.uint8)
        self.n = 0

    def count_words(self) -> NgramCounts:
        """Count single words. ``names`` are from now on what the n-grams counted last are called, by their rank."""
        digits = self.words.astype(np.uint16) if self.words.max(initial=0) < 1 << 16 else self.words
        # 16 bits are sorted by their digits, in linear time
        self.places = np.argsort(digits, kind="stable")
        rows, words = self._count(self.words[self.places])
        self.names = words.astype(np.int64)
        return replace(rows, gram=words[rows.gram])

    def count_longer(self) -> tuple[NgramCounts, Ints]:
        """Count n-grams one word longer than the last: by rank, and the pairs (name of the prefix, word) by rank."""
        fits = self.left[self.places] > self.n
        self.places = self.places[fits]
        word = self.words[self.places + self.n]
        stride = int(word.max(initial=0)) + 1
        keys = np.multiply(self.ranks[fits], stride, dtype=np.int64)
        keys += word
        keys, self.places = _sort_together(keys, self.places)
        rows, distinct = self._count(keys)
        return rows, (self.names[distinct // stride] << _PAIR_SHIFT) | distinct % stride

    def _count(self, keys: npt.NDArray[IntType]) -> tuple[NgramCounts, npt.NDArray[IntType]]:
        """Count runs of sorted keys, which stand at ``places``, and return the distinct ones."""
        self.n += 1
        sentence = self.sentence[self.places]
        heads = _run_heads(keys)
        self.ranks = np.cumsum(heads, dtype=np.int32)
        self.ranks -= 1
        rows = np.flatnonzero(heads | _run_heads(sentence))
        count = np.diff(rows, append=len(keys)).astype(np.int32)
        return NgramCounts(self.ranks[rows], sentence[rows], count), keys[heads]


def _sort_together(keys: Ints, places: Ints) -> tuple[Ints, Ints]:
    """Sort keys, and places along with them; places of equal keys are given, and stay, in rising order."""
    bits = int(places.max(initial=0)).bit_length()
    if int(keys.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(keys, kind="stable")
        return keys[order], places[order]
    # keys come in the order of their prefix, which this sort makes use of; and values sort faster than indices
    keys <<= bits
    keys |= places
    keys.sort(kind="stable")
    places = keys & ((1 << bits) - 1)
    keys >>= bits
    return keys, places


def _run_heads(ordered: npt.NDArray[np.integer]) -> Mask:
    """Mark where a value differs from the one before it."""
    heads = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=heads[1:])
    return heads
