"""Pairs of pictures and captions in; statistics and a datastore out.

Pairs become vectors in shards first (``recap.fitting.embedding``): one in a temporary folder for pairs at hand, or a
folder that ``recap embed`` or a cluster made. Then:

1. Hashes of pictures and captions are read from all shards, and it is decided which come for the first time.
2. Statistics of some shards at a time are added up in a tree; whoever does a part has one block of rows in memory.
3. Captions and their vectors are taken into the datastore here, in the order of the input.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.datasets.records import MissingCaptionError
from recap.datastore import CaptionStore, Datastore, MutableStore
from recap.datastore.base import require_same_encoder
from recap.encoders import Encoder
from recap.errors import ImageError, InputError, RecapWarning
from recap.files import progress_bar
from recap.fitting.embedding import Originals, embed_pairs
from recap.fitting.pairs import (
    ABSENT,
    FITTED,
    HELD_OUT,
    WITHHELD,
    FitReport,
    FittedPicture,
    KnownPairs,
    Pairs,
    Sample,
    Selected,
    as_pairs,
    no_statistics,
    select_pairs,
    sum_statistics,
)
from recap.fitting.vectors import Block, Space, VectorFolder, read_shard
from recap.language import LanguageModel, WorkedExample
from recap.packs.register import Picture, Pictures, captions_digest
from recap.packs.settings import EXAMPLE_CAPTIONS, EXAMPLES, Settings
from recap.parallel.parts import read_picture
from recap.types import ImageLike, Pair, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.fitting.tuning import Tell

C = TypeVar("C", bound="ReCap")
Used = tuple[FittedPicture, int]
"""A picture with what is new about it, and its role."""

BLOCK = 512
"""Number of pictures taken into the datastore at a time."""


FAMILIAR = 0.75
"""Of captions in everyday words the writer knows 99 % of the words, of reports on x-rays 58 %, and there it fails."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Held-out pictures, encoded, to measure with."""

    ids: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    vectors: Vectors
    pictures: tuple[ImageLike, ...] = ()
    """Themselves, for a language model that looks at them; where it is empty, that has to do without."""

    def __len__(self) -> int:
        return len(self.ids)

    def seen_by(self, captioner: ReCap, start: int = 0, stop: int | None = None) -> Vectors:
        """Return what ``caption_vectors`` takes of some pictures; one that cannot be read again has no details."""
        vectors = self.vectors[start:stop]
        if not (captioner.looks and self.pictures):
            return vectors
        again = captioner.encode_each(map(read_again, self.pictures[start:stop]))
        rows = [vector if isinstance(row, ImageError) else row for vector, row in zip(vectors, again, strict=True)]
        width = max(map(len, rows), default=0)
        return np.stack([np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows])


def read_again(image: ImageLike) -> ImageLike:
    """Return a picture as encoders take it, from a bucket too; nothing where it cannot be reached."""
    try:
        return read_picture(image) if isinstance(image, str) else image
    except ImageError:
        return b""


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
    images: Sequence[ImageLike] = ()
    """The pictures themselves, in the order of the register, where their vectors are kept."""

    @property
    def problems(self) -> tuple[InputError, ...]:
        """What could not be used."""
        return self.report.broken


@dataclass(slots=True)
class _Problems:
    """What is wrong with pairs."""

    broken: list[InputError] = field(default_factory=list)
    repeated_pictures: list[tuple[str, str]] = field(default_factory=list)
    repeated_pairs: list[tuple[str, str]] = field(default_factory=list)


def encode_pairs(
    pairs: Pairs,
    encoder: Encoder,
    *,
    source: str = "",
    progress: bool = False,
    validation: float | Pairs | None = None,
    keep_vectors: bool = False,
    known: KnownPairs | None = None,
    datastore: MutableStore | None = None,
) -> EncodedPairs:
    """Encode pairs and take them up; what cannot be used is left out and reported.

    The arguments are those of ``ReCap.fit``; pairs that are ``known`` are left out. Whether a picture is held out
    depends on its content only, so that the same picture under two names is never on both sides, nor ever changes it.
    """
    problems = _Problems()
    share, held_out = _held_out(validation, encoder, problems, progress=progress)
    store = PairStore(encoder, source, keep_vectors, datastore)
    withheld = frozenset(item.sha256 for item in held_out)
    with tempfile.TemporaryDirectory(prefix="recap-") as temporary:
        folder, originals = _embedded(pairs, temporary, encoder, progress=progress)
        shards = select_pairs(folder, share, withheld, known=known, progress=progress)
        if any(part.fitted().any() for part in shards):
            store.statistics = sum_statistics(folder, shards)
        bar = progress_bar(
            _rows(folder, shards, problems, originals, known),
            desc="captions",
            unit="image",
            progress=progress,
        )
        rows = iter(bar)
        while block := list(islice(rows, BLOCK)):
            held_out += [picture for picture, role in block if role == HELD_OUT]
            store.add([picture for picture, role in block if role == FITTED])
    return store.finished(held_out, problems, new=known is None)


def finish_fit(
    captioner: C, encoded: EncodedPairs, *, measure: bool, tune: bool | Tell, calibrate: bool, progress: bool = False
) -> C:
    """Return a captioner that was just fitted with its numbers, its best settings and its confidence, as wanted."""
    started = time.perf_counter()
    if measure or tune:
        from recap.fitting.tuning import tune_and_measure

        captioner = tune_and_measure(captioner, encoded.validation, tune=tune, progress=progress)
        captioner.seconds = {**captioner.seconds, "validation": time.perf_counter() - started}
    if calibrate:
        from recap.fitting.confidence import calibrate_fitted

        started = time.perf_counter()
        captioner.calibration = calibrate_fitted(captioner, encoded.sample, progress=progress)
        captioner.seconds = {**captioner.seconds, "confidence": time.perf_counter() - started}
    return captioner


def empty_statistics(encoder: Encoder) -> PairStatistics:
    """Return statistics of no pairs, for vectors of this encoder."""
    return no_statistics(Space.of(encoder))


def suited_to(settings: Settings, model: LanguageModel | None, sample: Sample) -> Settings:
    """Return settings that leave a language model out where too many words of the captions are foreign to it."""
    familiarity = getattr(model, "familiarity", None)
    if model is None or familiarity is None or settings.candidates != "both":
        return settings
    known = familiarity([text for item in sample.pictures for text in item.pair.captions])
    if known >= FAMILIAR:
        return settings
    message = (
        f"the {model.name} knows only {known:.0%} of the words of these captions, so a caption will be one of yours; "
        "candidates='both' (--candidates both) has it write all the same"
    )
    warnings.warn(message, RecapWarning, stacklevel=4)
    return settings.but(candidates="retrieved")


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


def _held_out(
    validation: float | Pairs | None, encoder: Encoder, problems: _Problems, *, progress: bool
) -> tuple[float, list[FittedPicture]]:
    """Return the share of pictures to hold out, and the encoded validation pairs where they are given."""
    if isinstance(validation, float | int):
        if not 0 <= validation < 1:
            raise InputError(f"the share of validation pictures must be at least 0 and below 1, not {validation}")
        return float(validation), []
    if validation is None:
        return 0.0, []
    with tempfile.TemporaryDirectory(prefix="recap-") as temporary:
        folder, originals = _embedded(validation, temporary, encoder, progress=progress)
        found = _Problems(problems.broken)
        return 0.0, [picture for picture, _ in _rows(folder, select_pairs(folder), found, originals)]


def _embedded(pairs: Pairs, temporary: str, encoder: Encoder, *, progress: bool) -> tuple[VectorFolder, Originals]:
    """Return the vectors of pairs, and some pictures that are in no file of their own."""
    if isinstance(pairs, VectorFolder):
        Space.of(encoder).check(pairs.space, pairs.place)
        return pairs, Originals()
    originals = Originals()
    return embed_pairs(as_pairs(pairs), temporary, encoder, originals=originals, progress=progress), originals


def _rows(
    folder: VectorFolder,
    shards: Sequence[Selected],
    problems: _Problems,
    originals: Originals,
    known: KnownPairs | None = None,
) -> Iterator[Used]:
    """Yield what is new of all shards in their order, with its role; what is not is noted in ``problems``."""
    firsts = _Firsts(shards, () if known is None else known.names)
    for place, part in zip(folder.shards, shards, strict=True):
        row = caption = 0
        for block in read_shard(place):
            some = part.rows(row, row + len(block), caption)
            yield from _used(block, some, firsts, problems, originals)
            row, caption = row + len(block), caption + len(some.new)


def _used(block: Block, part: Selected, firsts: _Firsts, problems: _Problems, originals: Originals) -> Iterator[Used]:
    vectors, texts = block.image_vectors, block.caption_vectors
    columns = (block.texts(name) for name in ("id", "image", "sha256", "error"))
    end = 0
    for row, (name, image, sha, error, captions) in enumerate(zip(*columns, block.captions, strict=True)):
        start, end = end, end + len(captions)
        new = part.new[start:end]
        first = firsts.name(name, int(part.first[row]))
        if first != name:
            problems.repeated_pictures.append((name, first))
        if sha:
            problems.repeated_pairs += [(name, caption) for caption in compress(captions, ~new)]
        role = int(part.roles[row])
        if role == ABSENT:
            problems.broken.append(_problem(name, image, sha, error))
        elif role != WITHHELD and new.any():
            pair = Pair(image or originals.get(sha, ""), tuple(compress(captions, new)), name)
            yield FittedPicture(pair, sha, vectors[row].copy(), texts[start:end][new]), role


class _Firsts:
    """Names the first of pictures with the same content, as rows come by one after the other."""

    def __init__(self, shards: Sequence[Selected], known: Sequence[str]) -> None:
        first = np.concatenate([part.first for part in shards])
        rows = np.arange(len(known), len(known) + len(first))
        self._names = dict.fromkeys(first[first != rows].tolist(), "")
        self._names |= dict(enumerate(known))
        self._row = len(known)

    def name(self, name: str, first: int) -> str:
        """Return the first name of the content of the next row, which has this name."""
        row, self._row = self._row, self._row + 1
        if first != row:
            return self._names[first]
        if row in self._names:
            self._names[row] = name
        return name


def _problem(name: str, image: str, sha: str, error: str) -> InputError:
    if error:
        return ImageError(error) if image or sha else InputError(error)
    if not sha:
        return InputError(f"{name}: a caption without a picture")
    return MissingCaptionError(f"{image or name}: no caption")


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
    images: list[ImageLike] = field(default_factory=list)

    def __post_init__(self) -> None:
        text = self.encoder.text
        self.statistics = empty_statistics(self.encoder)
        in_memory = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint)
        self.datastore = in_memory if self.given is None else self.given
        require_same_encoder(in_memory, self.datastore)
        self.pictures = Pictures(vectors=[] if self.keep_vectors else None)

    def add(self, block: Sequence[FittedPicture]) -> None:
        """Add captions to the datastore and pictures to the register."""
        if not block:
            return
        captions = [caption for item in block for caption in item.pair.captions]
        owners = [item.pair.id for item in block for _ in item.pair.captions]
        vectors = np.concatenate([item.caption_vectors for item in block])
        ids = self.datastore.add(captions, vectors, source=self.source, image_ids=owners)
        ends = np.cumsum([len(item.pair.captions) for item in block])[:-1]
        for item, own in zip(block, np.split(ids, ends), strict=True):
            digest = captions_digest(item.pair.captions)
            picture = Picture(item.pair.id, self.source, item.sha256, tuple(own.tolist()), digest)
            self.pictures.add(picture, item.vector)
        if self.keep_vectors:
            self.images += [item.pair.image for item in block]
        self.sample.take(block)

    def finished(self, held_out: Sequence[FittedPicture], problems: _Problems, *, new: bool) -> EncodedPairs:
        """Return what has been kept, with a report."""
        if not len(self.datastore):
            if problems.repeated_pairs:
                raise InputError(f"there is no new pair: {len(problems.repeated_pairs)} came before")
            first = f"; the first: {problems.broken[0]}" if problems.broken else ""
            raise InputError(f"none of the {len(problems.broken)} pictures could be used{first}")
        report = FitReport(
            pictures=len(self.pictures),
            captions=len(self.datastore),
            validation=len(held_out),
            broken=tuple(problems.broken),
            repeated_pictures=tuple(problems.repeated_pictures),
            repeated_pairs=tuple(problems.repeated_pairs),
        )
        _warn(report, self.encoder, new=new)
        validation = Validation(
            ids=tuple(item.pair.id for item in held_out),
            references=tuple(item.pair.captions for item in held_out),
            vectors=np.array([item.vector for item in held_out], np.float32).reshape(-1, self.encoder.image.dimension),
            pictures=tuple(item.pair.image for item in held_out),
        )
        found = self.statistics, self.datastore, self.sample, self.pictures
        return EncodedPairs(*found, validation, report, self.images)


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
    if new and report.pictures < encoder.image.dimension and not encoder.shares_space:
        messages.append(
            f"{report.pictures} pictures are few to align {encoder.image.dimension} dimensions: expect rough "
            "captions for new pictures; a thousand or more do better"
        )
    for message in messages:
        warnings.warn(message, RecapWarning, stacklevel=5)
