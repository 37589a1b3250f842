"""What a pack reaches on pictures it has not seen, and the settings that reach most.

The search is greedy: one parameter after the other, each with the best values of those before it, so that it sees a
dozen or two of the combinations instead of all. A value is changed only for a higher CIDEr-D. Map and pool are chosen
by the retrieved captions alone, before a language model writes anything. Every combination goes through the captioner
itself; what it looks up, embeds and writes is remembered, so nothing is done twice: the first five of ten samples are
five samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from recap.datastore import CaptionStore, SearchResult
from recap.encoders import TextEncoder
from recap.errors import InputError
from recap.files import progress_bar
from recap.fitting.fit import Validation
from recap.language import Decoding, LanguageModel
from recap.language.words import words
from recap.metrics.cider import CiderD
from recap.packs.settings import BATCH, Settings
from recap.selection import RULES
from recap.types import Caption, Draft, Evidence, Prompt, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap

DEPTH = 100
"""Captions retrieved for a picture, once: the largest of the values tried."""

GRID: dict[str, tuple[Any, ...]] = {
    "method": ("procrustes", "ols", "ridge", "whitened"),
    "pool": (10, 30, 100),
    "selection": RULES.names(),
}
"""What is tried in any case, in this order;"""

WRITER_GRID: dict[str, tuple[Any, ...]] = {
    "candidates": ("both", "lm", "retrieved"),
    "k": (4, 8, 13, 18),
    "temperature": (0.1, 0.3, 0.5),
    "samples": (5, 10),
}
"""and where there is a language model; k only if it reads k captions instead of the pool."""

WRITTEN = 100
"""The most validation pictures a language model is tried on."""

Tell = Callable[["Trial"], None]
C = TypeVar("C", bound="ReCap")


@dataclass(frozen=True, slots=True)
class Trial:
    """One value of one parameter, and what came of it."""

    parameter: str
    value: Any
    cider_d: float
    """In points."""
    chosen: bool


def tune_and_measure(captioner: C, validation: Validation, *, tune: bool | Tell = False, progress: bool = False) -> C:
    """Return the captioner with what it reaches on validation pictures in ``about``; settings chosen first if wanted.

    Where ``tune`` can be called, it is told of every trial.
    """
    if len(validation) < 2:
        raise InputError(
            f"{len(validation)} validation pictures are too few to measure with: give a larger share, or other pairs"
        )
    twin = add_cache(captioner)
    chosen: tuple[str, ...] = ()
    if tune:
        trials = _greedy(twin, validation, tune if callable(tune) else None, progress)
        best = {trial.parameter: trial.value for trial in trials if trial.chosen}
        captioner, twin = captioner.configured(**best), twin.configured(**best)
        chosen = tuple(f"{name} {value}" for name, value in best.items())
    captioner.about = captioner.about.but(numbers=measure(twin, validation, progress=progress), tuned=chosen)
    return captioner


def measure(captioner: ReCap, validation: Validation, *, progress: bool = False) -> dict[str, float]:
    """Return CIDEr-D of the captions and of the nearest captions alone, in points, and recalls in per cent."""
    scorer = CiderD([insert_spaces(texts) for texts in validation.references])
    captions = _captions(captioner, validation, "validation", progress)
    nearest = [caption.evidence[0].text for caption in captions]
    return {
        "pictures": len(validation),
        "cider_d": _points(scorer, [caption.text for caption in captions]),
        "nearest_cider_d": _points(scorer, nearest),
        **_recalls(captioner, validation),
    }


def _captions(captioner: ReCap, validation: Validation, what: str, progress: bool) -> list[Caption]:
    """Return the captions of the validation pictures, with a bar."""
    captions: list[Caption] = []
    with progress_bar(total=len(validation), desc=what, unit="image", leave=False, progress=progress) as bar:
        for start in range(0, len(validation), BATCH):
            captions += captioner.caption_vectors(validation.seen_by(captioner, start, start + BATCH))
            bar.update(min(BATCH, len(validation) - start))
    return captions


def _greedy(captioner: ReCap, validation: Validation, tell: Tell | None, progress: bool) -> list[Trial]:
    grid, model = dict(GRID), captioner.language_model
    if captioner.encoder.shares_space:
        grid["method"] = (*grid["method"], "beta-procrustes", "identity")
    if model is None:
        return _try_in_turn(captioner, grid, validation, tell, progress)
    rest = {"selection": grid.pop("selection"), **WRITER_GRID}
    if getattr(model, "reads_pool", False):
        del rest["k"]
    trials = _try_in_turn(captioner.configured(candidates="retrieved"), grid, validation, tell, progress)
    captioner = captioner.configured(**{trial.parameter: trial.value for trial in trials if trial.chosen})
    step = -(-len(validation) // WRITTEN)
    texts, vectors = validation.references[::step], validation.vectors[::step]
    few = Validation(validation.ids[::step], texts, vectors, validation.pictures[::step])
    # looked at once for all trials
    few = replace(few, vectors=few.seen_by(captioner), pictures=())
    return trials + _try_in_turn(captioner, rest, few, tell, progress)


def _try_in_turn(
    captioner: ReCap, grid: dict[str, tuple[Any, ...]], validation: Validation, tell: Tell | None, progress: bool
) -> list[Trial]:
    """Return the trials of a greedy search."""
    scorer = CiderD([insert_spaces(texts) for texts in validation.references])
    known: dict[Settings, float] = {}
    trials: list[Trial] = []
    for parameter, values in grid.items():
        tried: list[tuple[float, ReCap, Any]] = []
        now = _value(captioner.settings, parameter)
        # the present value first, since a tie changes nothing
        for value in dict.fromkeys((now, *values)):
            candidate = captioner.configured(**{parameter: value})
            if candidate.settings not in known:
                captions = _captions(candidate, validation, f"{parameter} {value}", progress)
                known[candidate.settings] = _points(scorer, [caption.text for caption in captions])
            tried.append((known[candidate.settings], candidate, value))
        best = max(tried, key=lambda trial: trial[0])
        captioner = best[1]
        for score, candidate, value in tried:
            trials.append(Trial(parameter, value, score, chosen=candidate is best[1]))
            if tell is not None:
                tell(trials[-1])
    return trials


def _value(settings: Settings, parameter: str) -> Any:
    return getattr(settings if hasattr(settings, parameter) else settings.decoding, parameter)


def _points(scorer: CiderD, texts: Sequence[str]) -> float:
    return float(100 * scorer.score(insert_spaces(texts)).value)


def insert_spaces(texts: Iterable[str]) -> list[str]:
    """Put spaces between the letters of scripts that have none between words; the others stay as they are."""
    return [text if text.isascii() else " ".join(words(text)) for text in texts]


def _recalls(captioner: ReCap, validation: Validation) -> dict[str, float]:
    """Return how often a right one is among the best 1, 5 and 10, for pictures and for captions, in per cent."""
    captions = [text for texts in validation.references for text in texts]
    owners = np.repeat(np.arange(len(validation)), [len(texts) for texts in validation.references])
    images = captioner.alignment.transform(validation.vectors)
    texts = captioner.alignment.transform_texts(captioner.encoder.encode_texts(captions))
    similarity = images @ texts.T
    found: dict[str, float] = {}
    for name, ranks in (("i2t", _ranks(similarity, owners)), ("t2i", _text_ranks(similarity, owners))):
        found |= {f"{name}_r{k}": float(100 * (ranks < k).mean()) for k in (1, 5, 10)}
    return found


def _ranks(similarity: Vectors, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each picture how many captions of others lie before the first of its own."""
    own = owners[None, :] == np.arange(len(similarity))[:, None]
    best = np.where(own, similarity, -np.inf).max(axis=1, keepdims=True)
    before: npt.NDArray[np.int64] = ((similarity > best) & ~own).sum(axis=1)
    return before


def _text_ranks(similarity: Vectors, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each caption how many pictures lie before its own."""
    right = similarity[owners, np.arange(len(owners))]
    before: npt.NDArray[np.int64] = (similarity > right[None, :]).sum(axis=0)
    return before


def add_cache(captioner: C) -> C:
    """Return a twin whose store, text encoder and language model remember what they have answered.

    Twins of the twin share the memory, so that any number of settings can be tried and nothing is done twice.
    """
    twin = captioner.configured()
    twin.datastore = _CachedStore(captioner.datastore)
    twin.encoder = replace(captioner.encoder, text=_CachedEncoder(captioner.encoder.text))
    twin.language_model = _CachedModel(captioner.language_model) if captioner.language_model else None
    return twin


@dataclass
class _CachedStore:
    """A store that searches for a query once, ``DEPTH`` deep, and answers for fewer from that.

    When captions are added to it or removed from it, it forgets.
    """

    store: CaptionStore
    known: dict[bytes, tuple[npt.NDArray[np.int64], Vectors]] = field(default_factory=dict)
    size: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __len__(self) -> int:
        return len(self.store)

    def centred_by(self, center: npt.ArrayLike | None) -> _CachedStore:
        """Return the same captions around another centre."""
        moved = self.store.centred_by(center)
        return self if moved is self.store else _CachedStore(moved)

    def search(self, queries: Vectors, k: int, **filters: Any) -> SearchResult:
        """Return the nearest captions, from memory where they are there."""
        if any(value is not None for value in filters.values()) or k > DEPTH:
            return self.store.search(queries, k, **filters)
        if self.size != len(self.store):
            self.known.clear()
            self.size = len(self.store)
        keys = [query.tobytes() for query in queries]
        new = [row for row, key in enumerate(keys) if key not in self.known]
        if new:
            found = self.store.search(queries[new], DEPTH)
            for row, ids, similarities in zip(new, found.ids, found.similarities, strict=True):
                self.known[keys[row]] = (ids, similarities)
        rows = [self.known[key] for key in keys]
        return SearchResult(np.stack([ids[:k] for ids, _ in rows]), np.stack([found[:k] for _, found in rows]))

    def evidence(self, ids: Any, similarities: Any) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result."""
        return self.store.evidence(ids, similarities)


@dataclass
class _CachedEncoder:
    """A text encoder that embeds a text once."""

    encoder: TextEncoder
    known: dict[str, Vectors] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        if new:
            self.known |= dict(zip(new, self.encoder.encode_texts(new, progress=progress), strict=True))
        return np.stack([self.known[text] for text in texts])


@dataclass
class _CachedModel:
    """A language model that answers a prompt once for each decoding; of many samples the first are fewer samples."""

    model: LanguageModel
    known: dict[tuple[Any, ...], list[Draft]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt."""
        keys = [_key(prompt, replace(decoding, samples=1)) for prompt in prompts]
        count = decoding.sentences
        known = self.known
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if len(known.get(key, ())) < count}
        if new:
            known |= dict(zip(new, self.model.write(list(new.values()), decoding), strict=True))
        return [known[key][:count] for key in keys]


def _key(prompt: Prompt, decoding: Decoding) -> tuple[Any, ...]:
    vector = b"" if prompt.vector is None else prompt.vector.tobytes()
    return prompt.text, tuple(prompt.captions), tuple(prompt.pool), vector, prompt.sight, decoding
