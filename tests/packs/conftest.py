"""Packs of the colour world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recap import ReCap
from recap.encoders import Encoder, load_encoder
from recap.types import Pair

Fit = Callable[..., ReCap]


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Encoder:
    return load_encoder(f"onnx:{encoder_folder}")


@pytest.fixture(scope="session")
def fit(encoder: Encoder) -> Fit:
    def make(pairs: list[Pair], **options: object) -> ReCap:
        return ReCap.fit(pairs, encoder=encoder, source="walls", language_model=None, **options)

    return make


@pytest.fixture
def folder(fit: Fit, pairs: list[Pair], tmp_path: Path) -> Path:
    """A pack of all pairs that keeps vectors."""
    fit(pairs, keep_vectors=True).save_pretrained(tmp_path / "pack")
    return tmp_path / "pack"
