"""``recap embed``: pictures and captions to vectors, a shard for each part.

An encoder whose work is done in parts, for all that takes an encoder, such as the metrics of ``recap score``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recap.datasets import PairFiles, printable
from recap.encoders import Encoder, load_encoder
from recap.encoders.images import digest
from recap.encoders.inputs import label, read
from recap.errors import ImageError, InputError
from recap.files import progress_bar
from recap.fitting.pairs import SAMPLE
from recap.fitting.vectors import ROWS, Row, ShardFacts, Space, VectorFolder, read_space, shard_facts, write_shard
from recap.parallel import storage
from recap.parallel.parts import Part, Record
from recap.parallel.runners import LocalRunner, Result, Runner
from recap.types import ImageLike, Pair, Vectors


@dataclass(frozen=True, slots=True)
class Summary:
    """What a folder of vectors holds, and what was new in it."""

    shards: tuple[ShardFacts, ...]
    new: int

    @property
    def pictures(self) -> int:
        """Pictures with a vector."""
        return sum(shard.pictures for shard in self.shards)

    @property
    def captions(self) -> int:
        """Captions, each with a vector."""
        return sum(shard.captions for shard in self.shards)

    @property
    def broken(self) -> list[str]:
        """What was wrong with the pictures that have none."""
        return [reason for shard in self.shards for reason in shard.broken]


def embed(
    parts: Sequence[Part],
    out: str,
    encoder: Encoder,
    *,
    runner: Runner | None = None,
    device: str = "cpu",
    restart: bool = False,
    progress: bool = False,
    source: str = "",
) -> Summary:
    """Encode parts and write a shard for each; shards that are there already are kept.

    A shard is made again if a picture that could not be read for it is there now.

    Args:
        parts: the input, as ``find_parts`` cuts it.
        out: a folder or a URL; every machine of a cluster must be able to write there.
        encoder: what encodes; machines of a cluster load it by its name.
        runner: who does the work; this process if not given.
        device: where the encoders of a cluster run.
        restart: whether to encode everything again.
        progress: whether to show a bar.
        source: what the parts are of. If it is given, vectors of something else are not deleted unless ``restart`` is.
    """
    started, out, space = time.time(), storage.absolute(out), Space.of(encoder)
    folder = VectorFolder(out)
    names = [f"{number:06d}-{part.digest}.parquet" for number, part in enumerate(parts)]
    facts = {} if restart else _kept(folder, names, space, source)
    todo = [(storage.joined(out, name), part) for name, part in zip(names, parts, strict=True) if name not in facts]
    chosen = runner or LocalRunner()
    task = Embedding(space, device, None if chosen.remote else encoder)
    with progress_bar(total=len(parts), initial=len(facts), unit="part", progress=progress) as bar:
        for _, made in chosen.map(task, todo, device):
            facts[made.file] = made
            bar.update()
    shards = tuple(facts[name] for name in names)
    folder.finish(space, shards, source, started)
    return Summary(shards, len(todo))


class Originals(dict[str, ImageLike]):
    """Some pictures that are in no file of their own, by the hash of their content: those with the smallest."""

    def add(self, sha256: str, picture: ImageLike) -> None:
        """Look at one more."""
        self[sha256] = picture
        if len(self) > SAMPLE:
            del self[max(self)]


def embed_pairs(
    pairs: PairFiles | Sequence[Pair], place: str, encoder: Encoder, *, originals: Originals, progress: bool = False
) -> VectorFolder:
    """Encode pairs at hand into one shard of a folder."""
    folder, space = VectorFolder(place), Space.of(encoder)
    bar = progress_bar(pairs, desc="pairs", unit="image", progress=progress)
    shard = storage.joined(place, f"{0:06d}-{0:016x}.parquet")
    facts = write_shard(shard, _blocks(encoder, _records(bar, pairs), originals), space)
    folder.finish(space, [facts])
    return folder


def _records(bar: Iterable[Pair], pairs: PairFiles | Sequence[Pair]) -> Iterator[Record]:
    """Yield pairs as records, those that cannot be used last."""
    for pair in bar:
        if isinstance(pair.image, str | Path):
            yield Record(pair.id, pair.captions, str(pair.image))
        else:
            yield Record(pair.id, pair.captions, content=pair.image)
    for error in pairs.broken if isinstance(pairs, PairFiles) else ():
        yield Record(printable(str(error).partition(": ")[0]), (), error=str(error))


def _kept(folder: VectorFolder, names: Sequence[str], space: Space, source: str) -> dict[str, ShardFacts]:
    """Return the shards that need not be made again, by their names."""
    old = folder.shard_names()
    there = sorted(old & set(names))
    if source and old and not there and folder.source != source:
        raise InputError(
            f"{folder.place}: has vectors of {folder.source or 'another input'}, which would be deleted: "
            "name another folder, or have them replaced with --restart"
        )
    for name in there[:1]:
        space.check(read_space(storage.joined(folder.place, name)), folder.place)
    facts = [shard_facts(storage.joined(folder.place, name)) for name in there]
    return {shard.file: shard for shard in facts if not any(map(_is_there, shard.unread))}


def _is_there(picture: str) -> bool:
    try:
        return storage.exists(picture)
    except InputError:  # the bucket cannot be reached this time, either
        return False


@dataclass(frozen=True, slots=True)
class Embedding:
    """Loads an encoder on the machine it finds itself on."""

    space: Space
    device: str
    encoder: Encoder | None = None
    """The encoder itself, where it need not travel."""

    def __call__(self) -> Callable[[tuple[str, Part]], ShardFacts]:
        """Return what makes a shard of a part."""
        encoder = self.encoder or load_same_encoder(self.space, self.device)

        def make(todo: tuple[str, Part]) -> ShardFacts:
            place, part = todo
            return write_shard(place, _blocks(encoder, part.records()), self.space)

        return make


def _blocks(encoder: Encoder, records: Iterator[Record], originals: Originals | None = None) -> Iterator[list[Row]]:
    """Yield records as rows, encoded."""
    # recap has a limit of its own, which the user can raise; Pillow's would come first
    Image.MAX_IMAGE_PIXELS = None
    while rows := _pictures(encoder, islice(records, ROWS), originals):
        vectors = iter(encoder.encode_texts([text for row in rows for text in row.captions]))
        for row in rows:
            if row.captions:
                row.caption_vectors = _stacked(vectors, len(row.captions))
        yield rows


def _stacked(vectors: Iterator[Vectors], count: int) -> Vectors:
    return np.stack(list(islice(vectors, count)))


def _pictures(encoder: Encoder, records: Iterator[Record], originals: Originals | None) -> list[Row]:
    """Return rows with the vectors of their pictures; no more contents are in memory than the encoder looks ahead."""
    rows: list[Row] = []
    waiting: deque[tuple[Row, str]] = deque()

    def contents() -> Iterator[ImageLike]:
        for record in records:
            row = Row(record.id, record.captions, record.image, error=record.error)
            rows.append(row)
            if record.has_picture:
                try:
                    content = read(record.picture())
                    row.sha256 = digest(content, row.id).hex()
                except ImageError as error:
                    row.error = str(error)
                    continue
                if originals is not None and record.content is not None:
                    originals.add(row.sha256, record.content)
                waiting.append((row, label(content)))
                yield content

    for vector in encoder.encode_each(contents()):
        row, shown = waiting.popleft()
        if isinstance(vector, ImageError):
            row.error = str(vector).replace(shown, row.image or row.id, 1)
        else:
            row.vector = vector
    return rows


IMAGES, TEXTS = 64, 4096
"""Pictures or texts in a part; fewer texts are encoded here, where the encoder is anyway."""

_Encoded = list[Vectors | ImageError]


@dataclass(frozen=True, slots=True)
class EncodeParts:
    """Loads an encoder on the machine it finds itself on, for pictures or texts."""

    space: Space
    device: str
    texts: bool = False

    def __call__(self) -> Callable[[Sequence[Any]], tuple[_Encoded, int]]:
        """Return what encodes some, and says how many of the texts were cut."""
        encoder = load_same_encoder(self.space, self.device)

        def encode(items: Sequence[Any]) -> tuple[_Encoded, int]:
            if not self.texts:
                return list(encoder.encode_each(items)), 0
            before = encoder.text.truncated
            return list(encoder.encode_texts(items)), encoder.text.truncated - before

        return encode


def load_same_encoder(space: Space, device: str) -> Encoder:
    """Load the encoder of some vectors by its name; another one by that name raises ``EncoderMismatchError``."""
    encoder = load_encoder(space.encoder, device=device)
    space.check(Space.of(encoder), "on another machine of the cluster")
    return encoder


class PartsImageEncoder:
    """Pictures to vectors, in parts."""

    def __init__(self, encoder: Encoder, runner: Runner, device: str) -> None:
        self.name = encoder.image.name
        self.fingerprint = encoder.image.fingerprint
        self.dimension = encoder.image.dimension
        self._task = EncodeParts(Space.of(encoder), device)
        self._runner = runner

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return one unit row for each image; the first unreadable one raises ``ImageError``."""
        rows = np.empty((len(images), self.dimension), np.float32)
        for row, result in zip(rows, self.encode_each(images), strict=True):
            if isinstance(result, ImageError):
                raise result
            row[:] = result
        return rows

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors | ImageError]:
        """Yield for each image, in order, its vector or the reason why there is none."""
        given = [storage.absolute(str(image)) if isinstance(image, str | Path) else image for image in images]
        parts = [given[start : start + IMAGES] for start in range(0, len(given), IMAGES)]
        for results, _ in in_order(self._runner.map(self._task, parts, self._task.device)):
            yield from results


class PartsTextEncoder:
    """Texts to vectors, in parts where there are many."""

    def __init__(self, encoder: Encoder, runner: Runner, device: str) -> None:
        self.name = encoder.text.name
        self.fingerprint = encoder.text.fingerprint
        self.dimension = encoder.text.dimension
        self.truncated = 0
        self._own = encoder.text
        self._task = EncodeParts(Space.of(encoder), device, texts=True)
        self._runner = runner

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        if len(texts) <= TEXTS:
            before = self._own.truncated
            rows = self._own.encode_texts(texts, progress=progress)
            self.truncated += self._own.truncated - before
            return rows
        parts = [texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS)]
        encoded = list(in_order(self._runner.map(self._task, parts, self._task.device)))
        self.truncated += sum(cut for _, cut in encoded)
        return np.array([row for rows, _ in encoded for row in rows], np.float32)


def in_parts(encoder: Encoder, runner: Runner, device: str = "cpu") -> Encoder:
    """Return an encoder that gives the same vectors, made by whoever does the parts."""
    if not runner.remote:
        return encoder
    return Encoder(encoder.name, PartsImageEncoder(encoder, runner, device), PartsTextEncoder(encoder, runner, device))


def in_order(numbered: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Yield results by their numbers; those that come too early wait."""
    waiting: dict[int, Result] = {}
    wanted = 0
    for number, result in numbered:
        waiting[number] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1
