"""Fitting the confidence of captions: what people would call right, and how the captioner's own captions fare.

What "right" means comes from Flickr8k-Expert, where three experts rated a caption of a picture from 1 to 4: it is the
share of them that gave at least 3, a caption with minor errors at most. Nobody has rated the captions of your pack. A
``Judge`` stands in: it was fitted on those ratings, and looks at the captions that people wrote for the same picture.
``fit_calibration`` captions pictures whose captions are known, with these held out, has the judge label what comes
out, and fits the confidence to that. The captioner's own choices must be among what is fitted: a caption that was
chosen for its score is right less often than another one of the same score. docs/confidence.md has the numbers.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from recap.alignment import LinearAlignment
from recap.confidence import FEATURES, Calibration, Floats, features, fit_logistic, read_section, sigmoid
from recap.datastore import MutableStore
from recap.encoders import Encoder
from recap.errors import ImageError, InputError, RecapWarning
from recap.files import progress_bar
from recap.fitting.fit import empty_statistics, read_again
from recap.fitting.pairs import Pairs, Sample, as_pairs, smallest_hashes
from recap.packs.register import captions_digest
from recap.selection import RULES, Proposals
from recap.types import Pair, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap

Places = npt.NDArray[np.intp]

FEWEST_PICTURES = 20
"""A calibration of fewer pictures would be worth nothing."""

BLOCK = 64
"""Batch size."""

WRITTEN, WRITTEN_SHARE = 40, 5
"""The language model is asked about this many of the pictures, or about one in five if that is more."""

WRITTEN_WEIGHT = 0.5
"""What the captions it writes count together, where those that are retrieved count 1."""


@dataclass(frozen=True, slots=True)
class Judge:
    """What experts would say of a caption, told from captions that people wrote for the same picture.

    It looks at the mean cosine with these, in units of how close they are to one another: 0 is any caption, 1 is as
    close as people come. In these units it can be carried over to other encoders, languages and domains.
    """

    intercept: float
    slope: float
    unit: float
    """The mean cosine of two captions of one picture, where the judge was fitted."""
    text_encoder: str
    """The fingerprint of the text encoder there."""

    @classmethod
    def fit(cls, closeness: Floats, right: Floats, *, unit: float, text_encoder: str) -> Self:
        """Fit to mean cosines with the references, in units, and the share of people who call each caption right."""
        intercept, slopes = fit_logistic(closeness[:, None], right)
        return cls(intercept, float(slopes[0]), unit, text_encoder)

    @classmethod
    def packaged(cls) -> Judge:
        """Return the one fitted on Flickr8k-Expert that comes with recap."""
        from recap.packs.builtin import packaged_file
        from recap.packs.folder import CONFIDENCE

        return cls(**read_section(packaged_file(CONFIDENCE), "judge"))

    def probabilities(self, closeness: Floats) -> Floats:
        """Return the share of experts that would call each caption right."""
        return sigmoid(self.intercept + self.slope * closeness)


@dataclass(frozen=True, slots=True)
class KnownPictures:
    """Pictures whose captions are known: vectors of both, in the encoder's space."""

    images: Vectors
    """As ``ReCap.encode_each`` gives them."""
    references: Vectors
    counts: tuple[int, ...]
    """How many references each picture has; they follow one another in the order of the pictures."""
    ids: tuple[str, ...] | None = None
    """Of the pictures in the datastore, whose captions are then not retrieved for them; None if they are not there."""

    @classmethod
    def of(
        cls, encoder: Encoder, ids: Sequence[str], captions: Sequence[Sequence[str]], images: Vectors
    ) -> KnownPictures:
        """Return pictures of the datastore whose vectors are there already."""
        texts = encoder.encode_texts([text for group in captions for text in group])
        return cls(images, texts, tuple(len(group) for group in captions), tuple(ids))

    @classmethod
    def of_sample(cls, sample: Sample) -> KnownPictures:
        """Return pictures a captioner was fitted on."""
        return cls(
            np.stack([item.vector for item in sample.pictures]),
            np.concatenate([item.caption_vectors for item in sample.pictures]),
            tuple(len(item.caption_vectors) for item in sample.pictures),
            tuple(item.pair.id for item in sample.pictures),
        )

    @classmethod
    def of_pack(cls, captioner: ReCap, most: int) -> KnownPictures:
        """Return pictures whose vectors a pack keeps."""
        register, store = captioner.pictures, captioner.datastore
        vectors = None if register is None else register.vectors
        if register is None or vectors is None or not isinstance(store, MutableStore):
            raise InputError("the pack keeps no image vectors to calibrate with: give pairs that it was fitted to")
        if captioner.looks:
            raise InputError("the language model of the pack looks at the pictures themselves: give pairs to calibrate")
        there = set(store.ids.tolist())
        whole = ((p.sha256, place) for place, p in enumerate(register) if there.issuperset(p.caption_ids))
        places = smallest_hashes(whole, most)
        some = register.at(places)
        texts = [store.raw_vectors(picture.caption_ids) for picture in some]
        references = np.concatenate([np.empty((0, store.dimension), np.float32), *texts])
        return cls(vectors[places], references, tuple(map(len, texts)), tuple(picture.id for picture in some))

    def part(self, chosen: Places) -> KnownPictures:
        """Return some of the pictures."""
        groups = self.groups(self.references)
        ids = None if self.ids is None else tuple(self.ids[row] for row in chosen)
        counts = tuple(self.counts[row] for row in chosen)
        return KnownPictures(self.images[chosen], np.concatenate([groups[row] for row in chosen]), counts, ids)

    def groups(self, texts: Vectors) -> list[Vectors]:
        """Cut rows that belong to the references by picture."""
        return np.split(texts, np.cumsum(self.counts)[:-1])


def fit_calibration(
    captioner: ReCap,
    pairs: Pairs | None = None,
    *,
    fitted: bool = True,
    pictures: int = 1000,
    judge: Judge | None = None,
    progress: bool = False,
) -> Calibration:
    """Fit the confidence of a captioner on pairs of its domain.

    Args:
        captioner: whose captions are to have a confidence; with its language model, if it has one.
        pairs: as ``ReCap.fit`` takes them. Most useful where pictures have several captions. Without them, the pictures
            whose vectors the pack keeps.
        fitted: whether the captioner was fitted on these pairs; ``calibrate`` then holds them out. Pairs that it does
            not know again are left out.
        pictures: the most to use; those with the smallest hashes.
        judge: who says what is right; by default the one fitted on Flickr8k-Expert.
        progress: whether to show a bar.
    """
    if pairs is None:
        known = KnownPictures.of_pack(captioner, pictures)
    else:
        known = _encoded(captioner, pairs, pictures, fitted)
    return calibrate(captioner, known, fitted=fitted or pairs is None, judge=judge, progress=progress)


def calibrate_fitted(captioner: ReCap, sample: Sample, *, progress: bool = False) -> Calibration | None:
    """Fit the confidence of a captioner on pictures it was just fitted on; warn and return None where they do not do.

    Of a pack that keeps vectors all pictures count, not only the new ones.
    """
    keeps = captioner.pictures is not None and captioner.pictures.vectors is not None
    try:
        if keeps and not captioner.looks:
            known, seen = KnownPictures.of_pack(captioner, sample.most), None
        else:
            known, seen = KnownPictures.of_sample(sample), _look_again(captioner, sample)
        return calibrate(captioner, known, seen=seen, fitted=True, progress=progress)
    except InputError as error:
        message = f"captions of this pack will have no confidence: {error}"
        warnings.warn(message, RecapWarning, stacklevel=2)
        return None


def drop_calibration(captioner: ReCap, why: str) -> None:
    """Take the confidence from a captioner that has changed since it was fitted, and warn if there was one."""
    if captioner.calibration is not None:
        captioner.calibration = None
        message = f"{why}: captions have no confidence until it is fitted anew (recap pack calibrate)"
        warnings.warn(message, RecapWarning, stacklevel=2)


def calibrate(
    captioner: ReCap,
    known: KnownPictures,
    *,
    seen: Mapping[int, Vectors] | None = None,
    fitted: bool,
    folds: int = 5,
    judge: Judge | None = None,
    progress: bool = False,
) -> Calibration:
    """Fit the confidence of a captioner on pictures that are encoded already.

    Those it was ``fitted`` on are held out fold by fold: the map is solved without them. Captions of the same
    picture are never retrieved for it. A language model is asked, greedily, about some of the pictures only, since its
    captions obey the same law: about those of which ``seen`` has what ``encode_each`` gives, by their place.
    """
    if len(known.counts) < FEWEST_PICTURES:
        raise InputError(f"confidence needs at least {FEWEST_PICTURES} pictures with captions, not {len(known.counts)}")
    chosen = judge or Judge.packaged()
    unit = unit_of(captioner, known, chosen)
    parts = np.arange(len(known.counts)) % (folds if fitted else 1)
    if seen is None:
        seen = {place: known.images[place] for place in _asked_about(len(parts))}
    if captioner.language_model is None or captioner.settings.candidates == "retrieved":
        seen = {}
    retrieved, written = [], []
    with progress_bar(total=len(parts), desc="confidence", unit="image", progress=progress) as bar:
        for number in np.unique(parts):
            places = np.flatnonzero(parts == number)
            part = known.part(places)
            twin = _without(captioner, part) if fitted else captioner
            retrieved.append(own_rows(twin.configured(candidates="retrieved"), part))
            if asked := [place for place in places.tolist() if place in seen]:
                some = replace(known.part(np.array(asked)), images=np.stack([seen[place] for place in asked]))
                written.append(own_rows(twin.configured(temperature=0), some))
            bar.update(len(part.counts))
    rows, closeness = (np.concatenate(found) for found in zip(*retrieved, *written, strict=True))
    weights, count = np.ones(len(rows)), sum(len(found[0]) for found in retrieved)
    weights[count:] = WRITTEN_WEIGHT * count / max(1, len(rows) - count)
    return Calibration.fit(
        rows,
        chosen.probabilities(closeness / unit),
        weights=weights,
        method=captioner.settings.method,
        pictures=len(known.counts),
        labels="the captions of the same picture, by a judge fitted on Flickr8k-Expert",
    )


def _asked_about(pictures: int) -> list[int]:
    """Return the places of the pictures that a language model is asked about, evenly among all."""
    count = min(pictures, max(WRITTEN, pictures // WRITTEN_SHARE))
    places: list[int] = np.unique(np.linspace(0, pictures - 1, count).astype(int)).tolist()
    return places


def _look_again(captioner: ReCap, sample: Sample) -> dict[int, Vectors] | None:
    """Read pictures again that a language model is asked about, where it looks at them."""
    if not captioner.looks:
        return None
    places = _asked_about(len(sample.pictures))
    rows = captioner.encode_each(read_again(sample.pictures[place].pair.image) for place in places)
    seen = {place: row for place, row in zip(places, rows, strict=True) if not isinstance(row, ImageError)}
    # those inside of archives that others read are not here, and have to do without
    return seen if len(seen) >= FEWEST_PICTURES else None


def own_rows(captioner: ReCap, known: KnownPictures) -> tuple[Floats, Floats]:
    """Return features of what the captioner would say, and how close it is to what people said.

    Some captions a picture: the choice of each selection rule, and any of the candidates.
    """
    random = np.random.default_rng(0)
    rows, texts = [], []
    for proposals in _proposals(captioner, known.images, known.ids):
        candidates, pool = list(proposals.drafts), proposals.evidence[: captioner.settings.pool]
        scores = [rule.score(candidates, proposals.cosines, pool, proposals.logprobs) for rule in RULES]
        picks = [int(np.argmax(values)) for values in scores]
        picks.append(int(random.integers(len(candidates))))
        picked = [candidates[pick] for pick in picks]
        rows.append(features(picked, proposals.cosines[picks], proposals.evidence))
        texts += picked
    owners = np.repeat(np.arange(len(rows)), len(RULES.names()) + 1)
    return np.concatenate(rows), closeness_to_references(captioner, known, texts, owners)


def given_rows(captioner: ReCap, images: Vectors, texts: Sequence[str], owners: Places) -> Floats:
    """Return features of captions that somebody wrote; ``owners`` says for each of which image, by its row."""
    vectors = captioner.alignment.transform_texts(captioner.encoder.encode_texts(list(texts)))
    rows = np.empty((len(texts), len(FEATURES)))
    retrieving = captioner.configured(candidates="retrieved")
    images = captioner.vectors_of(images)
    queries = captioner.alignment.transform(images)
    for row, (query, proposals) in enumerate(zip(queries, _proposals(retrieving, images), strict=True)):
        own = np.flatnonzero(owners == row)
        rows[own] = features([texts[place] for place in own.tolist()], vectors[own] @ query, proposals.evidence)
    return rows


def closeness_to_references(captioner: ReCap, known: KnownPictures, texts: Sequence[str], owners: Places) -> Floats:
    """Return the mean cosine of each text with the references of the picture it is about."""
    vectors = captioner.alignment.transform_texts(captioner.encoder.encode_texts(list(texts)))
    groups = known.groups(captioner.alignment.transform_texts(known.references))
    means = np.stack([group.mean(0) for group in groups])
    cosines: Floats = np.einsum("ij,ij->i", vectors, means[owners], dtype=np.float64)
    return cosines


def unit_of(captioner: ReCap, known: KnownPictures, judge: Judge | None = None) -> float:
    """Return the mean cosine of two captions of one picture; the judge's own where too few pictures have two."""
    cosines = []
    for group in known.groups(captioner.alignment.transform_texts(known.references)):
        if len(group) > 1:
            products = group @ group.T
            cosines.append((products.sum() - np.trace(products)) / (len(group) * (len(group) - 1)))
    if len(cosines) >= FEWEST_PICTURES and float(np.mean(cosines)) > 0:
        return float(np.mean(cosines))
    if judge is not None and judge.text_encoder == captioner.encoder.text.fingerprint:
        return judge.unit
    raise InputError(
        f"confidence needs at least {FEWEST_PICTURES} pictures with two captions or more, to see how close captions "
        "of one picture are with this encoder"
    )


def _proposals(captioner: ReCap, images: Vectors, ids: Sequence[str] | None = None) -> Iterator[Proposals]:
    for start in range(0, len(images), BLOCK):
        block = slice(start, start + BLOCK)
        yield from captioner.propose(images[block], exclude_image_ids=None if ids is None else ids[block])


def _without(captioner: ReCap, part: KnownPictures) -> ReCap:
    """Return a captioner whose map does not know some pictures; the mean of the captions stays that of all."""
    vectors = captioner.vectors_of(part.images)
    held_out = empty_statistics(captioner.encoder).update(vectors, part.references, counts=part.counts)
    remaining = captioner.statistics - held_out
    twin = copy(captioner)
    twin.alignment = LinearAlignment.from_statistics(remaining, **captioner.alignment.get_params())
    return twin


def _encoded(captioner: ReCap, pairs: Pairs, most: int, fitted: bool) -> KnownPictures:
    """Encode some of the pairs; of fitted ones those that went into the map just so."""
    chosen = smallest_hashes(_hashed(captioner, as_pairs(pairs), fitted), most)
    vectors = captioner.encode_each(pair.image for pair in chosen)
    readable = [(p, v) for p, v in zip(chosen, vectors, strict=True) if not isinstance(v, ImageError)]
    return KnownPictures.of(
        captioner.encoder,
        [pair.id for pair, _ in readable],
        [pair.captions for pair, _ in readable],
        np.array([vector for _, vector in readable], dtype=np.float32),
    )


def _hashed(captioner: ReCap, pairs: Iterable[Pair], fitted: bool) -> Iterator[tuple[str, Pair]]:
    """Yield the usable pairs with the hash of the picture, or of its name where the pack does not know it."""
    if not fitted or captioner.pictures is None:
        yield from ((hashlib.sha256(pair.id.encode(errors="surrogateescape")).hexdigest(), pair) for pair in pairs)
        return
    register = {(picture.id, picture.captions_sha256): picture.sha256 for picture in captioner.pictures}
    for pair in pairs:
        known = register.get((pair.id, captions_digest(pair.captions)))
        if known is not None:
            yield known, pair
