"""The estimator: ``LinearAlignment().fit(images, texts)``, then ``transform`` both sides and take dot products.

Choosing beta of ``beta-procrustes`` by retrieval on held-out pairs.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from recap.alignment import solvers
from recap.alignment.rows import (
    Indices,
    Rows,
    as_rows,
    assign_captions,
    centre_rows,
    centred_unit_rows,
    check_weights,
    inverse_lengths,
    read_tensors,
    row_lengths,
    working_dtype,
    write_tensors,
)
from recap.alignment.solvers import Matrix, Pairing
from recap.alignment.statistics import Moments, PairStatistics
from recap.errors import InputError, PackError, RecapWarning, check_name, damaged
from recap.types import Vectors, unit_rows

_KIND = "linear-alignment"


class LinearAlignment:
    """One linear map from image vectors into caption space: in closed form or, for ``it`` and ``lfa``, by gradient.

    Vectors are made unit length, the means of the fitted pairs are subtracted, and images are mapped by W: ``e ~ W f``.
    Image and text vectors may have different dimensions, except for ``identity`` and ``beta-procrustes``.

    Args:
        method: one of ``METHODS`` or ``GRADIENT_METHODS``. The latter need all pairs in one ``fit``.
        ridge: strength of ``ridge``, in units of the mean eigenvalue of F'F.
        beta: for ``beta-procrustes``, how far to go from the orthogonal map (0) to the identity (1). ``lfa`` starts
            there, too, where the dimensions agree: set 0 unless both sides share one space.
        center: whether to subtract the means; without it ``identity`` gives the plain cosine.
        seed: what ``lfa`` draws its batches and its noise with.
    """

    W_: Vectors
    """The map, d_text x d_image."""
    image_mean_: Vectors
    text_mean_: Vectors
    n_pairs_: float
    image_encoder_: str
    """Fingerprint of the encoder whose vectors were fitted; empty if it was not given."""
    text_encoder_: str
    statistics_: PairStatistics
    """What W_ was solved from; a file that ``save`` writes does not hold it."""

    def __init__(
        self, method: str = "procrustes", *, ridge: float = 0.1, beta: float = 0.85, center: bool = True, seed: int = 0
    ) -> None:
        self.method, self.ridge, self.beta, self.center, self.seed = method, ridge, beta, center, seed

    @classmethod
    def from_statistics(cls, statistics: PairStatistics, method: str = "procrustes", **settings: Any) -> Self:
        """Return the alignment of pairs whose statistics are there already; ``settings`` are those of the class."""
        return cls(method, **settings)._solve(statistics)

    def fit(
        self,
        images: npt.ArrayLike,
        texts: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Fit the map to rows in pairs; ``groups`` gives for each text the row of its image where one has several."""
        statistics = self._updated(None, images, texts, groups, sample_weight)
        self._warn_of_few(statistics.pairs, min(statistics.d_image, statistics.d_text))
        if self.method not in GRADIENT_METHODS:
            return self._solve(statistics)
        return self._train(statistics, images, texts, groups, sample_weight)

    def partial_fit(
        self,
        images: npt.ArrayLike,
        texts: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Add pairs to those fitted so far, and solve again.

        For many small blocks it is cheaper to ``update`` a ``PairStatistics`` and to solve once, ``from_statistics``.
        """
        known: PairStatistics | None = getattr(self, "statistics_", None)
        if known is None and hasattr(self, "W_"):
            raise InputError("an alignment read from a file holds no statistics: load those and use from_statistics")
        return self._solve(self._updated(known, images, texts, groups, sample_weight))

    def transform(self, images: npt.ArrayLike) -> Vectors:
        """Return images as unit rows of the centred caption space; an image equal to the mean stays zero.

        A row depends on its image only, to the bit: not on the other images.
        """
        self._check_fitted()
        centred = centre_rows(_unit(images, "images", len(self.image_mean_)), self.image_mean_)
        # BLAS rounds by batch size, so each row is a product of its own: two to three times the cost of one for all
        mapped = (centred[:, None] @ self.W_.T)[:, 0]
        return unit_rows(mapped, row_lengths(mapped), otherwise=0.0)

    def transform_texts(self, texts: npt.ArrayLike) -> Vectors:
        """Return texts as unit rows of the centred caption space: dot products with images are aligned cosines."""
        self._check_fitted()
        return centred_unit_rows(_unit(texts, "texts", len(self.text_mean_)), self.text_mean_)

    def score(self, images: npt.ArrayLike, texts: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> float:
        """Return the mean aligned cosine over the pairs."""
        image_rows, text_rows = self.transform(images), self.transform_texts(texts)
        assign_captions(len(image_rows), len(text_rows), groups, None)
        paired = image_rows if groups is None else image_rows[np.asarray(groups)]
        return float(np.einsum("ij,ij->i", paired, text_rows).mean(dtype=np.float64))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings, as scikit-learn's tools ask for them."""
        return {name: getattr(self, name) for name in ("method", "ridge", "beta", "center", "seed")}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; the next ``fit`` uses them."""
        unknown = sorted(settings.keys() - self.get_params().keys())
        if unknown:
            raise InputError(f"unknown setting {', '.join(unknown)}; there are {', '.join(self.get_params())}")
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"LinearAlignment({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def save(self, path: str | Path) -> None:
        """Write map, means and settings as a safetensors file."""
        self._check_fitted()
        tensors = {"W": self.W_, "image_mean": self.image_mean_, "text_mean": self.text_mean_}
        facts = {"settings": json.dumps(self.get_params()), "n_pairs": repr(self.n_pairs_)}
        encoders = {"image_encoder": self.image_encoder_, "text_encoder": self.text_encoder_}
        write_tensors(Path(path), _KIND, tensors, facts | encoders)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an alignment that ``save`` wrote; it transforms, but holds no statistics to fit further."""
        tensors, facts = read_tensors(Path(path), _KIND, ["W", "image_mean", "text_mean"], ["settings", "n_pairs"])
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise PackError(f"{path} is damaged: it holds NaN or infinite values")
        with damaged(path):
            loaded = cls(**json.loads(facts["settings"]))
            check_method(loaded.method)
            loaded.n_pairs_ = float(facts["n_pairs"])
        loaded.W_, loaded.image_mean_, loaded.text_mean_ = (tensors[name] for name in ("W", "image_mean", "text_mean"))
        if loaded.W_.shape != loaded.text_mean_.shape + loaded.image_mean_.shape or loaded.W_.ndim != 2:
            raise PackError(f"{path} is damaged: a map of the shape {loaded.W_.shape} does not fit its means")
        loaded.image_encoder_, loaded.text_encoder_ = facts.get("image_encoder", ""), facts.get("text_encoder", "")
        return loaded

    def _updated(
        self,
        known: PairStatistics | None,
        images: npt.ArrayLike,
        texts: npt.ArrayLike,
        groups: npt.ArrayLike | None,
        weights: npt.ArrayLike | None,
    ) -> PairStatistics:
        check_method(self.method)
        image_rows, text_rows = as_rows(images, "images"), as_rows(texts, "texts")
        # a copy, since the caller may have handed in these statistics and solve other maps from them
        statistics = deepcopy(known) if known else PairStatistics.zeros(image_rows.shape[1], text_rows.shape[1])
        return statistics.update(image_rows, text_rows, groups, weights=weights)

    def _solve(self, statistics: PairStatistics) -> Self:
        check_method(self.method)
        if self.method in GRADIENT_METHODS:
            raise InputError(f"{self.method} needs the pairs themselves, all at once: call fit(images, texts)")
        moments = self._moments(statistics)
        if self.method != "identity":
            _check_related(moments, statistics.pairs)
        return self._learned(SOLVERS[self.method](moments, self, statistics), moments, statistics)

    def _warn_of_few(self, pairs: float, dimensions: int) -> None:
        if pairs < dimensions and "procrustes" in self.method:
            message = (
                f"{pairs:,.0f} pairs for {dimensions:,} dimensions: {self.method} is arbitrary in the directions that "
                "no pair shows; ridge leaves them out"
            )
            warnings.warn(message, RecapWarning, stacklevel=3)

    def _train(
        self,
        statistics: PairStatistics,
        images: npt.ArrayLike,
        texts: npt.ArrayLike,
        groups: npt.ArrayLike | None,
        weights: npt.ArrayLike | None,
    ) -> Self:
        moments = self._moments(statistics)
        _check_related(moments, statistics.pairs)
        image_mean, text_mean = moments.image_mean.astype(np.float32), moments.text_mean.astype(np.float32)
        image_rows = centre_rows(_unit(images, "images", len(image_mean)), image_mean)
        text_rows = centred_unit_rows(_unit(texts, "texts", len(text_mean)), text_mean)
        owners = np.arange(len(text_rows)) if groups is None else np.asarray(groups, dtype=np.intp)
        checked = check_weights(weights, len(text_rows))
        pairs = Pairing(image_rows, text_rows, owners, np.ones(len(owners)) if checked is None else checked)
        return self._learned(TRAINERS[self.method](pairs, moments.cross, self), moments, statistics)

    def _moments(self, statistics: PairStatistics) -> Moments:
        return statistics.centred() if self.center else statistics.uncentred()

    def _learned(self, w: Matrix, moments: Moments, statistics: PairStatistics) -> Self:
        self.W_ = w.astype(np.float32)
        self.image_mean_ = moments.image_mean.astype(np.float32)
        self.text_mean_ = moments.text_mean.astype(np.float32)
        self.n_pairs_ = statistics.pairs
        self.image_encoder_, self.text_encoder_ = statistics.image_encoder, statistics.text_encoder
        self.statistics_ = statistics
        return self

    def _check_fitted(self) -> None:
        if not hasattr(self, "W_"):
            raise InputError("this alignment is not fitted yet: call fit(images, texts) first")


def check_method(method: str) -> None:
    """Raise ``InputError`` unless there is a map of this name."""
    check_name("method", method, (*SOLVERS, *GRADIENT_METHODS))


Solver = Callable[[Moments, LinearAlignment, PairStatistics], Matrix]

SOLVERS: dict[str, Solver] = {
    "procrustes": lambda m, settings, known: solvers.procrustes(m.cross),
    "ols": lambda m, settings, known: solvers.ols(_gram(m), m.cross, rcond=known.rcond),
    "ridge": lambda m, settings, known: solvers.ridge(_gram(m), m.cross, settings.ridge, rcond=known.rcond),
    "beta-procrustes": lambda m, settings, known: solvers.beta_procrustes(m.cross, settings.beta),
    "whitened": lambda m, settings, known: solvers.whitened(m.cross, known.pairs),
    "identity": lambda m, settings, known: solvers.identity(m.cross),
}
"""Closed forms, from moments alone. A method that needs the rows themselves cannot be one of these."""

METHODS: tuple[str, ...] = tuple(SOLVERS)

Trainer = Callable[[Pairing, Matrix, LinearAlignment], Matrix]

TRAINERS: dict[str, Trainer] = {
    "it": lambda pairs, cross, settings: solvers.maximise_cosine(pairs, solvers.procrustes(cross)),
    "lfa": lambda pairs, cross, settings: solvers.rerank(pairs, _lfa_start(cross, settings.beta), seed=settings.seed),
}
"""What needs the rows themselves."""

GRADIENT_METHODS: tuple[str, ...] = tuple(TRAINERS)
"""Found step by step from the rows: slower, and neither ``partial_fit`` nor statistics can give them."""


def _lfa_start(cross: Matrix, beta: float) -> Matrix:
    d_text, d_image = cross.shape
    return solvers.beta_procrustes(cross, beta) if d_text == d_image else solvers.procrustes(cross)


def _gram(moments: Moments) -> Matrix:
    if moments.gram is None:
        raise InputError("ols and ridge need F'F, which these statistics were made without (gram=False)")
    return moments.gram


def _check_related(moments: Moments, pairs: float) -> None:
    """Refuse moments that say nothing about a direction: whatever map came out of them would be arbitrary."""
    if np.abs(moments.cross).max() <= 1e-9 * pairs:
        raise InputError(
            "images and texts do not vary together: one image or one text only, or all of them equal; fit more pairs, "
            "or use center=False"
        )


def _unit(values: npt.ArrayLike, what: str, dimension: int) -> Vectors:
    """Return unit rows, scaled as the statistics scale them."""
    rows = as_rows(values, what, dimension)
    wide = np.ascontiguousarray(rows, dtype=working_dtype(rows))
    return np.asarray(wide * inverse_lengths(wide, what, wide.dtype)[:, None], dtype=np.float32)


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
        aligned.fit(*_subset(image_rows, text_rows, owners, ~out))
        found += _count_hits(aligned, *_subset(image_rows, text_rows, owners, out))
    return float(BETAS[found.argmax()])


def _subset(images: Rows, texts: Rows, owners: Indices, chosen: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Indices]:
    """Return some of the images, their texts, and for each of these texts the new row of its image."""
    kept = chosen[owners]
    return images[chosen], texts[kept], (np.cumsum(chosen) - 1)[owners[kept]]


def _count_hits(aligned: LinearAlignment, images: Rows, texts: Rows, owners: Indices) -> npt.NDArray[np.float64]:
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
