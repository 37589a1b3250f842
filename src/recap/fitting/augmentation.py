"""The datastore-augmentation loop (DAL): a pack that writes captions for its own pictures, and keeps the good ones.

Algorithm of the paper's appendix. The captions of validation pictures have a mean score, by a metric. Every training
picture is captioned; of what the language model wrote for it, the sentence with the highest score joins the datastore,
marked as synthetic, if that score is above the mean. How many captions are retrieved (k) is then chosen again on the
validation pictures, which gives the next mean; and so on for some rounds. The map stays as it is.

The datastore is a set, as in the paper: a sentence that it holds already is not added again. Training pictures may
retrieve their own captions. Every round is a matter of hours on a large data set, so each finished part of it can be
kept in a folder; a run that was killed goes on from there, and comes to the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from recap.alignment import LinearAlignment
from recap.captioner import ReCap
from recap.datastore import Datastore
from recap.encoders import Encoder
from recap.errors import InputError, check_name
from recap.files import Steps, progress_bar
from recap.fitting.fit import EncodedPairs, Validation, encode_pairs
from recap.fitting.pairs import Pairs
from recap.fitting.tuning import add_cache, insert_spaces
from recap.language import model_fingerprint
from recap.metrics.cider import CiderD
from recap.metrics.clip import aligned_s, ref_aligned_s
from recap.metrics.ngrams import Floats, Ints, offsets_of, ranges
from recap.packs.register import Pictures
from recap.types import Vectors

METRICS = {"cider-d": "CIDEr-D", "spice": "SPICE", "aclip-s": "aCLIP-S", "refaclip-s": "RefaCLIP-S"}
"""What captions can be filtered by, with the names the paper has for them."""

ROUNDS = 5
KS = (4, 8, 13, 18, 30, 100)
"""The values of k that are tried after each round."""

JUDGE = "procrustes"
"""The map behind aCLIP-S and RefaCLIP-S, as in the paper."""

FINGERPRINT = "language model fingerprint"
"""What the description of a run calls it; runs of older versions did not note it."""

BLOCK = 256
"""Number of training pictures between two checkpoints."""


@dataclass(frozen=True, slots=True)
class Round:
    """The state after one round; number 0 is that before the first."""

    number: int
    k: int
    """The value that did best on the validation pictures."""
    score: float
    """The mean score of their captions with it: what synthetic captions of the next round must exceed."""
    tried: dict[int, float]
    """The mean score for every k."""
    added: int
    """How many captions came in this round."""
    synthetic: int
    """How many synthetic captions the datastore holds."""
    in_prompt: float
    """How many of the k captions retrieved for a validation picture are synthetic, on average."""
    captions: tuple[str, ...]
    """Of the validation pictures."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Who scores captions by the picture: a map and, where it is not the captioner's, an encoder and its vectors."""

    alignment: LinearAlignment
    encoder: Encoder | None = None
    train: Vectors | None = None
    """Of the pictures to write captions for."""
    validation: Vectors | None = None

    def scorer(self, metric: str, pictures: Validation, vectors: Vectors | None, encoder: Encoder) -> Scorer:
        """Return the scorer of some pictures; ``encoder`` is the captioner's."""
        seen = pictures if vectors is None else replace(pictures, vectors=vectors)
        return Scorer(metric, seen, self.encoder or encoder, self.alignment)


@dataclass(frozen=True, slots=True)
class Augmented:
    """What the loop leaves: a captioner to be saved as a pack, and how it came about."""

    captioner: ReCap
    rounds: tuple[Round, ...]


def augment(
    captioner: ReCap,
    train: Validation,
    validation: Validation,
    *,
    metric: str = "refaclip-s",
    rounds: int = ROUNDS,
    ks: Sequence[int] = KS,
    judge: Judge | None = None,
    state: Path | None = None,
    tell: Callable[[Round], None] | None = None,
    progress: bool = False,
) -> Augmented:
    """Add synthetic captions to a copy of a captioner, round by round.

    Args:
        captioner: what to start from; it stays as it is. It needs a language model.
        train: the pictures to write captions for, with those that people wrote.
        validation: other pictures, which are neither in the map nor in the datastore.
        metric: one of ``METRICS``.
        rounds: how many; fewer are made when one adds nothing, since all others would not either.
        ks: the values of k that are tried after each round.
        judge: who computes aCLIP-S and RefaCLIP-S; by default the Procrustes map of the captioner's pairs.
        state: a folder where finished parts are kept. The same call goes on from what is there; more rounds may be
            asked for.
        tell: is told of every round.
        progress: whether to show a bar.
    """
    _check(captioner, train, validation, metric, ks)
    judge = judge or Judge(LinearAlignment.from_statistics(captioner.statistics, JUDGE))
    described = _description(captioner, train, validation, metric, ks, judge.alignment)
    steps = Steps.opened(state, described, unnoted=[FINGERPRINT])
    loop = _Loop(_copied(captioner), train, validation, metric, sorted(set(ks)), judge, steps, progress)
    found = loop.run(rounds, tell)
    return Augmented(loop.finished(found[-1]), tuple(found))


def augment_pairs(
    captioner: ReCap,
    pairs: Pairs,
    validation: float | Pairs | None,
    *,
    judge_encoder: Encoder | None = None,
    judge_method: str = JUDGE,
    progress: bool = False,
    **options: Any,
) -> Augmented:
    """Encode pairs as ``encode_pairs`` does, and ``augment`` a captioner with captions of their pictures.

    ``options`` are those of ``augment``. Another ``judge_encoder`` than the captioner's encodes the pairs, too.
    """
    encoded = encode_pairs(pairs, captioner.encoder, validation=validation, keep_vectors=True, progress=progress)
    train = training_pictures(encoded)
    judge = Judge(LinearAlignment.from_statistics(captioner.statistics, judge_method))
    if judge_encoder is not None:
        again = encode_pairs(pairs, judge_encoder, validation=validation, keep_vectors=True, progress=progress)
        seen = training_pictures(again)
        if (seen.ids, again.validation.ids) != (train.ids, encoded.validation.ids):
            raise InputError("a judge with an encoder of its own reads the pairs twice: unpack archives first")
        mapped = LinearAlignment.from_statistics(again.statistics, judge_method)
        judge = Judge(mapped, judge_encoder, seen.vectors, again.validation.vectors)
    return augment(captioner, train, encoded.validation, judge=judge, progress=progress, **options)


def training_pictures(encoded: EncodedPairs) -> Validation:
    """Return the pictures that pairs were made of, with their captions, for ``augment``; vectors must be kept."""
    vectors, store = encoded.pictures.vectors, encoded.datastore
    if vectors is None:
        raise InputError("the vectors of the pictures were not kept: encode the pairs with keep_vectors=True")
    references = tuple(tuple(row.text for row in store.rows(p.caption_ids)) for p in encoded.pictures)
    ids = tuple(picture.id for picture in encoded.pictures)
    return Validation(ids, references, vectors, tuple(encoded.images))


def retrieve_only(captioner: ReCap, k: int, **settings: Any) -> ReCap:
    """Return a captioner that retrieves k captions and no more: models that weigh a larger pool read k of it, too."""
    return captioner.configured(k=k, pool=k, **settings)


class _Loop:
    """The captioner that grows, and all it is measured with."""

    def __init__(
        self,
        captioner: ReCap,
        train: Validation,
        validation: Validation,
        metric: str,
        ks: Sequence[int],
        judge: Judge,
        steps: Steps,
        progress: bool,
    ) -> None:
        self._captioner, self._twin = captioner, add_cache(captioner)
        self._train, self._validation = train, validation
        self._ks, self._steps, self._progress = ks, steps, progress
        self._name = METRICS[metric]
        self._judge_train = judge.scorer(metric, train, judge.train, captioner.encoder)
        self._judge_validation = judge.scorer(metric, validation, judge.validation, self._twin.encoder)

    def run(self, rounds: int, tell: Callable[[Round], None] | None) -> list[Round]:
        """Return the state before the first round and after each, up to one that adds nothing."""
        found: list[Round] = []
        for number in range(rounds + 1):
            added = self.augmented(number, found[-1]) if found else 0
            found.append(self.measured(number, added))
            if tell is not None:
                tell(found[-1])
            if number and not added:
                break
        return found

    def measured(self, number: int, added: int) -> Round:
        """Choose k on the validation pictures."""
        tried = {k: self._steps.done(f"round-{number}-k-{k}", partial(self._with, k)) for k in self._ks}
        k = max(self._ks, key=lambda k: (tried[k]["score"], -k))
        best = tried[k]
        return Round(
            number,
            k,
            best["score"],
            {value: found["score"] for value, found in tried.items()},
            added,
            len(self._store.find(synthetic=True)),
            best["in_prompt"],
            tuple(best["captions"]),
        )

    def augmented(self, number: int, before: Round) -> int:
        """Caption the training pictures, add what is good enough, and return how much that is."""
        captioner = retrieve_only(self._captioner, before.k)
        starts = range(0, len(self._train), BLOCK)
        best: list[tuple[str, float] | None] = []
        for start in progress_bar(starts, desc=f"round {number}", progress=self._progress):
            places = range(start, min(start + BLOCK, len(self._train)))
            best += self._steps.done(f"round-{number}-from-{start}", partial(self._best, captioner, places))
        store = self._store
        there = {row.text for row in store}
        new: dict[str, str] = {}
        for picture, found in zip(self._train.ids, best, strict=True):
            if found is not None and found[1] > before.score and found[0] not in there:
                new.setdefault(found[0], picture)
        if new:
            texts = list(new)
            sources = [_source(store, picture) for picture in new.values()]
            vectors = captioner.encoder.encode_texts(texts)
            store.add(texts, vectors, source=sources, synthetic=True, image_ids=list(new.values()))
        return len(new)

    def finished(self, last: Round) -> ReCap:
        """Return the captioner with the last k, and what is to be known about it."""
        captioner = retrieve_only(self._captioner, last.k)
        about = captioner.about
        score = {"cider_d" if self._name == "CIDEr-D" else self._name: 100 * last.score}
        captioner.about = about.but(
            data={**about.data, "captions": len(self._store), "synthetic_captions": last.synthetic},
            numbers={"pictures": len(self._validation), **score},
            tuned=(f"k {last.k}",),
        )
        return captioner

    @property
    def _store(self) -> Datastore:
        store = self._captioner.datastore
        assert isinstance(store, Datastore)
        return store

    @cached_property
    def _seen(self) -> Vectors:
        """What the captioner is given of the validation pictures."""
        return self._validation.seen_by(self._captioner)

    def _with(self, k: int) -> dict[str, Any]:
        captions = retrieve_only(self._twin, k).caption_vectors(self._seen)
        texts = [caption.text for caption in captions]
        scores = self._judge_validation.score(texts, np.arange(len(texts)))
        synthetic = [sum(item.synthetic for item in caption.evidence) for caption in captions]
        return {"score": float(scores.mean()), "in_prompt": float(np.mean(synthetic)), "captions": texts}

    def _best(self, captioner: ReCap, places: range) -> list[tuple[str, float] | None]:
        """Return for each training picture the best sentence that the model wrote, with its score."""
        proposals = captioner.propose(self._train.seen_by(captioner, places.start, places.stop))
        written = [[text for text, draft in item.drafts.items() if draft is not None] for item in proposals]
        texts = [text for group in written for text in group]
        if not texts:
            return [None] * len(written)
        owners = np.repeat(np.arange(places.start, places.stop), [len(group) for group in written])
        scores = self._judge_train.score(texts, owners)
        best: dict[int, tuple[str, float]] = {}
        for owner, text, score in zip(owners.tolist(), texts, scores.tolist(), strict=True):
            if owner not in best or (score, text) > (best[owner][1], best[owner][0]):
                best[owner] = (text, score)
        return [best.get(place) for place in places]


class Scorer:
    """One of ``METRICS`` for any captions of some pictures, by itself for each caption."""

    def __init__(self, metric: str, pictures: Validation, encoder: Encoder, judge: LinearAlignment) -> None:
        self._metric, self._pictures, self._encoder, self._judge = metric, pictures, encoder, judge
        if metric == "cider-d":
            self._cider = CiderD([insert_spaces(texts) for texts in pictures.references])

    def score(self, texts: Sequence[str], places: Ints) -> Floats:
        """Return the score of each text; ``places`` says which picture it is for."""
        if self._metric == "cider-d":
            return self._cider.score(insert_spaces(texts), places).per_image
        used, row = np.unique(places, return_inverse=True)
        references = [self._pictures.references[place] for place in used]
        if self._metric == "spice":
            from recap.metrics.spice import spice

            return spice(texts, references, row.tolist()).per_image
        images = self._judge.transform(self._pictures.vectors[used])[row]
        captions = self._judge.transform_texts(self._encoder.encode_texts(texts))
        if self._metric == "aclip-s":
            return aligned_s(images, captions).astype(np.float64)
        flat = [text for group in references for text in group]
        rows = self._judge.transform_texts(self._encoder.encode_texts(flat))
        first = offsets_of(np.array([len(group) for group in references]))
        starts, stops = first[row], first[row + 1]
        return ref_aligned_s(images, captions, rows[ranges(starts, stops)], offsets_of(stops - starts)).astype(float)


def _check(captioner: ReCap, train: Validation, validation: Validation, metric: str, ks: Sequence[int]) -> None:
    check_name("metric to filter by", metric, METRICS)
    if captioner.language_model is None or captioner.settings.candidates == "retrieved":
        raise InputError("the loop adds what a language model writes, and this captioner has none: name one")
    if len(validation) < 2 or not len(train):
        raise InputError(f"{len(train)} pictures to caption and {len(validation)} to validate with are too few")
    if not ks or min(ks) < 1:
        raise InputError("k must be tried with at least one value, all of them 1 or more")


def _copied(captioner: ReCap) -> ReCap:
    """Return a captioner with a datastore of its own; the confidence was measured with the old one, and is left out."""
    store, twin = captioner.datastore, captioner.configured()
    if not isinstance(store, Datastore):
        raise InputError("a captioner of several datastores cannot be augmented: merge the packs they come from")
    copy = Datastore(store.dimension, encoder=store.encoder, fingerprint=store.fingerprint, dtype=store.dtype)
    copy.set_center(store.center)
    copy.set_index(store.index)
    theirs, ours = store.ids, copy.merge(store)
    twin.datastore, twin.calibration = copy, None
    if captioner.pictures is not None:
        twin.pictures = Pictures(vectors=[]).joined(captioner.pictures, theirs, ours)
    return twin


def _source(store: Datastore, picture: str) -> str:
    """Return the source of a picture's captions, so that who withdraws it takes its synthetic captions along."""
    rows = store.rows(store.ids_of_images([picture])[0][:1])
    return rows[0].source if rows else ""


def _description(
    captioner: ReCap,
    train: Validation,
    validation: Validation,
    metric: str,
    ks: Sequence[int],
    judge: LinearAlignment,
) -> dict[str, Any]:
    """Return what decides what comes out, apart from the number of rounds."""
    store, model = captioner.datastore, captioner.language_model
    texts = [row.text for row in store] if isinstance(store, Datastore) else []
    # runs of models that only read go on as they were begun
    looked_at = {"pictures looked at": [bool(train.pictures), bool(validation.pictures)]} if captioner.looks else {}
    return {
        **looked_at,
        "metric": metric,
        "ks": sorted(set(ks)),
        "settings": captioner.settings.as_dict(),
        "language model": model.name if model else "none",
        FINGERPRINT: model_fingerprint(model),
        "encoder": [captioner.encoder.image.fingerprint, captioner.encoder.text.fingerprint],
        "maps": [_digest(captioner.alignment.W_), _digest(judge.W_)],
        "captions": _digest(texts),
        "training pictures": _digest([train.ids, train.references], train.vectors),
        "validation pictures": _digest([validation.ids, validation.references], validation.vectors),
    }


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(part).encode())
    return digest.hexdigest()
