"""Metrics that compare a caption with the picture itself, on the unit vectors of an encoder.

| function                       | value                                                              |
|--------------------------------|--------------------------------------------------------------------|
| ``clip_s``, ``refclip_s``      | 2.5 max(cos, 0); its harmonic mean with the closest reference      |
| ``clip_dn``, ``clip_dn_ref``   | the dot product without a quarter of the means; plus a quarter of  |
|                                | the closest reference                                              |
| ``aclip_s``, ``refaclip_s``    | the cosine after alignment, clipped at zero; its harmonic mean     |
|                                | with the closest reference                                         |
| ``ref_aligned_cosine``         | the mean of the aligned cosine and the closest reference, neither  |
|                                | clipped: recap's own, it ranks captions that fit badly, too        |
| ``clip_score_100``             | 100 max(cos, 0), no prefix, as torchmetrics has it                 |

The first row is of Hessel et al. 2021, the second of Zhou et al. 2023, the third of the paper behind recap.
All but the aligned ones need an encoder whose images and texts share one space. Everything here is float32 and row by
row: row ``i`` of ``images`` belongs to row ``i`` of ``texts``, whose references are rows ``first[i] : first[i + 1]``.

MID, mutual information divergence (Kim et al. 2022), is how much a caption says about its picture, among Gaussians:
pictures X, true captions Y and both side by side Z are taken for such. Their covariances give the mutual information of
X and Y, and the three squared Mahalanobis distances of a judged pair say how far it is from typical.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from recap.alignment import LinearAlignment
from recap.encoders.base import Encoder
from recap.errors import ImageError, InputError
from recap.files import progress_bar
from recap.metrics.corpus import MetricResult, MetricWarning, mean_result
from recap.metrics.ngrams import Floats, Ints, ranges
from recap.types import ImageLike, Vectors

Scores: TypeAlias = npt.NDArray[np.float32]
Offsets: TypeAlias = npt.NDArray[np.int64]

PREFIX = "A photo depicts "
"""What CLIP-S puts before every caption, references too."""

CLIP_WEIGHT = np.float32(2.5)
DN_SHARE = 0.25

BLOCK = 4096
"""Candidates that are scored at a time."""

Scorer: TypeAlias = Callable[[Vectors, Vectors, Vectors, Offsets], Scores]
"""Takes the rows of images, candidates and references, and where the references of each candidate start."""


def cosines(images: Vectors, texts: Vectors) -> Scores:
    """Return the dot product of each row with the row beside it."""
    products: Scores = np.einsum("ij,ij->i", images, texts, dtype=np.float32)
    return products


def best_reference(texts: Vectors, references: Vectors, first: Offsets) -> Scores:
    """Return for each text the largest dot product with one of its references."""
    owners = np.repeat(np.arange(len(texts)), np.diff(first))
    best: Scores = np.maximum.reduceat(cosines(texts[owners], references), first[:-1])
    return best


def clip_s(images: Vectors, texts: Vectors) -> Scores:
    """Return CLIP-S; texts must have been encoded with ``PREFIX``."""
    scores: Scores = CLIP_WEIGHT * np.maximum(cosines(images, texts), 0)
    return scores


def refclip_s(images: Vectors, texts: Vectors, references: Vectors, first: Offsets) -> Scores:
    """Return RefCLIP-S, the reference clipped at zero; all texts must have been encoded with ``PREFIX``."""
    return harmonic_mean(clip_s(images, texts), np.maximum(best_reference(texts, references, first), 0))


def clip_score_100(images: Vectors, texts: Vectors) -> Scores:
    """Return the CLIPScore of torchmetrics: a scale of 100, and no prefix."""
    return 100 * np.maximum(cosines(images, texts), 0)


def clip_dn(images: Vectors, texts: Vectors, image_mean: Vectors, text_mean: Vectors) -> Scores:
    """Return CLIP+DN: what remains of the dot product when a quarter of both means is taken off first."""
    return cosines(images - DN_SHARE * image_mean, texts - DN_SHARE * text_mean)


def clip_dn_ref(
    images: Vectors, texts: Vectors, references: Vectors, first: Offsets, image_mean: Vectors, text_mean: Vectors
) -> Scores:
    """Return CLIP+DN-Ref: CLIP+DN and a quarter of the cosine with the closest reference.

    The papers give no weight for the reference; a quarter is what the values in their tables imply.
    """
    return clip_dn(images, texts, image_mean, text_mean) + DN_SHARE * best_reference(texts, references, first)


def aclip_s(images: Vectors, texts: Vectors, alignment: LinearAlignment) -> Scores:
    """Return aCLIP-S: the cosine of the mapped image with the centred caption, clipped at zero."""
    return aligned_s(alignment.transform(images), alignment.transform_texts(texts))


def refaclip_s(
    images: Vectors, texts: Vectors, references: Vectors, first: Offsets, alignment: LinearAlignment
) -> Scores:
    """Return RefaCLIP-S: the harmonic mean of aCLIP-S and the closest reference, clipped at zero too."""
    captions, others = alignment.transform_texts(texts), alignment.transform_texts(references)
    return ref_aligned_s(alignment.transform(images), captions, others, first)


def aligned_s(images: Vectors, texts: Vectors) -> Scores:
    """Return aCLIP-S of rows that are aligned already."""
    return np.maximum(cosines(images, texts), 0)


def ref_aligned_s(images: Vectors, texts: Vectors, references: Vectors, first: Offsets) -> Scores:
    """Return RefaCLIP-S of rows that are aligned already."""
    best = np.maximum(best_reference(texts, references, first), 0)
    return harmonic_mean(aligned_s(images, texts), best)


def ref_aligned_cosine(images: Vectors, texts: Vectors, references: Vectors, first: Offsets) -> Scores:
    """Return the mean of the cosine with the image and that with the closest reference, of rows aligned already.

    RefaCLIP-S makes one of all captions with a negative cosine; judges of captions tell them apart.
    """
    mean: Scores = np.float32(0.5) * (cosines(images, texts) + best_reference(texts, references, first))
    return mean


def harmonic_mean(one: Scores, other: Scores) -> Scores:
    """Return the harmonic mean, which is zero where both are."""
    total = one + other
    mean: Scores = np.divide(2 * one * other, total, out=np.zeros_like(total), where=total != 0)
    return mean


class Judged:
    """Candidates, their images and references as vectors: each distinct image and text is encoded once for all metrics.

    ``image_index`` has for each candidate the number of its image; a picture that is missing is None.
    """

    def __init__(
        self,
        encoder: Encoder,
        candidates: Sequence[str],
        image_index: Ints,
        images: Sequence[ImageLike | None],
        references: Sequence[Sequence[str]] | None,
        *,
        progress: bool = False,
    ) -> None:
        self.encoder, self.image_index = encoder, image_index
        self._images, self._progress = images, progress
        self._row: dict[str, int] = {}
        self._candidates = self._rows_of(candidates)
        given = references if references is not None else [()] * len(images)
        self._references = self._rows_of([text for texts in given for text in texts])
        self._first = np.cumsum([0, *map(len, given)])
        self._encoded: dict[str, Vectors] = {}

    def texts(self, prefix: str = "") -> Vectors:
        """Return the vectors of all distinct texts, with a prefix before each."""
        if prefix not in self._encoded:
            texts, cut = [prefix + text for text in self._row], self.encoder.text.truncated
            self._encoded[prefix] = self.encoder.encode_texts(texts, progress=self._progress)
            cut = self.encoder.text.truncated - cut
            if cut:
                message = (
                    f"{cut} of {len(texts)} texts are longer than {self.encoder.name} reads; their end was cut off"
                )
                warnings.warn(message, MetricWarning, stacklevel=2)
        return self._encoded[prefix]

    @property
    def images(self) -> Vectors:
        """The vectors of the pictures that could be read."""
        return self._pictures[0]

    @property
    def problems(self) -> tuple[ImageError, ...]:
        """The pictures that could not be read; a missing one counts as such, but gives no error here."""
        return self._pictures[2]

    @property
    def scored(self) -> Ints:
        """The candidates whose picture could be read."""
        return np.flatnonzero(self._pictures[1][self.image_index] >= 0)

    def score(self, images: Vectors, texts: Vectors, scorer: Scorer) -> Floats:
        """Apply a metric to vectors in the order of ``images`` and ``texts()``; NaN where there is no picture."""
        values = np.full(len(self._candidates), np.nan)
        scored, picture = self.scored, self._pictures[1]
        for start in range(0, len(scored), BLOCK):
            rows = scored[start : start + BLOCK]
            owner = self.image_index[rows]
            begins, ends = self._first[owner], self._first[owner + 1]
            references = texts[self._references[ranges(begins, ends)]]
            first = np.concatenate([[0], np.cumsum(ends - begins)])
            values[rows] = scorer(images[picture[owner]], texts[self._candidates[rows]], references, first)
        return values

    def reference_pairs(self) -> tuple[Vectors, Vectors]:
        """Return each reference beside its picture, as vectors."""
        owner = np.repeat(np.arange(len(self._images)), np.diff(self._first))
        picture = self._pictures[1][owner]
        return self.images[picture[picture >= 0]], self.texts()[self._references[picture >= 0]]

    def candidate_pairs(self) -> tuple[Vectors, Vectors]:
        """Return each scored candidate beside its picture, as vectors."""
        picture = self._pictures[1][self.image_index[self.scored]]
        return self.images[picture], self.texts()[self._candidates[self.scored]]

    def mean_text(self, prefix: str = "") -> Vectors:
        """Return the mean vector of the references, or of the candidates where there are none."""
        rows = self._references if len(self._references) else self._candidates
        mean: Vectors = self.texts(prefix)[rows].mean(axis=0)
        return mean

    def _rows_of(self, texts: Sequence[str]) -> Ints:
        return np.array([self._row.setdefault(text, len(self._row)) for text in texts], dtype=np.int64)

    @cached_property
    def _pictures(self) -> tuple[Vectors, Ints, tuple[ImageError, ...]]:
        """Encode each distinct picture; return the vectors, the row of each picture (-1: none), and what went wrong."""
        distinct: dict[object, ImageLike] = {}
        keys = [_identity(image) for image in self._images]
        distinct.update((key, image) for key, image in zip(keys, self._images, strict=True) if image is not None)
        shown = progress_bar(distinct.values(), desc="encoding pictures", unit="image", progress=self._progress)
        vectors: list[Vectors] = []
        problems: list[ImageError] = []
        row: dict[object, int] = {}
        for key, vector in zip(distinct, self.encoder.encode_each(shown), strict=True):
            if isinstance(vector, ImageError):
                problems.append(vector)
            else:
                row[key] = len(vectors)
                vectors.append(vector)
        empty = np.zeros((0, self.encoder.image.dimension), np.float32)
        rows = np.array([row.get(key, -1) for key in keys], dtype=np.int64)
        return np.stack(vectors) if vectors else empty, rows, tuple(problems)


def _identity(image: ImageLike | None) -> object:
    return str(image) if isinstance(image, str | Path) else id(image)


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
