"""Choosing beta of ``beta-procrustes`` by retrieval on held-out pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recap.alignment.mapping import LinearAlignment
from recap.alignment.rows import Indices, Rows, as_rows, assign_captions
from recap.errors import InputError

BETAS = np.linspace(0, 1, 25)
REPEATS = 3
HELD_OUT = 0.2

_SIMILARITIES = 1 << 22
"""How many similarities are held at once."""


def search_beta(
    images: npt.ArrayLike, texts: npt.ArrayLike, groups: npt.ArrayLike | None = None, *, seed: int = 0
) -> float:
    """Return the beta with which held-out images most often find a text of their own nearest.

    Three times four fifths of the images, chosen at random, are fitted with all their texts, and 25 values from 0 to 1
    are tried on the others. Of equally good values the smallest, nearest to the orthogonal map, is returned.
    """
    image_rows, text_rows = as_rows(images, "images"), as_rows(texts, "texts")
    assign_captions(len(image_rows), len(text_rows), groups, None)
    owners = np.arange(len(text_rows)) if groups is None else np.asarray(groups)
    held_out = round(HELD_OUT * len(image_rows))
    if held_out < 1:
        raise InputError(f"beta cannot be searched with {len(image_rows)} images: a fifth of them is held out")
    random = np.random.default_rng(seed)
    found = np.zeros(len(BETAS))
    for _ in range(REPEATS):
        out = np.zeros(len(image_rows), dtype=bool)
        out[random.permutation(len(image_rows))[:held_out]] = True
        aligned = LinearAlignment("beta-procrustes", beta=0.0)
        aligned.fit(*_chosen(image_rows, text_rows, owners, ~out))
        found += _found(aligned, *_chosen(image_rows, text_rows, owners, out))
    return float(BETAS[found.argmax()])


def _chosen(images: Rows, texts: Rows, owners: Indices, chosen: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Indices]:
    """Return some of the images, their texts, and for each of these texts the new row of its image."""
    kept = chosen[owners]
    return images[chosen], texts[kept], (np.cumsum(chosen) - 1)[owners[kept]]


def _found(aligned: LinearAlignment, images: Rows, texts: Rows, owners: Indices) -> npt.NDArray[np.float64]:
    """Return for each beta how many images have a text of their own nearest.

    (W - beta (W - I)) f is (1 - beta) W f + beta f, and so are its products with the texts: two products serve all
    values. W keeps lengths, so both parts may be unit rows; that of their sum does not change which text is nearest.
    """
    plain = LinearAlignment.from_statistics(aligned.statistics_, "identity")
    targets = aligned.transform_texts(texts)
    found = np.zeros(len(BETAS))
    step = max(1, _SIMILARITIES // len(texts))
    for start in range(0, len(images), step):
        block = images[start : start + step]
        mapped, unmapped = aligned.transform(block) @ targets.T, plain.transform(block) @ targets.T
        rows = np.arange(start, start + len(block))
        for place, beta in enumerate(BETAS):
            nearest = ((1 - beta) * mapped + beta * unmapped).argmax(axis=1)
            found[place] += (owners[nearest] == rows).sum()
    return found
