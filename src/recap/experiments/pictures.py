"""Pictures of a split for figures; one that is missing or broken spoils none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recap.errors import ImageError
from recap.experiments.data import Split

SIDE = 224
"""A large picture is read at a size that still has twice as many pixels along its shorter side."""


def pixels(split: Split, place: int) -> npt.NDArray[Any] | None:
    """Return a picture to draw, upright and in RGB, or None where it is not at hand or cannot be read."""
    from recap.encoders.images import decode

    try:
        return np.asarray(decode(split.pictures[place], shorter_side=SIDE))
    except (ImageError, IndexError):
        return None
