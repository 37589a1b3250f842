"""One picture seen in several ways: the mean of the vectors is steadier than any one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageOps

from recap.encoders.base import VIEWS
from recap.encoders.cache import VectorCache
from recap.encoders.pipeline import SingleImageEncoder, fingerprint_of, unit_rows
from recap.encoders.preprocess import Pixels, Preprocess
from recap.types import Vectors


@dataclass(frozen=True, slots=True)
class ManyViews:
    """The picture as its encoder wants it, the whole of it squashed into the square, and both mirrored."""

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
        whole = replace(self.single, resize="squash")
        mirrored = ImageOps.mirror(picture)
        return np.stack([way(seen) for way in (self.single, whole) for seen in (picture, mirrored)])


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
        )
        self.single = single

    def forward(self, batch: Pixels) -> Vectors:
        """Return for each picture the sum of the unit vectors of its views."""
        count, views, *shape = batch.shape
        rows = unit_rows(self.single.forward(batch.reshape(count * views, *shape)))
        summed: Vectors = rows.reshape(count, views, -1).sum(axis=1)
        return summed
