"""From pairs to the map W: in closed form from second moments, or step by step from the rows themselves.

The convention throughout is ``e ~ W f``: F holds one image a row, E its captions, ``gram`` is F'F (d_image x d_image),
``cross`` is E'F (d_text x d_image), both usually centred. W has the shape of ``cross``. Closed forms see no raw row.

Two maps have no closed form. ``maximise_cosine`` (IT in the paper) maximises the mean cosine of mapped images and their
texts, without keeping W orthogonal. ``rerank`` (LFA, Ouali et al. 2023) pushes a mapped image closer to its text than
to the nearest wrong ones, by a margin that grows with how different these say something. Both follow AdamW with
gradients written out by hand, so that they need nothing but numpy. Rows come in as the estimator centres them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import Indices
from recap.errors import InputError
from recap.types import Vectors

Matrix: TypeAlias = npt.NDArray[np.float64]

WHITENING = 0.15
"""How much ``whitened`` evens out: 0 is Procrustes. Chosen on Flickr8k dev; 0.1 to 0.3 are nearly as good."""

PRIOR = 8_000
"""Pairs that ``whitened`` adds where both sides may share a space: half of them to as many pairs, to many hardly any.
Its size was chosen on Flickr8k dev, for 30 to 6,000 pictures; how fast it falls, also by what test lost otherwise."""

WEAKEST = 1e-3
"""A direction that is weaker than this share of the strongest is not lifted any further."""


def procrustes(cross: Matrix) -> Matrix:
    """Return the orthogonal W that minimises ||E - F W'||: with E'F = U S V' it is W = U V'.

    With unequal dimensions W has orthonormal rows or columns, whichever are fewer. (Writing V U' instead belongs to the
    decomposition of F'E.)
    """
    u, _, vt = np.linalg.svd(cross, full_matrices=False)
    return np.asarray(u @ vt)


def ols(gram: Matrix, cross: Matrix, *, rcond: float | None = None) -> Matrix:
    """Return the least-squares W = E'F (F'F)^+, of minimal norm where fewer pairs than dimensions leave a choice.

    Directions whose eigenvalue is at most ``rcond`` times the largest count as absent.
    """
    return _regress(gram, cross, 0.0, rcond)


def ridge(gram: Matrix, cross: Matrix, strength: float, *, rcond: float | None = None) -> Matrix:
    """Return W = E'F (F'F + strength * tr(F'F) / d * I)^-1; the strength does not depend on the number of pairs."""
    if not 0 <= strength < np.inf:
        raise InputError(f"ridge: the strength must be finite and not negative, got {strength}")
    return _regress(gram, cross, strength * float(np.trace(gram)) / len(gram), rcond)


def beta_procrustes(cross: Matrix, beta: float) -> Matrix:
    """Return W - beta (W - I) with the orthogonal W: 0 is Procrustes, 1 the identity. Both sides share one space."""
    if not 0 <= beta <= 1:
        raise InputError(f"beta-procrustes: beta must lie between 0 and 1, got {beta}")
    eye = identity(cross)
    w = procrustes(cross)
    return w - beta * (w - eye)


def whitened(cross: Matrix, pairs: float) -> Matrix:
    """Return W = U S^-p V' for E'F = U S V', between Procrustes (p = 0) and a map that makes all directions alike.

    What all captions of a domain share is strong in E'F, and pulls every image towards the same few captions. Lifting
    the weaker directions finds more special ones; where no pair shows a direction, W is 0.

    Where the dimensions agree, up to ``PRIOR`` further pairs say that an image lies where its captions do, each as
    strongly as the pairs do on average. A space that both sides share is kept where few pairs show nothing else; of two
    that have nothing in common the average is about 0, and so is what is added.
    """
    u, s, vt = np.linalg.svd(cross + _prior(cross, pairs), full_matrices=False)
    shown = s > len(s) * np.finfo(np.float64).eps * s[0]
    lifted = np.where(shown, np.maximum(s / s[0], WEAKEST) ** -WHITENING, 0.0)
    return np.asarray((u * lifted) @ vt)


def _prior(cross: Matrix, pairs: float) -> Matrix:
    d_text, d_image = cross.shape
    if d_text != d_image:
        return np.zeros_like(cross)
    added = PRIOR / (1 + (pairs / PRIOR) ** 2)
    return np.asarray(max(0.0, added * float(np.trace(cross)) / (pairs * d_image)) * np.eye(d_image))


def identity(cross: Matrix) -> Matrix:
    """Return W = I: images are compared with captions as the encoders made them."""
    d_text, d_image = cross.shape
    if d_text != d_image:
        raise InputError(
            f"identity and beta-procrustes need image and text vectors of one shared space, but their dimensions are "
            f"{d_image} and {d_text}; use procrustes, ols or ridge"
        )
    return np.eye(d_image)


def _regress(gram: Matrix, cross: Matrix, added: float, rcond: float | None) -> Matrix:
    """Return cross (gram + added I)^+ by way of gram = V diag(s) V'."""
    values, vectors = np.linalg.eigh(gram)
    cut = (len(gram) * np.finfo(np.float64).eps if rcond is None else rcond) * max(float(values[-1]), 0.0)
    kept = values > cut
    basis = vectors[:, kept]
    return np.asarray((cross @ basis / (values[kept] + added)) @ basis.T)


SlopeAtRows: TypeAlias = Callable[[Vectors], Vectors]
"""Takes unit rows of mapped images; returns the slope of a loss at each of them."""

NEIGHBOURS = 3
"""Nearest texts that push an image away."""
MARGIN = 0.25
"""The margin between two texts that have nothing in common."""
NOISE = 0.035
DROPOUT = 0.05
"""Images are disturbed by one, both or neither, each half of the time."""

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True)
class Schedule:
    """AdamW with a learning rate that falls along a cosine."""

    iterations: int
    batch: int | None = None
    """Batch size, in images; None for all."""
    learning_rate: float = 5e-4
    final_rate: float = 1e-7
    weight_decay: float = 5e-4

    def rates(self) -> Iterator[float]:
        """Yield the learning rate of each step."""
        for step in range(self.iterations):
            height = (1 + np.cos(np.pi * step / self.iterations)) / 2
            yield self.final_rate + (self.learning_rate - self.final_rate) * float(height)


IT = Schedule(iterations=500, learning_rate=2e-3, weight_decay=0.0)
"""On 30,000 pairs it ends with a mean cosine above that of least squares."""
LFA = Schedule(iterations=200, batch=2048)
"""That of Ouali et al., who train on all of their few pictures at once."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Centred images, centred texts of unit length, the image of each text, and the weight of each pair."""

    images: Vectors
    texts: Vectors
    owners: Indices
    weights: npt.NDArray[np.float64]

    def text_sums(self) -> Vectors:
        """Return for each image the weighted sum of its texts."""
        sums = np.zeros((len(self.images), self.texts.shape[1]), dtype=np.float32)
        np.add.at(sums, self.owners, self.texts * self.weights.astype(np.float32)[:, None])
        return sums

    def one_text_each(self, random: np.random.Generator, count: int | None) -> tuple[Indices, Indices]:
        """Return some images that have a text, in random order, and for each one of its texts, heavier ones oftener."""
        # of exponential times with rates w_j the first is that of j with probability w_j / sum of w
        with np.errstate(divide="ignore"):
            times = random.exponential(size=len(self.texts)) / self.weights
        order = np.lexsort((times, self.owners))
        order = order[np.isfinite(times[order])]
        described, first = np.unique(self.owners[order], return_index=True)
        chosen = random.permutation(len(described))[:count]
        return described[chosen], order[first[chosen]]


def maximise_cosine(pairs: Pairing, start: Matrix) -> Matrix:
    """Return the W that maximises the mean cosine of W f with the texts of f.

    The texts of an image enter by their sum, since sum_j cos(e_j, W f) = (sum_j e_j) . W f / |W f|: a step looks at
    every image once, however many texts it has.
    """
    targets = pairs.text_sums() / np.float32(pairs.weights.sum())
    w = start.astype(np.float32)
    optimiser = _AdamW(w, IT)
    for rate in IT.rates():
        optimiser.step(rate, slope_of_map(w, pairs.images, lambda mapped: -targets))
    return w.astype(np.float64)


def rerank(pairs: Pairing, start: Matrix, *, seed: int = 0) -> Matrix:
    """Return the W that the adaptive re-ranking loss leads to."""
    random = np.random.default_rng(seed)
    w = start.astype(np.float32)
    optimiser = _AdamW(w, LFA)
    for rate in LFA.rates():
        images, texts = pairs.one_text_each(random, LFA.batch)
        optimiser.step(rate, _reranking_slope(w, _disturbed(pairs.images[images], random), pairs.texts[texts]))
    return w.astype(np.float64)


def reranking(mapped: Vectors, texts: Vectors) -> tuple[float, Vectors]:
    """Return the adaptive re-ranking loss and its slope at each mapped image; row i of both sides belong together.

    The mean over images and their ``NEIGHBOURS`` nearest texts n of max(0, |v - p| + (1 - p.n) / 4 - |v - n|). As in
    the published code an image's own text may be one of them, and adds nothing.
    """
    count = len(mapped)
    similarities = mapped @ texts.T
    near = min(NEIGHBOURS, count)
    nearest = np.argpartition(-similarities, near - 1, axis=1)[:, :near]
    to_own = _distances(similarities.diagonal())[:, None]
    to_near = _distances(np.take_along_axis(similarities, nearest, axis=1))
    others = texts[nearest]
    excess = to_own + MARGIN * (1 - np.einsum("ikd,id->ik", others, texts)) - to_near
    excess[nearest == np.arange(count)[:, None]] = 0
    active = (excess > 0).astype(np.float32) / excess.size
    pull, push = active.sum(axis=1, keepdims=True) / to_own, active / to_near
    # d|v - p| / dv = (v - p) / |v - p|
    slope = pull * (mapped - texts) - push.sum(axis=1, keepdims=True) * mapped + np.einsum("ik,ikd->id", push, others)
    return float(np.maximum(excess, 0).sum() / excess.size), slope


def slope_of_map(w: Vectors, images: Vectors, slope: SlopeAtRows) -> Vectors:
    """Return the slope of a loss at W, given its slope at the unit rows of the mapped images."""
    mapped = images @ w.T
    lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", mapped, mapped)), 1e-12)[:, None]
    mapped /= lengths
    at_rows = slope(mapped)
    # a row keeps its length, so only the part across it counts
    across = (at_rows - np.einsum("ij,ij->i", at_rows, mapped)[:, None] * mapped) / lengths
    return np.asarray(across.T @ images)


def _reranking_slope(w: Vectors, images: Vectors, texts: Vectors) -> Vectors:
    return slope_of_map(w, images, lambda mapped: reranking(mapped, texts)[1])


class _AdamW:
    """Changes W in place."""

    def __init__(self, w: Vectors, schedule: Schedule) -> None:
        self._w, self._decay = w, schedule.weight_decay
        self._mean, self._square = np.zeros_like(w), np.zeros_like(w)
        self._steps = 0

    def step(self, rate: float, slope: Vectors) -> None:
        self._steps += 1
        self._mean += (1 - _BETA_1) * (slope - self._mean)
        self._square += (1 - _BETA_2) * (slope**2 - self._square)
        mean = self._mean / (1 - _BETA_1**self._steps)
        scale = np.sqrt(self._square / (1 - _BETA_2**self._steps)) + _EPSILON
        self._w -= rate * (mean / scale + self._decay * self._w)


def _disturbed(images: Vectors, random: np.random.Generator) -> Vectors:
    if random.random() < 0.5:
        images = images + random.normal(0, NOISE, images.shape).astype(np.float32)
    if random.random() < 0.5:
        kept = random.random(images.shape, dtype=np.float32) >= DROPOUT
        images = images * kept / np.float32(1 - DROPOUT)
    return images


def _distances(cosines: Vectors) -> Vectors:
    """Return the distances of unit rows; equal rows get a tiny one, by which can be divided."""
    return np.sqrt(np.maximum(2 - 2 * cosines, np.float32(1e-12)))
