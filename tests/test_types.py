"""Unit length, one way for all rooms; how captions show themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.types import Caption, Evidence, unit_rows


def test_unit_rows_have_length_one_whatever_their_scale() -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    scaled = vectors * np.float32([1, 1e-6, 1e6, 1e-30, 1e30, 3])[:, None]
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(unit_rows(scaled), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_any_precision_comes_in_and_none_is_lost(dtype: type) -> None:
    unit = unit_rows(np.array([[3, 4], [0, 2]], dtype=dtype))
    assert unit.dtype == (np.float32 if dtype in (np.float16, np.float32) else np.float64)
    assert np.allclose(unit, [[0.6, 0.8], [0, 1]])


def test_rows_without_direction_are_filled() -> None:
    rows = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 1], [3e-7, 4e-7]], np.float32)
    assert np.allclose(unit_rows(rows)[[0, 4]], [[0.6, 0.8], [0.6, 0.8]])
    assert np.isnan(unit_rows(rows)[1:4]).all()
    assert np.array_equal(unit_rows(rows, shortest=1e-6, otherwise=0.0)[1:], np.zeros((4, 2)))
    assert rows[0].tolist() == [3, 4]


@given(rows=st.integers(1, 40), order=st.sampled_from("CF"), seed=st.integers(0, 99))
def test_a_row_does_not_depend_on_the_others(rows: int, order: str, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((rows, 33)).astype(np.float32)
    alone = np.concatenate([unit_rows(row[None]) for row in vectors])
    assert np.array_equal(unit_rows(np.array(vectors, order=order)), alone)  # type: ignore[call-overload]


def test_a_caption_shows_itself_in_a_line_and_in_a_notebook() -> None:
    evidence = tuple(Evidence(f"<b>cat</b> {number}", 0.5 - number / 100, "coco") for number in range(13))
    caption = Caption("a cat & a dog", 0.4166, evidence, (), "consensus", 0.3)
    assert str(caption) == f"{caption}" == "a cat & a dog"
    assert repr(caption) == "Caption('a cat & a dog', score=0.42, confidence=0.30, 13 evidence, 0 candidates)"
    assert str(evidence[0]) == "<b>cat</b> 0"
    page = caption._repr_html_()
    assert "a cat &amp; a dog" in page
    assert "30% sure, unsure" in page
    assert page.count("&lt;b&gt;cat&lt;/b&gt;") == 5
    assert "<b>cat</b>" not in page
    assert caption.evidence._repr_html_().count("<tr>") == 14  # type: ignore[attr-defined]
    assert "0.50" in evidence[0]._repr_html_()
