"""All that a closed-form alignment needs to know about its pairs, in one pass and constant memory.

Images f and captions e of unit length enter as the number of pairs, two sums, F'F and E'F. An image with m captions
enters once, as m f f' and (sum of e) f', which gives the same as repeating it m times. Statistics of shards add up, and
those of withdrawn pairs can be subtracted again.

Products of blocks are taken in float32 and added up in float64. Both sides are first shifted by a provisional mean
(that of the first block): centring then subtracts little, and the error of float32 counts against the spread of the
vectors rather than against their common part.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import (
    BLOCK,
    Rows,
    as_rows,
    assign_captions,
    check_weights,
    inverse_lengths,
    read_tensors,
    working_dtype,
    write_tensors,
)
from recap.alignment.solvers import Matrix
from recap.errors import EncoderMismatchError, InputError, damaged

_KIND = "pair-statistics"


class Moments(NamedTuple):
    """Means and second moments of the pairs, as the solvers take them."""

    image_mean: Matrix
    text_mean: Matrix
    gram: Matrix | None
    """F'F, or None if the statistics were asked not to keep it."""
    cross: Matrix
    """E'F."""


class PairStatistics:
    """Sufficient statistics of (image, caption) pairs.

    Make one with ``PairStatistics.zeros``, feed it with ``update``, add shards with ``merge`` or ``+``. All moments are
    kept relative to ``image_shift`` and ``text_shift``; ``centred`` and ``uncentred`` give them in plain terms.
    """

    def __init__(self, d_image: int, d_text: int, image_encoder: str, text_encoder: str, gram: bool) -> None:
        self.image_encoder, self.text_encoder = image_encoder, text_encoder
        self.pairs = 0.0
        self.precision: np.dtype[Any] = np.dtype(np.float64)
        self.image_shift, self.text_shift = np.zeros(d_image), np.zeros(d_text)
        self._image_sum, self._text_sum = np.zeros(d_image), np.zeros(d_text)
        self._gram = np.zeros((d_image, d_image)) if gram else None
        self._cross = np.zeros((d_text, d_image))
        self._rows = 0

    @classmethod
    def zeros(
        cls, d_image: int, d_text: int, *, image_encoder: str = "", text_encoder: str = "", gram: bool = True
    ) -> Self:
        """Return statistics of no pairs.

        The encoders' fingerprints keep vectors of different encoders apart. Without ``gram`` F'F is not computed, which
        saves a third of the work: enough for Procrustes and its kin, not for least squares.
        """
        if d_image < 1 or d_text < 1:
            raise InputError(f"dimensions must be positive, got {d_image} and {d_text}")
        return cls(d_image, d_text, image_encoder, text_encoder, gram)

    @property
    def d_image(self) -> int:
        """The length of an image vector."""
        return len(self.image_shift)

    @property
    def d_text(self) -> int:
        """The length of a text vector."""
        return len(self.text_shift)

    @property
    def rcond(self) -> float:
        """The relative size below which an eigenvalue of F'F is rounding error."""
        eps = float(np.finfo(self.precision).eps)
        return 4 * eps if self.precision == np.float32 else self.d_image * eps

    def update(
        self,
        images: npt.ArrayLike,
        texts: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        *,
        counts: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        sign: Literal[1, -1] = 1,
    ) -> Self:
        """Add pairs, or with ``sign=-1`` take them out again; nothing changes if any of them is unusable.

        Args:
            images: one vector a row, of any length but zero: they are made unit length here.
            texts: likewise.
            groups: for each text the row of its image. Fastest when texts lie sorted by image, equally many for each.
            counts: instead of ``groups``, how many texts each image has, in the order of the images.
            weights: for each text the weight of its pair; a weight of 2 equals giving the pair twice.
            sign: 1 to add, -1 to subtract.
        """
        if sign not in (1, -1):
            raise InputError(f"sign must be 1 (add) or -1 (take out), got {sign}")
        image_rows = as_rows(images, "images", self.d_image)
        text_rows = as_rows(texts, "texts", self.d_text)
        captions = assign_captions(len(image_rows), len(text_rows), groups, counts)
        pair_weights = check_weights(weights, len(text_rows))
        masses = captions.masses(pair_weights)
        pairs = self._pairs_after(sign * float(masses.sum()))
        dtype = self._choose_dtype(image_rows, text_rows)
        image_factors = inverse_lengths(image_rows, "images", dtype)
        text_factors = inverse_lengths(text_rows, "texts", dtype)
        if self.pairs == 0:
            self.image_shift = _provisional_mean(image_rows, image_factors)
            self.text_shift = _provisional_mean(text_rows, text_factors)
        if pair_weights is not None:
            text_factors *= pair_weights.astype(dtype)
        for start in range(0, len(image_rows), BLOCK):
            run = slice(start, min(start + BLOCK, len(image_rows)))
            sums = captions.sums(text_rows, text_factors, run)
            self._add_block(image_rows[run], image_factors[run], sums, masses[run], sign)
        return self._finish(pairs, dtype, sign * len(image_rows))

    def merge(self, other: PairStatistics) -> Self:
        """Add the pairs of another shard."""
        return self._combine(other, 1)

    def subtract(self, other: PairStatistics) -> Self:
        """Take out pairs that had been added before."""
        return self._combine(other, -1)

    def zeros_like(self) -> PairStatistics:
        """Return statistics of no pairs, for vectors of the same encoders."""
        shape = self.d_image, self.d_text, self.image_encoder, self.text_encoder
        return PairStatistics(*shape, gram=self._gram is not None)

    def __add__(self, other: PairStatistics) -> PairStatistics:
        return deepcopy(self).merge(other)

    def __sub__(self, other: PairStatistics) -> PairStatistics:
        return deepcopy(self).subtract(other)

    def __repr__(self) -> str:
        return f"PairStatistics(pairs={self.pairs:g}, d_image={self.d_image}, d_text={self.d_text})"

    def centred(self) -> Moments:
        """Return the two means, and F'F and E'F of rows from which they have been subtracted."""
        self._check_not_empty()
        image, text = self._image_sum / self.pairs, self._text_sum / self.pairs
        return self._moments_about(self.image_shift + image, self.text_shift + text)

    def uncentred(self) -> Moments:
        """Return F'F and E'F of the unit rows as they are; the means given with them are zero."""
        self._check_not_empty()
        return self._moments_about(np.zeros(self.d_image), np.zeros(self.d_text))

    def save(self, path: str | Path, *, dtype: npt.DTypeLike = np.float64) -> None:
        """Write the statistics as a safetensors file; float32 halves it at an error of 1e-7."""
        kept = np.dtype(dtype)
        if kept not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InputError(f"statistics are saved as float32 or float64, not {kept}")
        moments = self.centred()
        means = {"image_mean": moments.image_mean, "text_mean": moments.text_mean}
        tensors = {**means, "cross": moments.cross.astype(kept)}
        if moments.gram is not None:
            tensors["gram_upper"] = moments.gram[np.triu_indices(self.d_image)].astype(kept)
        facts = {"pairs": repr(self.pairs), "precision": _coarser(kept, self.precision).name}
        encoders = {"image_encoder": self.image_encoder, "text_encoder": self.text_encoder}
        write_tensors(Path(path), _KIND, tensors, facts | encoders)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read statistics that ``save`` wrote."""
        tensors, facts = read_tensors(Path(path), _KIND, ["image_mean", "text_mean", "cross"], ["pairs", "precision"])
        with damaged(path):
            return cls._from_tensors(tensors, facts)

    @classmethod
    def _from_tensors(cls, tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, str]) -> Self:
        d_text, d_image = tensors["cross"].shape
        if tensors["image_mean"].shape != (d_image,) or tensors["text_mean"].shape != (d_text,):
            raise ValueError("its arrays do not fit each other")
        upper = tensors.get("gram_upper")
        encoders = {name: facts.get(name, "") for name in ("image_encoder", "text_encoder")}
        loaded = cls.zeros(d_image, d_text, **encoders, gram=upper is not None)
        loaded.pairs = float(facts["pairs"])
        loaded.precision = np.dtype(facts["precision"])
        loaded.image_shift, loaded.text_shift = tensors["image_mean"], tensors["text_mean"]
        loaded._cross[:] = tensors["cross"]
        if loaded._gram is not None:
            rows, columns = np.triu_indices(d_image)
            loaded._gram[rows, columns] = upper
            loaded._gram[columns, rows] = upper
        return loaded

    def _choose_dtype(self, images: Rows, texts: Rows) -> np.dtype[Any]:
        # Few images leave F'F singular, and least squares would take float32 noise for signal; few are also cheap.
        few = self._rows + len(images) <= 2 * self.d_image
        return np.dtype(np.float64) if few else working_dtype(images, texts)

    def _add_block(
        self, images: Rows, factors: npt.NDArray[Any], sums: npt.NDArray[Any], masses: Matrix, sign: int
    ) -> None:
        """Add a block of images, given the factors to unit length, the sums of their unit texts and their weights."""
        accumulate = np.add if sign > 0 else np.subtract
        dtype = factors.dtype
        mass = masses.astype(dtype)
        f = images * factors[:, None]
        f -= self.image_shift.astype(dtype)
        sums -= np.multiply.outer(mass, self.text_shift.astype(dtype))
        accumulate(self._image_sum, mass @ f, out=self._image_sum)
        accumulate(self._text_sum, sums.sum(axis=0), out=self._text_sum)
        accumulate(self._cross, sums.T @ f, out=self._cross)
        if self._gram is not None:
            f *= np.sqrt(mass)[:, None]
            accumulate(self._gram, f.T @ f, out=self._gram)

    def _combine(self, other: PairStatistics, sign: Literal[1, -1]) -> Self:
        self._check_compatible(other)
        pairs = self._pairs_after(sign * other.pairs)
        if other.pairs == 0:
            return self
        if self.pairs == 0:
            self.image_shift, self.text_shift = other.image_shift.copy(), other.text_shift.copy()
        moved = other._moments_about(self.image_shift, self.text_shift)
        self._image_sum += sign * (other._image_sum + other.pairs * (other.image_shift - self.image_shift))
        self._text_sum += sign * (other._text_sum + other.pairs * (other.text_shift - self.text_shift))
        self._cross += sign * moved.cross
        if self._gram is not None and moved.gram is not None:
            self._gram += sign * moved.gram
        return self._finish(pairs, other.precision, sign * other._rows)

    def _finish(self, pairs: float, precision: np.dtype[Any], rows: int) -> Self:
        """Remember how many pairs there are now and how precise the least precise of them were."""
        self.pairs = pairs
        self.precision = _coarser(self.precision, precision)
        self._rows = max(0, self._rows + rows)
        if pairs == 0:
            for total in (self._image_sum, self._text_sum, self._cross, self._gram):
                if total is not None:
                    total[:] = 0
        return self

    def _moments_about(self, image: Matrix, text: Matrix) -> Moments:
        """Return the moments relative to other points than the shifts: rank-one corrections."""
        f, e = self.image_shift - image, self.text_shift - text
        cross = self._cross + np.outer(self._text_sum + self.pairs * e, f) + np.outer(e, self._image_sum)
        if self._gram is None:
            return Moments(image, text, None, cross)
        half = np.outer(self._image_sum + self.pairs / 2 * f, f)
        return Moments(image, text, self._gram + half + half.T, cross)

    def _check_not_empty(self) -> None:
        if self.pairs == 0:
            raise InputError("these statistics hold no pairs yet: call update(images, texts) first")

    def _pairs_after(self, added: float) -> float:
        """Return the number of pairs after adding so many; what rounding of weights leaves over counts as none."""
        pairs = self.pairs + added
        rounding = 1e-9 * max(self.pairs, 1.0)
        if pairs < -rounding:
            raise InputError(f"cannot take out {-added:g} pairs: there are only {self.pairs:g}")
        return 0.0 if added < 0 and pairs < rounding else pairs

    def _check_compatible(self, other: PairStatistics) -> None:
        for side in ("image", "text"):
            ours, theirs = getattr(self, f"{side}_encoder"), getattr(other, f"{side}_encoder")
            if ours != theirs:
                raise EncoderMismatchError(
                    f"statistics of two {side} encoders cannot be combined: {ours or 'unnamed'!r} and "
                    f"{theirs or 'unnamed'!r}; encode all pairs with one of them"
                )
        if (self.d_image, self.d_text) != (other.d_image, other.d_text):
            raise EncoderMismatchError(
                f"statistics of different dimensions cannot be combined: {self.d_image} x {self.d_text} and "
                f"{other.d_image} x {other.d_text} (image x text)"
            )
        if (self._gram is None) != (other._gram is None):
            raise InputError("only one of the two statistics holds F'F: make both with the same gram=")


def _coarser(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    return min(one, other, key=lambda dtype: dtype.itemsize)


def _provisional_mean(rows: Rows, factors: npt.NDArray[Any]) -> Matrix:
    """Return about the mean of the unit rows, in numbers that float32 holds exactly."""
    mean: npt.NDArray[Any] = factors[:BLOCK] @ rows[:BLOCK].astype(factors.dtype, copy=False) / len(rows[:BLOCK])
    return mean.astype(np.float32).astype(np.float64)
