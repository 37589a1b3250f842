"""One picture seen in several ways: the mean of the vectors is steadier than any one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageOps

from recap.encoders.base import VIEWS
from recap.encoders.cache import VectorCache
from recap.encoders.network import SingleImageEncoder, fingerprint_of, unit_rows
from recap.encoders.preprocess import Pixels, Preprocess
from recap.types import Vectors


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
        assert isinstance(single.preprocessing, Preprocess)
        super().__init__(
            ManyViews(single.preprocessing),
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
