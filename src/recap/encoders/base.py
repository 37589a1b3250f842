"""What every encoder promises: images or texts in, float32 rows of unit length out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from recap.errors import ImageError
from recap.types import ImageLike, Vectors

if TYPE_CHECKING:
    from recap.encoders.cache import VectorCache

VIEWS = "@views"
"""Behind the name of an image encoder: it looks at several views of a picture."""
BARE = "@bare"
"""Behind the name of a text encoder: it reads texts without closing punctuation."""


@runtime_checkable
class ImageEncoder(Protocol):
    """Images to vectors. A vector depends on its image only, never on its neighbours in the batch."""

    name: str
    fingerprint: str
    """Changes whenever the vectors would: weights, preprocessing, pooling."""
    dimension: int

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return one unit row for each image; the first unreadable one raises ``ImageError``."""
        ...

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors | ImageError]:
        """Yield for each image, in order, its vector or the reason why there is none."""
        ...


@runtime_checkable
class DetailedImageEncoder(ImageEncoder, Protocol):
    """An image encoder that can say more of a picture than its vector: numbers that a language model may read."""

    details: int
    """How many such numbers follow a vector on request; 0 for none."""
    sight: str
    """The fingerprint of what they mean."""

    def encode_each(self, images: Iterable[ImageLike], *, details: bool = False) -> Iterator[Vectors | ImageError]:
        """Yield for each image its vector, on request with the details behind it, or why there is none."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """Texts to vectors. A vector depends on its text only, never on its neighbours in the batch."""

    name: str
    fingerprint: str
    dimension: int
    truncated: int
    """How many texts so far were longer than the window and have been cut before the end token."""

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every loader of an encoder is given."""

    device: str = "cpu"
    cache: VectorCache | None = None
    models: dict[str, Any] = field(default_factory=dict)
    """Models by name, kept by their loaders so that one that serves on both sides is loaded once."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An image encoder and a text encoder that are used together; their dimensions may differ."""

    name: str
    """The name it can be loaded by again, aliases written out: ``tinyvit,minilm``."""
    image: ImageEncoder
    text: TextEncoder

    @property
    def shares_space(self) -> bool:
        """Whether images and texts can be compared without alignment: both sides are of one model, such as CLIP."""
        same = self.image.name.removesuffix(VIEWS) == self.text.name.removesuffix(BARE)
        return same and self.image.dimension == self.text.dimension

    @property
    def sight(self) -> str:
        """The fingerprint of the details it can give of a picture beside the vector, empty where there are none."""
        return self.image.sight if isinstance(self.image, DetailedImageEncoder) and self.image.details else ""

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return one unit row for each image; the first unreadable one raises ``ImageError``."""
        return self.image.encode_images(images, progress=progress)

    def encode_each(self, images: Iterable[ImageLike], *, details: bool = False) -> Iterator[Vectors | ImageError]:
        """Yield for each image, in order, its vector or the reason why there is none.

        With ``details`` a vector is followed by what else the encoder sees, where it can say more.
        """
        if details and isinstance(self.image, DetailedImageEncoder) and self.image.details:
            return self.image.encode_each(images, details=True)
        return self.image.encode_each(images)

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        return self.text.encode_texts(texts, progress=progress)
