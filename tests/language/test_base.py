from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recap.errors import InputError, MissingExtraError
from recap.language import LanguageModelInfo, list_language_models, load_language_model
from recap.language.base import Decoding, prompt_seed


def test_none_is_no_model() -> None:
    assert load_language_model("none") is None


@pytest.mark.parametrize("spec", ["gpt-5", "hf", "hf:", "llamacpp:", "onnx:folder", ""])
def test_an_unknown_name_lists_the_known(spec: str) -> None:
    with pytest.raises(InputError, match=r"unknown language model .*known: writer, smollm2, llamacpp:GGUF, hf:"):
        load_language_model(spec)


@pytest.mark.parametrize(
    ("spec", "package", "extra"), [("hf:x", "transformers", "hf"), ("ct2:x", "ctranslate2", "ct2")]
)
def test_a_missing_package_names_its_extra(spec: str, package: str, extra: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"recap-captioner\[{extra}\]"):
        load_language_model(spec)


def test_the_list_says_what_is_missing(monkeypatch: Any) -> None:
    monkeypatch.setattr("recap.language.registry.find_spec", lambda name: None if name == "ctranslate2" else object())
    models = {info.name.split(":")[0]: info for info in list_language_models()}
    assert models["smollm2"] == LanguageModelInfo("smollm2", models["smollm2"].what, "Apache-2.0", None)
    assert models["hf"].missing_extra is None
    assert models["ct2"].missing_extra == "ct2"


@pytest.mark.parametrize("spec", ["smollm2", "llamacpp:smollm2"])
def test_an_asset_is_fetched_by_name(spec: str, tmp_path: Path, monkeypatch: Any) -> None:
    assets = ModuleType("recap.assets")
    asked = []

    def fetch(name: str) -> Path:
        asked.append(name)
        return tmp_path / "absent.gguf"

    assets.fetch = fetch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recap.assets", assets)
    with pytest.raises(Exception, match=r"absent\.gguf"):
        load_language_model(spec)
    assert asked == ["smollm2"]


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
