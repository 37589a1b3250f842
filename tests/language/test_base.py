from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from recap.assets import ASSETS, Asset, LocalFile
from recap.errors import AssetError, InputError, MissingExtraError, OfflineError, UnknownNameError
from recap.language import list_language_models, load_language_model
from recap.language.base import Decoding, prompt_seed


def test_none_is_no_model() -> None:
    assert load_language_model("none") is None


@pytest.mark.parametrize("spec", ["gpt-5", "hf", "hf:", "llamacpp:", "onnx:folder", ""])
def test_an_unknown_name_lists_the_known(spec: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown language model .*known: writer, .*llamacpp:GGUF, hf:"):
        load_language_model(spec)


@pytest.mark.parametrize(("spec", "meant"), [("wirter", "writer"), ("smollm", "smollm2"), ("hf", "hf:NAME_OR_FOLDER")])
def test_a_slip_is_recognised(spec: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"did you mean {meant}\?"):
        load_language_model(spec)


@pytest.mark.parametrize(
    ("spec", "package", "extra"), [("hf:x", "transformers", "hf"), ("ct2:x", "ctranslate2", "ct2")]
)
def test_a_missing_package_names_its_extra(spec: str, package: str, extra: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[{extra}\]"):
        load_language_model(spec)


def test_the_list_says_what_is_missing(monkeypatch: Any) -> None:
    monkeypatch.setattr("recap.registry.find_spec", lambda name: None if name == "ctranslate2" else object())
    models = {info.name.split(":")[0]: info for info in list_language_models()}
    assert [models[name].missing_extra for name in ("smollm2", "hf", "ct2")] == [None, None, "ct2"]


@pytest.mark.parametrize("spec", ["smollm2", "llamacpp:smollm2"])
def test_an_asset_is_fetched_by_name(spec: str, tmp_path: Path, monkeypatch: Any) -> None:
    weights = tmp_path / "broken.gguf"
    weights.write_bytes(b"not a model")
    known = Asset("smollm2", LocalFile(weights))
    monkeypatch.setitem(ASSETS, "smollm2", known)
    with pytest.raises(AssetError, match=r"broken\.gguf could not be loaded"):
        load_language_model(spec)


def test_a_hub_file_that_is_not_there_is_asked_for(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OfflineError, match=r"recap-tests/none/model\.gguf"):
        load_language_model("llamacpp:hub:recap-tests/none/model.gguf")


@pytest.mark.parametrize(
    "values", [{"samples": 0}, {"max_tokens": 0}, {"top_k": -1}, {"temperature": -0.1}, {"top_p": 0}, {"top_p": 1.1}]
)
def test_decodings_that_make_no_sense(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Decoding(**values)


def test_seeds_are_small_and_differ() -> None:
    seeds = {prompt_seed(seed, text) for seed in range(20) for text in ("a", "b", "1\na")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert prompt_seed(0, "a") == prompt_seed(0, "a")
