"""Recall against sorting everything, with several captions an image and with ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.experiments import retrieval as recall
from recap.experiments.retrieval import retrieve


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=12), coarse=st.booleans(), seed=st.integers(0, 99))
def test_ranks_equal_those_of_sorting(counts: list[int], coarse: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    draw = (
        (lambda n: random.integers(-1, 2, (n, 3)).astype(np.float32)) if coarse else (lambda n: random.random((n, 3)))
    )
    images, texts = draw(len(counts)), draw(len(owners))
    found = retrieve(images, texts, owners)
    similarities = images @ texts.T
    for image, row in enumerate(similarities):
        order = np.argsort(-row, kind="stable")
        assert found.text_ranks[image] == np.flatnonzero(owners[order] == image)[0]
        assert found.image_cosines[image] == pytest.approx(row[owners == image].max())
    for text, column in enumerate(similarities.T):
        order = np.argsort(-column, kind="stable")
        assert found.image_ranks[text] == np.flatnonzero(order == owners[text])[0]
        assert found.text_cosines[text] == pytest.approx(column[owners[text]])


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    images, texts, owners = random.random((20, 4)), random.random((60, 4)), np.repeat(np.arange(20), 3)
    whole = retrieve(images, texts, owners)
    monkeypatch.setattr(recall, "BLOCK", 7)
    parts = retrieve(images, texts, owners)
    assert np.array_equal(whole.text_ranks, parts.text_ranks)
    assert np.array_equal(whole.image_ranks, parts.image_ranks)


def test_shares_and_standard_errors() -> None:
    found = recall.Retrieval(
        np.array([0, 3, 5, 0]),
        np.array([0, 1, 0, 0, 9, 9, 0, 0]),
        np.zeros(4),
        np.zeros(8),
        np.repeat(np.arange(4), 2),
    )
    one, to_image = found.to_text(1), found.to_image(1)
    assert (one.value, one.error) == (50.0, pytest.approx(100 * np.sqrt(0.25 / 4)))
    assert to_image.value == 62.5
    assert to_image.error == pytest.approx(100 * np.std([0.5, 1, 0, 1], ddof=1) / 2)
    assert found.to_text(4).value == 75.0
