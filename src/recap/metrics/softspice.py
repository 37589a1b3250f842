"""SoftSPICE (Li et al. 2023): SPICE with the match of two phrases replaced by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recap.encoders.base import TextEncoder
from recap.errors import InputError
from recap.metrics.statistics import MetricResult, mean_result
from recap.types import Vectors


def soft_spice(
    candidates: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    encoder: TextEncoder,
    *,
    progress: bool = False,
) -> MetricResult:
    """Return SoftSPICE from the phrases of scene graphs; a candidate without any, or without references, scores 0.

    Args:
        candidates: the phrases of each candidate, such as ``["dog", "brown dog", "dog on grass"]``.
        references: the phrases of all references of each candidate, taken together.
        encoder: gives phrases their vectors; each distinct phrase is encoded once.
        progress: whether to show a bar.
    """
    if len(candidates) != len(references) or not len(candidates):
        raise InputError(f"SoftSPICE: phrases of {len(candidates)} candidates, references of {len(references)}")
    phrases = list(dict.fromkeys(phrase for side in (candidates, references) for group in side for phrase in group))
    place = {phrase: row for row, phrase in enumerate(phrases)}
    vectors = encoder.encode_texts(phrases, progress=progress) if phrases else np.zeros((0, 1), np.float32)
    values = [
        mean_best_cosine(vectors[[place[phrase] for phrase in mine]], vectors[[place[phrase] for phrase in theirs]])
        if mine and theirs
        else 0.0
        for mine, theirs in zip(candidates, references, strict=True)
    ]
    return mean_result("SoftSPICE", np.array(values))


def mean_best_cosine(candidate: Vectors, references: Vectors) -> float:
    """Return the mean over candidate rows of the largest dot product with a reference row."""
    return float((candidate @ references.T).max(axis=1).mean(dtype=np.float64))
