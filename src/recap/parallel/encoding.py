"""An encoder whose work is done in parts, for all that takes an encoder, such as the metrics of ``recap score``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recap.encoders import Encoder, load_encoder
from recap.errors import ImageError
from recap.parallel import storage
from recap.parallel.runners import Result, Runner
from recap.parallel.shards import Space
from recap.types import ImageLike, Vectors

IMAGES, TEXTS = 64, 4096
"""So many pictures or texts are in a part; no more texts than this are encoded here, where the encoder is anyway."""

_Encoded = list[Vectors | ImageError]


@dataclass(frozen=True, slots=True)
class EncodeImages:
    """Loads an encoder for pictures on the machine it finds itself on."""

    space: Space
    device: str

    def __call__(self) -> Callable[[Sequence[ImageLike]], _Encoded]:
        """Return what encodes some pictures."""
        encoder = load_encoder(self.space.encoder, device=self.device)
        self.space.check(Space.of(encoder), "on another machine of the cluster")
        return lambda images: list(encoder.encode_each(images))


@dataclass(frozen=True, slots=True)
class EncodeTexts:
    """Loads an encoder for texts on the machine it finds itself on."""

    space: Space
    device: str

    def __call__(self) -> Callable[[Sequence[str]], tuple[Vectors, int]]:
        """Return what encodes some texts, and says how many of them were cut."""
        encoder = load_encoder(self.space.encoder, device=self.device)
        self.space.check(Space.of(encoder), "on another machine of the cluster")

        def encode(texts: Sequence[str]) -> tuple[Vectors, int]:
            before = encoder.text.truncated
            return encoder.encode_texts(texts), encoder.text.truncated - before

        return encode


class PartsImageEncoder:
    """Pictures to vectors, in parts."""

    def __init__(self, encoder: Encoder, runner: Runner, device: str) -> None:
        self.name = encoder.image.name
        self.fingerprint = encoder.image.fingerprint
        self.dimension = encoder.image.dimension
        self._task = EncodeImages(Space.of(encoder), device)
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
        for results in in_order(self._runner.map(self._task, parts, self._task.device)):
            yield from results


class PartsTextEncoder:
    """Texts to vectors, in parts where there are many."""

    def __init__(self, encoder: Encoder, runner: Runner, device: str) -> None:
        self.name = encoder.text.name
        self.fingerprint = encoder.text.fingerprint
        self.dimension = encoder.text.dimension
        self.truncated = 0
        self._own = encoder.text
        self._task = EncodeTexts(Space.of(encoder), device)
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
        return np.concatenate([rows for rows, _ in encoded])


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
