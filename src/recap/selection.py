"""Which of several candidates becomes the caption.

``cosine`` is the rule of the paper: the candidate nearest to the image in caption space. ``consensus`` asks the
retrieved captions: each is somebody's description of a similar picture, and the sentence they agree with most is
least likely to name something that is not there. They vote by the words and pairs of words they share with the
candidate, those nearer to the image with more weight. ``likely`` weighs the aligned cosine, this agreement, that of the
other drafts, and how natural a language model for captions finds the sentence: of much that fits the picture, what
people would say. A thing that hardly any of the retrieved captions knows of costs it dearly, and what it chooses loses
phrases at its end that name such things.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from recap.language.words import COMMON_WORDS, Kinds, named, roots, shown, vote_weights, words
from recap.registry import Entry, Registry
from recap.types import UNSURE_BELOW, Candidate, Draft, Evidence, Vectors, unit_rows

Scores = npt.NDArray[np.float64]

LIKELIHOOD_WEIGHT = 0.06
"""How much aligned cosine one unit of log-probability a word is worth,"""

SENTENCE_WEIGHT = 0.02
"""and one of the whole sentence: the more it says, the more can be wrong."""

UNWRITTEN_LOGPROB = -3.7
"""The log-probability a word that retrieved captions are given: a draft this unlikely is not better than they are;"""

UNWRITTEN_WORD, LEAST_SENTENCE = -1.25, -30.0
"""what each of their words takes from that of the whole; and the least that counts."""

AGREEMENT_WEIGHT = 0.33
"""How much aligned cosine full agreement with the retrieved captions is worth;"""

ECHO_WEIGHT = 0.6
"""and with the other drafts: what a writer says again and again it has seen."""

SUPPORT = 0.5
"""A thing that this share of the votes of retrieved captions knows of needs no excuse."""

DOUBT_WEIGHT = 1.0
"""How much aligned cosine a thing is worth for whose support the whole of the votes is missing."""

SUPPORTED, SUPPORTED_UNSURE = 0.07, 0.15
"""A phrase at the end of a draft stays where this share of the votes knows each of its words, or this, if unsure."""


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOING = _listed("holding looking overlooking wearing")
_LINKS = _DOING | _listed(
    "above across against along around as at behind below beside between by during for from in inside near next on "
    "over that through under while with"
)
"""Words that begin a phrase a sentence can do without; so does "and" before a determiner."""

_DETERMINERS = _listed("a an another her his its one other several some the their three two")

_HANGING = _LINKS | _listed(
    "a an and are being covered filled getting hanging has have her his is its laying leaning lying made mounted of "
    "parked perched placed resting riding sitting standing surrounded the their to top up very was were"
)
"""Words a sentence does not end with: they want what stood behind them."""

_NO_THINGS = "back background big bunch close couple each edge end front group image large little lot lots many middle "
_NO_THINGS += "other pair photo picture piece row set side small view"
_EMPTY = COMMON_WORDS | _HANGING | _listed(_NO_THINGS)
"""Words that name nothing which could be missing."""

_PARTS = _listed("body eyes face fur hair head legs skin")
"""What everybody has: of "with its eyes" one wants to know what about them."""

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
    """Score candidates by their cosine, the agreement of evidence and drafts, and their likelihood, less doubts.

    ``logprobs`` are those of whole sentences, NaN for retrieved ones, which count as rather unlikely; without any, the
    cosine alone decides.
    """
    if logprobs is None:
        return cosines.astype(np.float64)
    lengths = np.array([len(words(text)) + 1 for text in texts])
    natural = LIKELIHOOD_WEIGHT * np.where(np.isnan(logprobs), UNWRITTEN_LOGPROB, logprobs / lengths)
    whole = np.where(np.isnan(logprobs), UNWRITTEN_WORD * lengths, np.maximum(logprobs, LEAST_SENTENCE))
    natural += SENTENCE_WEIGHT * whole
    agreed = AGREEMENT_WEIGHT * by_consensus(texts, cosines, evidence)
    agreed += ECHO_WEIGHT * echoes(
        texts, [text for text, one in zip(texts, logprobs, strict=True) if not np.isnan(one)]
    )
    scores: Scores = cosines + natural + agreed - DOUBT_WEIGHT * doubts(texts, evidence)
    return scores


def echoes(texts: Sequence[str], drafts: Sequence[str]) -> Scores:
    """Return how much the drafts agree with each text on average, its own vote left out; 0 where there is but one."""
    if len(drafts) < 2:
        return np.zeros(len(texts))
    others = np.array([[draft != text for draft in drafts] for text in texts])
    mean: Scores = (agreement(texts, drafts) * others).sum(1) / others.sum(1)
    return mean


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
    shortens: bool = False
    """Whether a draft that it chooses loses doubtful ends."""


RULES = Registry(
    "selection",
    (
        Rule("consensus", "what the evidence agrees on", by_consensus),
        Rule("cosine", "the nearest to the picture", by_cosine),
        Rule("likely", "the likeliest sentence that fits the picture", by_likelihood, shortens=True),
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
    query: Vectors
    """The image in caption space."""

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


def shorten(text: str, evidence: Sequence[Evidence], confidence: float | None = None) -> str:
    """Return an English sentence without ends that hardly any retrieved caption supports, or that say nothing.

    "A plate of food with vegetables and a fish" becomes "A plate of food with vegetables" where no fish was retrieved.
    What is left is no less true, and what is gone seldom was: it came from the sound of sentences, not from a picture.
    More goes where the caption is unsure.
    """
    said = text.rstrip(" .").split()
    plain = [" ".join(words(word)) for word in said]
    ends = list(_ends(plain))
    if not ends:
        return text
    weights = np.array(vote_weights(evidence))
    weights /= weights.sum()
    support: Counter[str] = Counter()
    for weight, item in zip(weights.tolist(), evidence, strict=True):
        support.update(dict.fromkeys({root for word in words(item.text) for root in roots(word)}, weight))
    unsure = confidence is not None and confidence < UNSURE_BELOW
    kept, least = len(said), SUPPORTED_UNSURE if unsure else SUPPORTED
    for end in ends:
        things = [word for word in words(" ".join(said[end:kept])) if word not in _EMPTY]
        if _says_nothing(plain[end:kept]) or any(max(support[root] for root in roots(word)) < least for word in things):
            kept = end
        elif things:
            break
    stop = "." if text.rstrip().endswith(".") else ""
    return text if kept == len(said) else " ".join(said[:kept]) + stop


def _says_nothing(phrase: Sequence[str]) -> bool:
    """Tell whether a phrase only says that somebody has what everybody has, or was never finished."""
    has = len(phrase) > 2 and phrase[-3] == "with" and phrase[-2] in _DETERMINERS and phrase[-1] in _PARTS
    return has or list(phrase) == ["and"]


def _ends(plain: Sequence[str]) -> Iterator[int]:
    """Yield after how many words a sentence could end as well, the longest first."""
    for place in range(len(plain) - 1, 1, -1):
        told = plain[place - 1] in ("is", "are") and plain[place] not in _DOING  # where something is
        link = plain[place] in _LINKS and not told
        another = plain[place] == "and" and _DETERMINERS.issuperset(plain[place + 1 : place + 2])  # or nothing at all
        if link or another:
            end = place
            while end and plain[end - 1] in _HANGING:
                end -= 1
            if any(word not in _EMPTY for word in plain[:end]):
                yield end
