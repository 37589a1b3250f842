"""Pairs of pictures and captions in; statistics and a datastore out, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.datasets import PairFiles, printable
from recap.datastore import CaptionStore, Datastore, MutableStore
from recap.datastore.base import Ids, require_same_encoder
from recap.encoders import Encoder
from recap.errors import InputError, RecapWarning
from recap.fitting.pairs import FitReport, FittedPicture, Incoming, Intake, Sample
from recap.language import WorkedExample
from recap.packs.register import Picture, Pictures, captions_digest
from recap.types import ImageLike, Pair, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.fitting.tuning import Tell

C = TypeVar("C", bound="ReCap")

BLOCK = 512
"""So many pairs are encoded and taken up at a time."""

EXAMPLES = 3
"""A pack keeps so many worked examples,"""

EXAMPLE_CAPTIONS = 8
"""each with so many retrieved captions."""

PairLike = Pair | tuple[ImageLike, str | Sequence[str]]
Pairs = Iterable[PairLike] | PairFiles | str | Path


@dataclass(frozen=True, slots=True)
class Validation:
    """Pictures that were kept apart, encoded, to measure with."""

    ids: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """What is left of the pairs once they have been encoded."""

    statistics: PairStatistics
    datastore: MutableStore
    sample: Sample
    """Some of the pairs, for worked examples and for the confidence of captions."""
    pictures: Pictures
    validation: Validation
    report: FitReport

    @property
    def problems(self) -> tuple[InputError, ...]:
        """What could not be used."""
        return self.report.broken


def as_pairs(pairs: Pairs) -> PairFiles | list[Pair]:
    """Return pairs from whatever a user has: a path, ``Pair`` objects, or tuples of picture and caption(s).

    Pairs of the same id are joined: a picture is encoded once, however many captions it has. Those of archives come
    one by one, so that they need not fit into memory.
    """
    if isinstance(pairs, PairFiles):
        return pairs
    if isinstance(pairs, str | Path):
        return PairFiles(pairs)
    joined: dict[str, Pair] = {}
    for number, given in enumerate(pairs):
        pair = _checked(given, number)
        known = joined.get(pair.id)
        joined[pair.id] = pair if known is None else Pair(known.image, known.captions + pair.captions, known.id)
    if not joined:
        raise InputError("there are no pairs to fit")
    return list(joined.values())


def empty_statistics(encoder: Encoder) -> PairStatistics:
    """Return statistics of no pairs, for vectors of this encoder."""
    return PairStatistics.zeros(
        encoder.image.dimension,
        encoder.text.dimension,
        image_encoder=encoder.image.fingerprint,
        text_encoder=encoder.text.fingerprint,
    )


def encode_pairs(
    pairs: Pairs,
    encoder: Encoder,
    *,
    source: str = "",
    progress: bool = False,
    validation: float | Pairs | None = None,
    keep_vectors: bool = False,
    intake: Intake | None = None,
    datastore: MutableStore | None = None,
) -> EncodedPairs:
    """Encode pairs block by block; what cannot be used is left out and reported.

    Args:
        pairs: as in ``ReCap.fit``.
        encoder: what encodes them.
        source: a name for these captions in the datastore.
        progress: whether to show a bar.
        validation: the share of pictures to keep apart, or pairs of their own. Whether a picture is kept apart depends
            on its content only, so that the same picture under two names is never on both sides, nor ever changes it.
        keep_vectors: whether to keep the image vectors, so that pictures can be withdrawn without being given again.
        intake: what has been taken in before, which is left out now.
        datastore: an empty one that takes the captions, such as a ``DiskStore``; by default one in memory.
    """
    taken = intake or Intake()
    share, apart = kept_apart(validation, encoder, taken, progress=progress)
    withheld = frozenset(item.sha256 for item, _ in apart)
    store = PairStore(encoder, source, keep_vectors, datastore)
    for item, vector in taken.encoded(as_pairs(pairs), encoder, withheld=withheld, progress=progress):
        if is_apart(item.sha256, share):
            apart.append((item, vector))
        else:
            store.take(item, vector)
    store.flush()
    return store.finished(apart, taken, new=intake is None)


def kept_apart(
    validation: float | Pairs | None, encoder: Encoder, taken: Intake, *, progress: bool
) -> tuple[float, list[tuple[Incoming, Vectors]]]:
    """Return the share of pictures to keep apart, and the encoded validation pairs where they are given."""
    if isinstance(validation, float | int):
        if not 0 <= validation < 1:
            raise InputError(f"the share of validation pictures must be at least 0 and below 1, not {validation}")
        return float(validation), []
    if validation is None:
        return 0.0, []
    return 0.0, list(Intake(broken=taken.broken).encoded(as_pairs(validation), encoder, progress=progress))


def is_apart(sha256: str, share: float) -> bool:
    """Tell whether a picture is among the share that is kept apart; its content alone decides."""
    return int(sha256[:13], 16) / 16**13 < share


def worked_examples(sample: Sample, alignment: LinearAlignment, datastore: CaptionStore) -> tuple[WorkedExample, ...]:
    """Return for a few fitted pairs what would have been retrieved without them, and what a person wrote."""
    few = sorted(sample.pictures, key=lambda item: item.sha256)[:EXAMPLES]
    queries = alignment.transform(np.stack([item.vector for item in few]))
    found = datastore.search(queries, EXAMPLE_CAPTIONS, exclude_image_ids=[item.pair.id for item in few])
    examples = []
    for item, ids, similarities in zip(few, found.ids, found.similarities, strict=True):
        captions = tuple(evidence.text for evidence in datastore.evidence(ids, similarities))
        if captions:
            examples.append(WorkedExample(captions, item.pair.captions[0]))
    return tuple(examples)


def finish_fit(captioner: C, encoded: EncodedPairs, *, measure: bool, tune: bool | Tell, calibrate: bool) -> C:
    """Return a captioner that was just fitted with its numbers, its best settings and its confidence, as wanted."""
    if measure or tune:
        from recap.fitting.tuning import judged

        captioner = judged(captioner, encoded.validation, tune=tune)
    if calibrate:
        from recap.fitting.confidence import calibrate_fitted

        captioner.calibration = calibrate_fitted(captioner, encoded.sample)
    return captioner


@dataclass(slots=True)
class PairStore:
    """Takes up encoded pairs: statistics, captions, and the register of pictures."""

    encoder: Encoder
    source: str
    keep_vectors: bool
    given: MutableStore | None = None
    statistics: PairStatistics = field(init=False)
    datastore: MutableStore = field(init=False)
    pictures: Pictures = field(init=False)
    sample: Sample = field(default_factory=Sample)
    _block: list[tuple[Incoming, Vectors]] = field(default_factory=list)

    def __post_init__(self) -> None:
        text = self.encoder.text
        self.statistics = empty_statistics(self.encoder)
        in_memory = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint)
        self.datastore = in_memory if self.given is None else self.given
        require_same_encoder(in_memory, self.datastore)
        self.pictures = Pictures(vectors=[] if self.keep_vectors else None)

    def take(self, item: Incoming, vector: Vectors) -> None:
        """Take up a picture, and encode its captions with those of others."""
        self._block.append((item, vector))
        if len(self._block) == BLOCK:
            self.flush()

    def flush(self) -> None:
        """Encode and keep what has been taken up."""
        block, self._block = self._block, []
        if not block:
            return
        captions = [caption for item, _ in block for caption in item.pair.captions]
        ids = self.keep(block, self.encoder.encode_texts(captions))
        # in float64 and from the rows as they are kept, so that the same can be subtracted again
        images = np.stack([vector for _, vector in block]).astype(np.float64)
        counts = [len(item.pair.captions) for item, _ in block]
        self.statistics.update(images, self.datastore.raw_vectors(ids).astype(np.float64), counts=counts)

    def keep(self, block: Sequence[tuple[Incoming, Vectors]], caption_vectors: Vectors) -> Ids:
        """Add captions to the datastore and pictures to the register, and return the ids of the captions."""
        pairs = [item.pair for item, _ in block]
        owners = [pair.id for pair in pairs for _ in pair.captions]
        captions = [caption for pair in pairs for caption in pair.captions]
        ids = self.datastore.add(captions, caption_vectors, source=self.source, image_ids=owners)
        ends = np.cumsum([len(pair.captions) for pair in pairs])[:-1]
        for (item, vector), own in zip(block, np.split(ids, ends), strict=True):
            digest = captions_digest(item.pair.captions)
            self.pictures.add(Picture(item.pair.id, self.source, item.sha256, tuple(own.tolist()), digest), vector)
        rows = zip(block, np.split(caption_vectors, ends), strict=True)
        self.sample.take(FittedPicture(item.pair, item.sha256, vector, own.copy()) for (item, vector), own in rows)
        return ids

    def finished(self, apart: Sequence[tuple[Incoming, Vectors]], taken: Intake, *, new: bool) -> EncodedPairs:
        """Return what has been kept, with a report; ``apart`` are the validation pictures."""
        if not len(self.datastore):
            if taken.repeated_pairs:
                raise InputError(f"there is no new pair: {len(taken.repeated_pairs)} came before")
            first = f"; the first: {taken.broken[0]}" if taken.broken else ""
            raise InputError(f"none of the {len(taken.broken)} pictures could be used{first}")
        report = FitReport(
            pictures=len(self.pictures),
            captions=len(self.datastore),
            validation=len(apart),
            broken=tuple(taken.broken),
            repeated_pictures=tuple(taken.repeated_pictures),
            repeated_pairs=tuple(taken.repeated_pairs),
        )
        _warn(report, self.encoder, new=new)
        dimension = self.encoder.image.dimension
        validation = Validation(
            ids=tuple(item.pair.id for item, _ in apart),
            references=tuple(item.pair.captions for item, _ in apart),
            vectors=np.array([vector for _, vector in apart], dtype=np.float32).reshape(-1, dimension),
        )
        return EncodedPairs(self.statistics, self.datastore, self.sample, self.pictures, validation, report)


def _checked(given: Any, number: int) -> Pair:
    """Return one pair with its captions on one line each, or say what is wrong with it."""
    if isinstance(given, Pair):
        image, captions, name = given.image, given.captions, given.id
    elif isinstance(given, tuple | list) and len(given) == 2:
        image, captions = given[0], (given[1],) if isinstance(given[1], str) else given[1]
        name = str(image) if isinstance(image, str | Path) else str(number)
    else:
        raise InputError(f"pair {number} is not a Pair, (image, caption) or (image, [captions]): {given!r:.80}")
    if not isinstance(captions, tuple | list) or not captions or not all(isinstance(text, str) for text in captions):
        raise InputError(f"pair {number}: captions are text or a list of texts, not {captions!r:.80}")
    folded = tuple(" ".join(text.split()) for text in captions)
    if not all(folded):
        raise InputError(f"pair {number} has an empty caption")
    return Pair(image, folded, printable(name))


def _warn(report: FitReport, encoder: Encoder, *, new: bool) -> None:
    """Say what is wrong with the pairs as a whole."""
    messages = []
    if report.broken:
        total = report.pictures + report.validation + len(report.broken)
        messages.append(f"{len(report.broken)} of {total} pictures could not be read or have no caption")
    if encoder.text.truncated:
        messages.append(
            f"{encoder.text.truncated} captions are longer than the window of {encoder.text.name} and were cut"
        )
    if new and report.pictures < encoder.image.dimension:
        messages.append(
            f"{report.pictures} pictures are few to align {encoder.image.dimension} dimensions: expect rough "
            "captions for new pictures; a thousand or more do better"
        )
    for message in messages:
        warnings.warn(message, RecapWarning, stacklevel=5)
