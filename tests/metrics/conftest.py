"""A toy encoder: pictures of one colour, and texts that name colours, meet in the space of colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.encoders.base import Encoder
from recap.errors import ImageError

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


class ToyEncoder:
    """Both sides of an encoder; it remembers what it was given."""

    dimension = 3
    fingerprint = "c0"
    truncated = 0

    def __init__(self, name: str = "toy") -> None:
        self.name = name
        self.seen_images: list[object] = []
        self.seen_texts: list[str] = []

    @staticmethod
    def vector(text: str) -> np.ndarray:
        """The unit vector of a text: its colours, some of every one, and a little of its length."""
        colours = [COLOURS[word] for word in text.split() if word in COLOURS]
        row = np.sum([(20 + len(text), 20, 20), *colours], axis=0).astype(np.float32)
        return row / np.linalg.norm(row)

    def encode_each(self, images: Iterable[object]) -> Iterator[np.ndarray | ImageError]:
        for image in images:
            self.seen_images.append(image)
            try:
                with Image.open(image) as picture:
                    row = np.asarray(picture.convert("RGB"), np.float32).mean(axis=(0, 1)) + 10
            except OSError as error:
                yield ImageError(f"{image}: {error}")
            else:
                yield row / np.linalg.norm(row)

    def encode_images(self, images: Sequence[object], *, progress: bool = False) -> np.ndarray:
        return np.stack(list(self.encode_each(images)))

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        self.seen_texts += texts
        return np.stack([self.vector(text) for text in texts])


@pytest.fixture
def toy() -> ToyEncoder:
    return ToyEncoder()


@pytest.fixture
def clip_like(toy: ToyEncoder) -> Encoder:
    """Images and texts share a space."""
    return Encoder(toy.name, toy, toy)


@pytest.fixture
def mixed() -> Encoder:
    """Images and texts come from two models."""
    return Encoder("eyes,words", ToyEncoder("eyes"), ToyEncoder("words"))


@pytest.fixture
def paint(tmp_path: Path) -> Callable[..., Path]:
    """Write a picture of one colour."""

    def write(name: str, colour: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), COLOURS[colour]).save(path)
        return path

    return write
