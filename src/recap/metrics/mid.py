"""Mutual information divergence (Kim et al. 2022): how much a caption says about its picture, among Gaussians.

Pictures X, true captions Y and both side by side Z are taken for Gaussian. Their covariances give the mutual
information of X and Y, and the three squared Mahalanobis distances of a judged pair say how far it is from typical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from recap.errors import InputError
from recap.metrics.ngrams import Floats
from recap.metrics.statistics import MetricResult, mean_result


def mid(
    images: npt.ArrayLike,
    candidates: npt.ArrayLike,
    reference_images: npt.ArrayLike,
    references: npt.ArrayLike,
) -> MetricResult:
    """Return MID of judged pairs against true ones; all are vectors, one a row, and the sum is done in float64.

    Args:
        images: the picture of each candidate.
        candidates: the judged captions.
        reference_images: the picture of each reference, beside it.
        references: captions that people wrote. There must be more of them than image and text dimensions together.
    """
    true_images, true_texts = np.asarray(reference_images, np.float64), np.asarray(references, np.float64)
    _check(true_images, true_texts)
    judged_images, judged_texts = np.asarray(images, np.float64), np.asarray(candidates, np.float64)
    sides = [
        (_Gaussian.fit(true_images, "the pictures"), judged_images, 1),
        (_Gaussian.fit(true_texts, "the references"), judged_texts, 1),
        (
            _Gaussian.fit(np.hstack([true_images, true_texts]), "pictures and references together"),
            np.hstack([judged_images, judged_texts]),
            -1,
        ),
    ]
    information = 0.5 * sum(sign * gaussian.log_determinant for gaussian, _, sign in sides)
    distances = np.sum([sign * gaussian.distances(rows) for gaussian, rows, sign in sides], axis=0)
    return mean_result("MID", information + 0.5 * distances)


@dataclass(frozen=True, slots=True)
class _Gaussian:
    mean: Floats
    lower: Floats
    """Cholesky factor of the covariance."""

    @classmethod
    def fit(cls, rows: Floats, what: str) -> Self:
        try:
            lower: Floats = np.linalg.cholesky(np.cov(rows, rowvar=False, ddof=1)).astype(np.float64)
        except np.linalg.LinAlgError as error:
            raise InputError(
                f"MID: the covariance of {what} is singular: too few different ones for "
                f"{rows.shape[1]} dimensions; score more images"
            ) from error
        return cls(rows.mean(axis=0), lower)

    @property
    def log_determinant(self) -> float:
        return float(2 * np.log(np.diag(self.lower)).sum())

    def distances(self, rows: Floats) -> Floats:
        """Return squared Mahalanobis distances."""
        whitened = np.linalg.solve(self.lower, (rows - self.mean).T)
        distances: Floats = np.einsum("ij,ij->j", whitened, whitened)
        return distances


def _check(images: Floats, texts: Floats) -> None:
    if len(images) != len(texts):
        raise InputError(f"MID: {len(images)} pictures beside {len(texts)} references; give the picture of each")
    dimensions = images.shape[1] + texts.shape[1]
    if len(images) <= dimensions:
        raise InputError(
            f"MID needs more than {dimensions} references (image and text dimensions together), there are {len(images)}"
        )
