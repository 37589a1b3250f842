"""The confidence of captions, fitted on vectors: some pictures are kept while a fit goes through all of them."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recap.errors import InputError, RecapWarning
from recap.fitting.confidence import QUICK, KnownPictures, calibrate
from recap.types import Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.confidence import Calibration


@dataclass(frozen=True, slots=True)
class Fitted:
    """A picture that was fitted, as vectors."""

    id: str
    sha256: str
    vector: Vectors
    caption_vectors: Vectors


class SomePictures:
    """Keeps those with the smallest hashes: some at random, and the same ones whoever did the work."""

    def __init__(self, most: int = QUICK) -> None:
        self.most = most
        self._seen = 0
        self._kept: list[tuple[str, int, Fitted]] = []

    def take(self, pictures: Iterable[Fitted]) -> None:
        """Look at more pictures, and keep some of them."""
        numbered = [(item.sha256, number, item) for number, item in enumerate(pictures, self._seen)]
        self._seen += len(numbered)
        self._kept = heapq.nsmallest(self.most, [*self._kept, *numbered], key=lambda kept: kept[:2])

    def known(self) -> KnownPictures:
        """Return what was kept, in the order of the input."""
        kept = [item for _, _, item in sorted(self._kept, key=lambda kept: kept[1])]
        images, texts = [item.vector for item in kept], [item.caption_vectors for item in kept]
        counts = tuple(len(text) for text in texts)
        return KnownPictures(np.stack(images), np.concatenate(texts), counts, tuple(item.id for item in kept))

    def calibration(self, captioner: ReCap) -> Calibration | None:
        """Fit the confidence of a captioner that was fitted on these pictures; warn where they do not do."""
        try:
            return calibrate(captioner, self.known(), fitted=True)
        except InputError as error:
            message = f"captions of this pack will have no confidence: {error}"
            warnings.warn(message, RecapWarning, stacklevel=2)
            return None
