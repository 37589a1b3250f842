"""How likely people are to call a caption right.

A logistic regression on seven numbers that every caption has, whoever wrote it: how well it fits the image, how well
the nearest retrieved caption does, how much the retrieved captions agree with it, how much they agree with each
other, how quickly they fall off, and how much the caption says: its words, and the things it names. What "right" means
comes from people; see ``recap.fitting.confidence``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from recap.errors import InputError, PackError
from recap.files import write_json
from recap.language.words import named, words
from recap.selection import by_consensus
from recap.types import Caption, Evidence

Floats = npt.NDArray[np.float64]

FEATURES = ("cosine", "nearest", "support", "agreement", "spread", "words", "things")
EARLIER = FEATURES[:5]
"""What a calibration of earlier packs knows of; the others count for nothing there."""
DEPTH = 30
"""Number of the nearest captions that count, so that k and pool do not matter where they are larger."""


def features(texts: Sequence[str], cosines: npt.ArrayLike, evidence: Sequence[Evidence]) -> Floats:
    """Return a row of ``FEATURES`` for each text, from its cosine with the image and what was retrieved for the image.

    A retrieved caption that is itself among the texts does not count as its own support.
    """
    nearest = evidence[:DEPTH]
    voters = [item.text for item in nearest]
    similarities = np.array([item.similarity for item in nearest])
    votes = by_consensus([*texts, *voters], np.zeros(0, np.float32), nearest)
    rows = np.empty((len(texts), len(FEATURES)))
    rows[:, 0] = np.asarray(cosines)
    rows[:, 1] = similarities[0]
    rows[:, 2] = votes[: len(texts)]
    rows[:, 3] = votes[len(texts) :].mean()
    rows[:, 4] = similarities[0] - similarities.mean()
    rows[:, 5] = [len(words(text)) for text in texts]
    rows[:, 6] = [len(named(text)) for text in texts]
    return rows


@dataclass(frozen=True, slots=True)
class Calibration:
    """From the features of a caption to the probability that people would call it right."""

    intercept: float
    weights: tuple[float, ...]
    """One for each of ``FEATURES``."""
    method: str
    """The map whose cosines these are; those of another have another scale."""
    pictures: int
    """How many pictures it was fitted on."""
    labels: str
    """Where "right" comes from."""

    @classmethod
    def fit(
        cls, rows: Floats, right: Floats, *, method: str, pictures: int, labels: str, weights: Floats | None = None
    ) -> Self:
        """Fit to rows of features and the share of people who call each caption right."""
        intercept, slopes = fit_logistic(rows, right, weights)
        return cls(intercept, tuple(slopes.tolist()), method, pictures, labels)

    def probabilities(self, rows: Floats) -> Floats:
        """Return the confidence for each row of features."""
        return sigmoid(self.intercept + rows @ np.array(self.weights))

    def confidence(self, text: str, cosine: float, evidence: Sequence[Evidence]) -> float:
        """Return the confidence of one caption."""
        return float(self.probabilities(features([text], [cosine], evidence))[0])

    def save(self, path: str | Path) -> None:
        """Write to a json file."""
        write_json(path, {"calibration": self.as_dict()})

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration as plain values, ready for json."""
        return {**asdict(self), "weights": dict(zip(FEATURES, self.weights, strict=True))}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote."""
        values = read_section(path, "calibration")
        try:
            weights = values.pop("weights")
            if weights.keys() not in (set(FEATURES), set(EARLIER)):
                raise PackError(f"{path}: its features are not those of this version of recap; fit it again")
            return cls(**values, weights=tuple(float(weights.get(name, 0)) for name in FEATURES))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PackError(f"{path}: not a calibration of confidence ({error!r})") from error


def is_trusted(caption: Caption, minimum: float) -> bool:
    """Tell whether a caption is confident enough to be shown."""
    if caption.confidence is None:
        raise InputError(
            "this caption has no confidence: the pack has no calibration for this map. Fit the pack again, or use the "
            "map it was fitted with"
        )
    return caption.confidence >= minimum


def withheld_below(caption: Caption, minimum: float) -> dict[str, Any]:
    """Return the caption as plain values, ready for json, withheld unless it is confident enough to be shown.

    ``abstained`` says whether it is; ``caption`` is then None, and what it would have been is under ``withheld``.
    """
    values = caption.as_dict()
    if is_trusted(caption, minimum):
        return {"caption": values.pop("caption"), "abstained": False, "withheld": None, **values}
    return {"caption": None, "abstained": True, "withheld": values.pop("caption"), **values}


def check_minimum(minimum: float, calibration: Calibration | None, method: str) -> None:
    """Raise, before any work is done, if captions could not be held against a least confidence."""
    if not 0 <= minimum <= 1:
        raise InputError(f"the least confidence is a probability between 0 and 1, not {minimum}")
    if calibration is None:
        raise InputError(
            "this pack has no calibration, so its captions have no confidence to hold against a minimum: fit it again "
            "on 20 pictures or more, or calibrate it with recap pack calibrate"
        )
    if calibration.method != method:
        raise InputError(
            f"the confidence of this pack was calibrated for the map {calibration.method}, not for {method}: leave the "
            "map as it is, or ask for no least confidence"
        )


def fit_logistic(
    rows: Floats, shares: Floats, weights: Floats | None = None, *, ridge: float = 1.0
) -> tuple[float, Floats]:
    """Return intercept and slopes of a logistic regression on shares between 0 and 1, by Newton's method.

    ``ridge`` holds the slopes of standardised columns back, as much as one row speaks.
    """
    mass = np.ones(len(rows)) if weights is None else weights
    mean = np.average(rows, axis=0, weights=mass)
    deviation = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=mass))
    scale = np.where(deviation > 1e-12, deviation, np.inf)
    design = np.column_stack([np.ones(len(rows)), (rows - mean) / scale])
    penalty = ridge * np.r_[0.0, np.ones(rows.shape[1])]
    solution = np.zeros(design.shape[1])
    for _ in range(100):
        gradient, curvature = _derivatives(design, shares, mass, penalty, solution)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        loss = _loss(design, shares, mass, penalty, solution)
        while _loss(design, shares, mass, penalty, solution - size * step) > loss and size > 1e-6:
            size /= 2
        solution = solution - size * step
        if np.abs(step).max() < 1e-10:
            break
    slopes: Floats = solution[1:] / scale
    return float(solution[0] - slopes @ mean), slopes


def calibration_error(confidence: Floats, right: Floats, *, bins: int = 10, equal_width: bool = False) -> float:
    """Return the expected calibration error, over bins of equally many captions or of equal width."""
    if equal_width:
        places = np.minimum((confidence * bins).astype(int), bins - 1)
        parts = [np.flatnonzero(places == place) for place in range(bins)]
    else:
        parts = np.array_split(np.argsort(confidence, kind="stable"), bins)
    gaps = [len(part) * abs(confidence[part].mean() - right[part].mean()) for part in parts if len(part)]
    return float(sum(gaps) / len(confidence))


def _loss(design: Floats, shares: Floats, mass: Floats, penalty: Floats, solution: Floats) -> float:
    logits = design @ solution
    return float(mass @ (np.logaddexp(0, logits) - shares * logits) + penalty @ solution**2 / 2)


def _derivatives(
    design: Floats, shares: Floats, mass: Floats, penalty: Floats, solution: Floats
) -> tuple[Floats, Floats]:
    predicted = sigmoid(design @ solution)
    gradient = design.T @ (mass * (predicted - shares)) + penalty * solution
    # a floor, so that the intercept of rows that are all right or all wrong stays solvable
    curvature = (design * (mass * np.maximum(predicted * (1 - predicted), 1e-9))[:, None]).T @ design
    return gradient, curvature + np.diag(penalty)


def sigmoid(logits: Floats) -> Floats:
    """Return probabilities from logits."""
    values: Floats = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return values


def read_section(path: str | Path, name: str) -> dict[str, Any]:
    """Return one of the two parts of a file: ``calibration``, or ``judge`` in the packaged one."""
    try:
        return dict(json.loads(Path(path).read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PackError(f"{path}: not a calibration of confidence ({error!r})") from error
