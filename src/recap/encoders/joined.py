"""Several image encoders as one: their unit vectors side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from recap.encoders.cache import VectorCache
from recap.encoders.network import BatchedImageEncoder, SingleImageEncoder, fingerprint_of, unit_rows
from recap.encoders.preprocess import Pixels
from recap.types import Vectors


class JoinedImageEncoder(BatchedImageEncoder):
    """Image encoders whose unit vectors are put side by side, scaled so that the whole has unit length.

    A picture is decoded once, and preprocessed once for all parts that want it in the same way.
    """

    def __init__(self, parts: Sequence[SingleImageEncoder], *, cache: VectorCache | None = None) -> None:
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
