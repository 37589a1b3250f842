"""The small campaign: what a hostile pack, picture, folder or neighbour tries, a little of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recap import ReCap
from recap.encoders import Encoder, load_encoder
from recap.types import Pair


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Encoder:
    return load_encoder(f"onnx:{encoder_folder}")


@pytest.fixture(scope="session")
def fitted(encoder: Encoder, pairs: list[Pair]) -> Callable[[], ReCap]:
    return lambda: ReCap.fit(pairs, encoder=encoder, source="walls", language_model=None, keep_vectors=True)


@pytest.fixture
def folder(fitted: Callable[[], ReCap], tmp_path: Path) -> Path:
    """A pack that keeps vectors."""
    fitted().save_pretrained(tmp_path / "pack")
    return tmp_path / "pack"
