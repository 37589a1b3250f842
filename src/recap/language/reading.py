"""What the writer reads about a picture: retrieved captions as numbers.

The nearest captions are read word by word. All of them vote for words, the nearer ones with more weight, and the words
with most votes are read too, each with its share. A word the writer's vocabulary lacks takes a slot: a nameless word
that can be read and copied like any other, and gets its name back when the sentence is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")

SLOTS = 32
"""So many words outside the vocabulary can be told apart in one prompt."""
SEQUENCES = 8
"""So many captions are read word by word."""
LENGTH = 18
"""Captions are read up to this word."""
BAG = 40
"""So many of the words with most votes are read."""
VOTERS = 100
"""So many captions vote."""

_RANK_OFFSET = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """The memory of one prompt, an entry for each word read."""

    tokens: npt.NDArray[np.int64]
    """Words by their number in the vocabulary; slots come after it."""
    shares: npt.NDArray[np.float32]
    """Each word's share of the votes."""
    places: npt.NDArray[np.int64]
    """Where in its caption each word stands; ``LENGTH`` for words read for their votes alone."""
    ranks: npt.NDArray[np.int64]
    """Which caption each word stands in, the nearest is 0; ``SEQUENCES`` for words read for their votes alone."""
    outside: tuple[int, ...]
    """The numbers, beyond the vocabulary, of the words in the slots."""


def read(captions: Sequence[Sequence[int]], vocabulary: int) -> Reading:
    """Return the memory for retrieved captions, nearest first.

    Args:
        captions: the words of each as numbers. Those below ``vocabulary`` are known, and all others stand for words
            outside it.
        vocabulary: the size of the vocabulary.
    """
    shares = _shares(captions[:VOTERS])
    voted = sorted(shares, key=lambda word: (-shares[word], word))
    outside = tuple(word for word in voted if word >= vocabulary)[:SLOTS]
    slot = {word: vocabulary + place for place, word in enumerate(outside)}
    rows = [
        (word, place, rank)
        for rank, caption in enumerate(captions[:SEQUENCES])
        for place, word in enumerate(caption[:LENGTH])
    ]
    rows += [(word, LENGTH, SEQUENCES) for word in voted[:BAG]]
    return Reading(
        tokens=np.array([word if word < vocabulary else slot.get(word, UNKNOWN) for word, _, _ in rows], np.int64),
        shares=np.array([shares[word] for word, _, _ in rows], np.float32),
        places=np.array([place for _, place, _ in rows], np.int64),
        ranks=np.array([rank for _, _, rank in rows], np.int64),
        outside=outside,
    )


def _shares(captions: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return for each word the share of the captions, nearer ones counting more, that use it."""
    votes: dict[int, float] = {}
    total = 0.0
    for rank, caption in enumerate(captions):
        weight = 1 / (rank + _RANK_OFFSET)
        total += weight
        for word in set(caption):
            votes[word] = votes.get(word, 0.0) + weight
    return {word: vote / total for word, vote in votes.items()}
