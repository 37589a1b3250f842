"""Which of several candidates becomes the caption.

``cosine`` is the rule of the paper: the candidate nearest to the image in caption space. ``consensus`` asks the
retrieved captions: each is somebody's description of a similar picture, and the sentence they agree with most is
least likely to name something that is not there. They vote by the words and pairs of words they share with the
candidate, those nearer to the image with more weight.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from recap.types import Evidence, Vectors

Scores = npt.NDArray[np.float64]

VOTE_TEMPERATURE = 0.1
"""A caption this much less similar to the image than the nearest one has 1/e of its vote."""

LENGTH_TOLERANCE = 6.0
"""Two captions whose lengths differ by this many words agree exp(-1/2) times as much: CIDEr-D's sigma."""

# letters and digits of scripts without spaces stand alone, other words as they are written
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+(?:'\w+)?")


@lru_cache(maxsize=1 << 17)
def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case."""
    return tuple(_WORD.findall(text.casefold()))


def is_degenerate(text: str) -> bool:
    """Tell whether a draft is no sentence: no word at all, or the same words again and again."""
    tokens = words(text)
    if not tokens:
        return True
    thrice = any(a == b == c for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False))
    pairs = list(pairwise(tokens))
    return thrice or (len(pairs) >= 6 and len(set(pairs)) <= len(pairs) // 2)


def by_cosine(texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence]) -> Scores:
    """Score candidates by their aligned cosine with the image."""
    return cosines.astype(np.float64)


def by_consensus(texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence]) -> Scores:
    """Score candidates by the weighted agreement of the evidence with them, a caption's vote for itself left out."""
    voters = [item.text for item in evidence]
    similarities = np.array([item.similarity for item in evidence], dtype=np.float64)
    weights = np.exp((similarities - similarities.max()) / VOTE_TEMPERATURE)
    votes = agreement(texts, voters)
    # one vote of its own, not all equal ones: a caption that several people wrote is all the better
    place = {text: index for index, text in reversed(list(enumerate(voters)))}
    own = np.array([place.get(text, -1) for text in texts])
    itself = np.zeros_like(votes)
    itself[np.arange(len(texts))[own >= 0], own[own >= 0]] = 1
    counted = weights * (1 - itself)
    scores: Scores = (votes * counted).sum(1) / np.maximum(counted.sum(1), 1e-12)
    return scores


def agreement(texts: Sequence[str], others: Sequence[str]) -> Scores:
    """Return for each pair of texts how much they say the same: the mean cosine of their words and word pairs."""
    left, right = [words(text) for text in texts], [words(text) for text in others]
    cosine = (_cosines(left, right, 1) + _cosines(left, right, 2)) / 2
    lengths = np.subtract.outer([len(tokens) for tokens in left], [len(tokens) for tokens in right])
    penalised: Scores = cosine * np.exp(-(lengths**2) / (2 * LENGTH_TOLERANCE**2))
    return penalised


def _cosines(left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]], order: int) -> Scores:
    column: dict[tuple[str, ...], int] = {}
    counted = [Counter(zip(*(tokens[i:] for i in range(order)), strict=False)) for tokens in (*left, *right)]
    for counts in counted:
        for gram in counts:
            column.setdefault(gram, len(column))
    table = np.zeros((len(counted), max(len(column), 1)))
    for row, counts in enumerate(counted):
        table[row, [column[gram] for gram in counts]] = list(counts.values())
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    product: Scores = table[: len(left)] @ table[len(left) :].T
    return product


Rule = Callable[[Sequence[str], Vectors, Sequence[Evidence]], Scores]

RULES: dict[str, Rule] = {"consensus": by_consensus, "cosine": by_cosine}
"""Rules by name: candidates, their aligned cosines and the retrieved captions in, a score for each candidate out."""
