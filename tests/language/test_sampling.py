from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recap.language.base import Decoding
from recap.language.sampling import choose, uniforms

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
    tokens = np.asarray(choose(as_array(probabilities), as_array(uniform), decoding))
    expected = [_expected(row, float(u), decoding) for row, u in zip(probabilities, uniform, strict=True)]
    assert (tokens == expected).sum() >= 7, "one may fall on the edge between two tokens"


def test_numbers_at_the_ends_stay_inside_the_nucleus(as_array: AsArray) -> None:
    probabilities = as_array(np.array([[0.5, 0.3, 0.15, 0.05]] * 2, np.float32))
    ends = as_array(np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], np.float32))
    for top_k, top_p, last in [(0, 0.9, 2), (0, 0.5, 0), (2, 1.0, 1), (3, 0.8, 1), (0, 1.0, 3)]:
        tokens = choose(probabilities, ends, Decoding(temperature=1, top_k=top_k, top_p=top_p))
        assert tokens.tolist() == [0, last]


def test_greedy_takes_the_likeliest(as_array: AsArray) -> None:
    probabilities = as_array(np.array([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]], np.float32))
    assert choose(probabilities, as_array(np.ones(2, np.float32)), Decoding(temperature=0)).tolist() == [1, 0]


def test_random_numbers_do_not_depend_on_the_length() -> None:
    short, long = (uniforms(Decoding(samples=3, max_tokens=n, seed=4), "a prompt") for n in (5, 9))
    assert np.array_equal(short, long[:5])
    assert not np.array_equal(short, uniforms(Decoding(samples=3, max_tokens=5, seed=4), "another"))


def test_greedy_decoding_is_one_sentence() -> None:
    assert uniforms(Decoding(samples=3, max_tokens=5, temperature=0), "a prompt").shape == (5, 1)
