"""A pack of the colour world, made by the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from program import recap


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pack(own_cache: None, pairs_folder: Path, encoder_folder: Path, tmp_path: Path) -> Path:
    options = ("--lm", "none", "--method", "ols", "--keep-vectors", "--source", "walls")
    card = ("--licence", "CC-BY-4.0", "--author", "Ada", "--description", "Walls of one colour.")
    recap("fit", pairs_folder, "--out", tmp_path / "pack", "--encoder", f"onnx:{encoder_folder}", *options, *card)
    return tmp_path / "pack"
