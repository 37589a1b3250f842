"""Which of several candidates becomes the caption.

``cosine`` is the rule of the paper: the candidate nearest to the image in caption space. ``consensus`` asks the
retrieved captions: each is somebody's description of a similar picture, and the sentence they agree with most is
least likely to name something that is not there. They vote by the words and pairs of words they share with the
candidate, those nearer to the image with more weight. ``likely`` weighs the aligned cosine, this agreement, and how
natural a language model for captions finds the sentence: of much that fits the picture, what people would say. A thing
that hardly any of the retrieved captions knows of costs it dearly.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from recap.language.words import Kinds, named, shown, vote_weights, words
from recap.registry import Entry, Registry
from recap.types import Candidate, Draft, Evidence, Vectors, unit_rows

Scores = npt.NDArray[np.float64]

LIKELIHOOD_WEIGHT = 0.15
"""How much aligned cosine one unit of log-probability a word is worth."""

UNWRITTEN_LOGPROB = -1.5
"""The log-probability a word that retrieved captions are given: a draft this unlikely is not better than they are."""

AGREEMENT_WEIGHT = 0.6
"""How much aligned cosine full agreement with the retrieved captions is worth."""

SUPPORT = 0.4
"""A thing that this share of the votes of retrieved captions knows of needs no excuse."""

DOUBT_WEIGHT = 0.4
"""How much aligned cosine a thing is worth for whose support the whole of the votes is missing."""

LENGTH_TOLERANCE = 6.0
"""Two captions whose lengths differ by this many words agree exp(-1/2) times as much: CIDEr-D's sigma."""


def is_degenerate(text: str) -> bool:
    """Tell whether a draft is no sentence: no word at all, or the same words again and again."""
    tokens = words(text)
    if not tokens:
        return True
    thrice = any(a == b == c for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False))
    pairs = list(pairwise(tokens))
    return thrice or (len(pairs) >= 6 and len(set(pairs)) <= len(pairs) // 2)


def by_cosine(
    texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence], logprobs: Scores | None = None
) -> Scores:
    """Score candidates by their aligned cosine with the image."""
    return cosines.astype(np.float64)


def by_likelihood(
    texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence], logprobs: Scores | None = None
) -> Scores:
    """Score candidates by their cosine, the agreement of the evidence and the log-probability of a word, less doubts.

    ``logprobs`` are those of whole sentences, NaN for retrieved ones, which count as rather unlikely; without any, the
    cosine alone decides.
    """
    if logprobs is None:
        return cosines.astype(np.float64)
    lengths = np.array([len(words(text)) + 1 for text in texts])
    natural = np.where(np.isnan(logprobs), UNWRITTEN_LOGPROB, logprobs / lengths)
    agreed = AGREEMENT_WEIGHT * by_consensus(texts, cosines, evidence)
    scores: Scores = cosines + LIKELIHOOD_WEIGHT * natural + agreed - DOUBT_WEIGHT * doubts(texts, evidence)
    return scores


def doubts(texts: Sequence[str], evidence: Sequence[Evidence]) -> Scores:
    """Return how doubtful each text is: for every thing it names, what ``SUPPORT`` has more than the votes for it."""
    weights = np.array(vote_weights(evidence))
    weights /= weights.sum()
    known = [shown(item.text) for item in evidence]

    @cache
    def missing(kinds: Kinds) -> float:
        for_it = (weight for weight, there in zip(weights, known, strict=True) if not there.isdisjoint(kinds))
        return max(0.0, SUPPORT - float(sum(for_it)))

    return np.array([sum(map(missing, named(text))) for text in texts])


def by_consensus(
    texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence], logprobs: Scores | None = None
) -> Scores:
    """Score candidates by the weighted agreement of the evidence with them, a caption's vote for itself left out."""
    voters = [item.text for item in evidence]
    weights = np.array(vote_weights(evidence))
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
    place = {text: row for row, text in enumerate(dict.fromkeys((*texts, *others)))}
    tokens = [words(text) for text in place]
    left, right = [place[text] for text in texts], [place[text] for text in others]
    singles, pairs = _unit_counts(tokens), _unit_counts([tuple(pairwise(sentence)) for sentence in tokens])
    # products this small cost more in waiting threads than in arithmetic: 47 against 3 CPU ms on two cores;
    # the limit is the process's, so two threads must not put it back in the wrong order
    with _one_limit, _blas_threads().limit(limits=1, user_api="blas"):
        cosine = (singles[left] @ singles[right].T + pairs[left] @ pairs[right].T) / 2
    lengths = np.array([len(sentence) for sentence in tokens])
    difference = np.subtract.outer(lengths[left], lengths[right])
    penalised: Scores = cosine * np.exp(-(difference**2) / (2 * LENGTH_TOLERANCE**2))
    return penalised


_one_limit = threading.Lock()


@cache
def _blas_threads() -> ThreadpoolController:
    return ThreadpoolController()


def _unit_counts(sentences: Sequence[Sequence[Hashable]]) -> Scores:
    """Return how often each item occurs in each sentence, rows at unit length."""
    column: dict[Hashable, int] = {}
    columns = [column.setdefault(item, len(column)) for sentence in sentences for item in sentence]
    rows = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
    shape = (len(sentences), max(len(column), 1))
    places = rows * shape[1] + np.array(columns, np.int64)
    table = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
    return unit_rows(table.astype(np.float64), otherwise=0.0)


class Scorer(Protocol):
    """Candidates, their aligned cosines, the retrieved captions and log-probabilities in, a score for each out."""

    def __call__(
        self, texts: Sequence[str], cosines: Vectors, evidence: Sequence[Evidence], logprobs: Scores | None = None
    ) -> Scores:
        """Return the scores."""
        ...


@dataclass(frozen=True)
class Rule(Entry):
    """A rule that users choose by name."""

    score: Scorer


RULES = Registry(
    "selection",
    (
        Rule("consensus", "what the evidence agrees on", by_consensus),
        Rule("cosine", "the nearest to the picture", by_cosine),
        Rule("likely", "the likeliest sentence that fits the picture", by_likelihood),
    ),
)


def describe_choice(rule: str) -> str:
    """Return in plain words how a rule chose the caption."""
    return f"chosen as {RULES.get(rule).help}" if rule in RULES else f"chosen by {rule}"


@dataclass(frozen=True, slots=True)
class Proposals:
    """What might be said about an image, before one is chosen."""

    drafts: dict[str, Draft | None]
    """Every candidate once, with the draft it came from, or None for a retrieved one."""
    cosines: Vectors
    """The aligned cosine of each candidate with the image."""
    evidence: tuple[Evidence, ...]
    """Everything that was retrieved, most similar first."""

    @property
    def logprobs(self) -> Scores:
        """The log-probability of each candidate, NaN for retrieved ones."""
        return np.array([draft.logprob if draft else np.nan for draft in self.drafts.values()])

    def ranked(self, rule: str, pool: int) -> list[Candidate]:
        """Return the candidates, best first, by a rule of ``RULES``; ``pool`` retrieved captions are its evidence."""
        texts, drafts = list(self.drafts), list(self.drafts.values())
        scores = RULES.get(rule).score(texts, self.cosines, self.evidence[:pool], self.logprobs)
        order = sorted(range(len(texts)), key=lambda row: (-scores[row], -self.cosines[row], texts[row]))
        return [_candidate(texts[row], drafts[row], scores[row], self.cosines[row]) for row in order]


def _candidate(text: str, draft: Draft | None, score: float, cosine: float) -> Candidate:
    if draft is None:
        return Candidate(text, float(score), float(cosine), "retrieved")
    return Candidate(text, float(score), float(cosine), "lm", draft.logprob)


def gather_candidates(
    drafts: Sequence[Draft], retrieved: Sequence[Evidence], *, prefer_drafts: bool
) -> dict[str, Draft | None]:
    """Return each candidate once, with the draft it came from; ``prefer_drafts`` leaves out the retrieved if it can."""
    written: dict[str, Draft | None] = {}
    for draft in drafts:
        if not is_degenerate(draft.text):
            written.setdefault(draft.text, draft)
    if prefer_drafts and written:
        return written
    return {**{item.text: None for item in retrieved}, **written}
