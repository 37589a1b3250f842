"""The ways to align, under the paper's names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from recap.alignment import LinearAlignment, search_beta
from recap.encoders import Encoder
from recap.errors import InputError
from recap.experiments.base import Setup
from recap.experiments.data import Split

METHODS = {
    "ZS": "identity",
    "IT": "it",
    "beta-PR": "beta-procrustes",
    "LFA": "lfa",
    "PR": "procrustes",
    "OLS": "ols",
    "ridge": "ridge",
}
"""Labels of rows, and what the estimator calls them."""

SHARED_ONLY = ("ZS", "beta-PR")
"""What compares images with texts as the encoder made them."""


@dataclass(frozen=True)
class Fitted:
    """A map under its label, with the CPU seconds it took."""

    label: str
    alignment: LinearAlignment
    seconds: float


def fit_all(train: Split, encoder: Encoder, setup: Setup) -> Iterator[Fitted]:
    """Yield every map that means something for this encoder, fitted; the option ``maps`` names those to take only."""
    chosen, seed = wanted_maps(setup), setup.seed
    for label, method in METHODS.items():
        if label in chosen and (encoder.shares_space or label not in SHARED_ONLY):
            started = time.process_time()
            alignment = train.fit(method, beta=_beta(label, train, encoder, seed), seed=seed)
            yield Fitted(label, alignment, time.process_time() - started)


def wanted_maps(setup: Setup) -> list[str]:
    """Return the labels of the maps that ``--option maps=PR,OLS`` asks for; all of them without it."""
    asked = setup.listed("maps", ",".join(METHODS))
    unknown = [name for name in asked if name not in METHODS]
    if unknown:
        raise InputError(f"there is no map {unknown[0]!r}; there are {', '.join(METHODS)}")
    return asked


def left_out(encoder: Encoder) -> tuple[str, ...]:
    """Return a note about the maps that mean nothing for this encoder."""
    if encoder.shares_space:
        return ()
    names = " and ".join(SHARED_ONLY)
    return (f"{names} need an encoder whose images and texts share one space; {encoder.name} has none.",)


def _beta(label: str, train: Split, encoder: Encoder, seed: int) -> float:
    """Return beta: searched for beta-PR, that of Ouali et al. for LFA's start, none where no space is shared."""
    if not encoder.shares_space:
        return 0.0
    return search_beta(train.images, train.texts, train.owners, seed=seed) if label == "beta-PR" else 0.85
