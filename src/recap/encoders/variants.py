"""Other readings of an encoder, each an encoder itself: several views of a picture, several encoders, bare texts.

- Views: one picture seen in several ways; the mean of the vectors is steadier than any one of them.
- Joined: several encoders of images, or of texts, as one, their unit vectors side by side.
- Bare: texts without their closing full stop; whether a caption has one says nothing about the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageOps

from recap.encoders.base import BARE, VIEWS, TextEncoder
from recap.encoders.cache import VectorCache
from recap.encoders.network import BatchedImageEncoder, SingleImageEncoder, fingerprint_of
from recap.encoders.preprocess import Pixels, Preprocess
from recap.errors import InputError
from recap.types import Vectors, unit_rows


@dataclass(frozen=True, slots=True)
class ManyViews:
    """The picture as its encoder wants it, in another way, and both mirrored.

    The other way is the whole of it squashed into the square, or for an encoder that wants it so, its middle.
    """

    single: Preprocess

    @property
    def size(self) -> int:
        """The side of each view."""
        return self.single.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what a call returns."""
        return (4, *self.single.shape)

    def __call__(self, picture: Image.Image) -> Pixels:
        """Return the views, one after the other."""
        other = replace(self.single, resize="shortest" if self.single.resize == "squash" else "squash")
        mirrored = ImageOps.mirror(picture)
        return np.stack([way(seen) for way in (self.single, other) for seen in (picture, mirrored)])


class ViewsImageEncoder(SingleImageEncoder):
    """An image encoder that looks at several views of a picture, and gives the direction in which they lie together."""

    def __init__(self, single: SingleImageEncoder, *, cache: VectorCache | None = None) -> None:
        if not isinstance(single, SingleImageEncoder) or not isinstance(single.preprocessing, Preprocess):
            raise InputError(f"{single.name}: only an image encoder with a Preprocess can have {VIEWS}")
        super().__init__(
            preprocessing=ManyViews(single.preprocessing),
            name=single.name + VIEWS,
            fingerprint=fingerprint_of("views", single.fingerprint),
            dimension=single.dimension,
            batch_size=max(1, single.batch_size // 4),
            cache=cache,
            details=single.details,
            sight=single.sight,
        )
        self.single = single

    def forward(self, batch: Pixels) -> Vectors:
        """Return for each picture the sum of the unit vectors of its views, and the details of the first."""
        count, views, *shape = batch.shape
        rows = self.single.forward(batch.reshape(count * views, *shape))
        vectors = unit_rows(rows[:, : self.dimension]).reshape(count, views, -1).sum(axis=1)
        return np.concatenate([vectors, rows[::views, self.dimension :]], axis=1)


class JoinedImageEncoder(BatchedImageEncoder):
    """Image encoders whose unit vectors are put side by side, scaled so that the whole has unit length.

    A picture is decoded once, and preprocessed once for all parts that want it in the same way.
    """

    def __init__(self, parts: Sequence[SingleImageEncoder], *, cache: VectorCache | None = None) -> None:
        if others := [part.name for part in parts if not isinstance(part, SingleImageEncoder)]:
            raise InputError(f"{others[0]}: only a SingleImageEncoder can be joined with others")
        super().__init__(
            name="+".join(part.name for part in parts),
            fingerprint=fingerprint_of("joined", *(part.fingerprint for part in parts)),
            dimension=sum(part.dimension for part in parts),
            shorter_side=max(part.shorter_side for part in parts),
            batch_size=min(part.batch_size for part in parts),
            cache=cache,
            details=sum(part.details for part in parts),
            sight="+".join(part.sight for part in parts if part.details),
        )
        self.parts = tuple(parts)
        self._preprocessings = tuple(dict.fromkeys(part.preprocessing for part in parts))
        ends = np.cumsum([math.prod(preprocessing.shape) for preprocessing in self._preprocessings])
        self._spans = dict(zip(self._preprocessings, zip([0, *ends[:-1]], ends, strict=True), strict=True))

    def preprocess(self, picture: Image.Image) -> Pixels:
        """Return what the parts read, one after the other in a flat array."""
        return np.concatenate([preprocessing(picture).ravel() for preprocessing in self._preprocessings])

    def forward(self, batch: Pixels) -> Vectors:
        """Run every part on its own share of the array; details come behind all the vectors."""
        vectors, details = [], []
        for part in self.parts:
            start, end = self._spans[part.preprocessing]
            pixels = np.ascontiguousarray(batch[:, start:end]).reshape(-1, *part.preprocessing.shape)
            rows = part.forward(pixels)
            vectors.append(unit_rows(rows[:, : part.dimension]) / np.float32(np.sqrt(len(self.parts))))
            details.append(rows[:, part.dimension :])
        return np.concatenate([*vectors, *details], axis=1)


class JoinedTextEncoder:
    """Text encoders whose unit vectors are put side by side, scaled so that the whole has unit length."""

    def __init__(self, parts: Sequence[TextEncoder]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.fingerprint = fingerprint_of("joined", *(part.fingerprint for part in parts))
        self.dimension = sum(part.dimension for part in parts)

    @property
    def truncated(self) -> int:
        """How many texts so far were longer than the window of the part that cut most."""
        return max(part.truncated for part in self.parts)

    @truncated.setter
    def truncated(self, count: int) -> None:
        for part in self.parts:
            part.truncated = count

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        rows = [part.encode_texts(texts, progress=progress) for part in self.parts]
        return np.concatenate(rows, axis=1) / np.float32(np.sqrt(len(rows)))


_CLOSING = " \t\n.!?,;:\u3002\uff01\uff1f"


class BareTextEncoder:
    """A text encoder that reads each text up to its last word."""

    def __init__(self, whole: TextEncoder) -> None:
        self.whole = whole
        self.name = whole.name + BARE
        self.fingerprint = fingerprint_of("bare", whole.fingerprint)
        self.dimension = whole.dimension

    @property
    def truncated(self) -> int:
        """How many texts so far were longer than the window and have been cut before the end token."""
        return self.whole.truncated

    @truncated.setter
    def truncated(self, count: int) -> None:
        self.whole.truncated = count

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text; one that is punctuation alone is read as it is."""
        if isinstance(texts, str):
            return self.whole.encode_texts(texts)
        return self.whole.encode_texts([bare(text) for text in texts], progress=progress)


def bare(text: str) -> str:
    """Return a text without closing punctuation, unless nothing else is in it."""
    return text.rstrip(_CLOSING) or text
