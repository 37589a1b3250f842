from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recap.assets import ASSETS, Asset, LocalFile
from recap.errors import AssetError, InputError, MissingExtraError, OfflineError, UnknownNameError
from recap.language import list_language_models, load_language_model
from recap.language.base import Decoding, draw_tokens, prompt_seed, uniforms


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


AsArray = Callable[[np.ndarray], Any]


@pytest.fixture(params=["numpy", "torch"])
def as_array(request: pytest.FixtureRequest) -> AsArray:
    """Numbers as the arrays of a library that language models run on."""
    return np.asarray if request.param == "numpy" else request.getfixturevalue("torch").from_numpy


def _expected(probabilities: np.ndarray, uniform: float, decoding: Decoding) -> int:
    p = probabilities.astype(np.float64) ** (1 / decoding.temperature)
    order = np.argsort(-p, kind="stable")[: decoding.top_k or None]
    p = p[order] / p[order].sum()
    p[np.cumsum(p) - p >= decoding.top_p] = 0
    return int(order[min(np.searchsorted(np.cumsum(p / p.sum()), uniform, side="right"), np.count_nonzero(p) - 1)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([3, 64, 65, 500]),
    spread=st.floats(0.1, 6),
    temperature=st.floats(0.1, 2),
    top_k=st.sampled_from([0, 1, 2, 50, 1000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
)
def test_tokens_are_those_of_a_plain_computation(
    as_array: AsArray, seed: int, size: int, spread: float, temperature: float, top_k: int, top_p: float
) -> None:
    rng = np.random.default_rng(seed)
    probabilities = np.exp(rng.normal(0, spread, (8, size))).astype(np.float32)
    probabilities /= probabilities.sum(1, keepdims=True)
    uniform = rng.random(8, dtype=np.float32)
    decoding = Decoding(temperature=temperature, top_k=top_k, top_p=top_p)
    tokens = np.asarray(draw_tokens(as_array(probabilities), as_array(uniform), decoding))
    expected = [_expected(row, float(u), decoding) for row, u in zip(probabilities, uniform, strict=True)]
    assert (tokens == expected).sum() >= 7, "one may fall on the edge between two tokens"


def test_numbers_at_the_ends_stay_inside_the_nucleus(as_array: AsArray) -> None:
    probabilities = as_array(np.array([[0.5, 0.3, 0.15, 0.05]] * 2, np.float32))
    ends = as_array(np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], np.float32))
    for top_k, top_p, last in [(0, 0.9, 2), (0, 0.5, 0), (2, 1.0, 1), (3, 0.8, 1), (0, 1.0, 3)]:
        tokens = draw_tokens(probabilities, ends, Decoding(temperature=1, top_k=top_k, top_p=top_p))
        assert tokens.tolist() == [0, last]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_several_numbers_may_belong_to_one_row(temperature: float, as_array: AsArray) -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.full(200, 0.1), 3).astype(np.float32)
    rows, uniform = np.array([2, 0, 0, 1, 2]), as_array(np.linspace(0, 0.9, 5, dtype=np.float32))
    decoding = Decoding(temperature=temperature, top_p=0.9)
    shared = draw_tokens(as_array(probabilities), uniform, decoding, rows)
    assert shared.tolist() == draw_tokens(as_array(probabilities[rows]), uniform, decoding).tolist()


def test_greedy_takes_the_likeliest(as_array: AsArray) -> None:
    probabilities = as_array(np.array([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]], np.float32))
    assert draw_tokens(probabilities, as_array(np.ones(2, np.float32)), Decoding(temperature=0)).tolist() == [1, 0]


def test_random_numbers_do_not_depend_on_the_length() -> None:
    short, long = (uniforms(Decoding(samples=3, max_tokens=n, seed=4), "a prompt") for n in (5, 9))
    assert np.array_equal(short, long[:5])
    assert not np.array_equal(short, uniforms(Decoding(samples=3, max_tokens=5, seed=4), "another"))


def test_greedy_decoding_is_one_sentence() -> None:
    assert uniforms(Decoding(samples=3, max_tokens=5, temperature=0), "a prompt").shape == (5, 1)
