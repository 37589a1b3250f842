from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.datastore import Datastore, ranking
from recap.errors import InputError


def brute_force(rows: np.ndarray, cosine: float) -> list[bool]:
    """Each row against all before it that stay."""
    gone: list[bool] = []
    for row in range(len(rows)):
        gone.append(any(not gone[other] and rows[row] @ rows[other] >= cosine for other in range(row)))
    return gone


def clusters(seed: int, count: int = 90) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((12, 8))[rng.integers(0, 12, count)] + 0.25 * rng.standard_normal((count, 8))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@given(seed=st.integers(0, 10_000), cosine=st.sampled_from([0.8, 0.93, 0.99]), block=st.sampled_from([7, 32, 2048]))
def test_near_duplicates_are_those_of_brute_force(seed: int, cosine: float, block: int):
    rows = clusters(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "BLOCK", block)
        assert ranking.duplicates_among_all([rows[:50], rows[50:]], cosine).tolist() == brute_force(rows, cosine)


@pytest.mark.parametrize("limit", [0, 50_000])
def test_large_stores_are_searched_and_find_the_same(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranking, "EXACT_ROWS", limit)
    rows = clusters(1)
    store = Datastore(8, center=rows.mean(axis=0))
    store.add([f"caption {number}" for number in range(len(rows))], rows)
    expected = [number for number, gone in enumerate(brute_force(rows, 0.93)) if not gone]
    assert store.deduplicate(0.93) == len(rows) - len(expected)
    assert store.ids.tolist() == expected


def test_words_come_first_and_the_threshold_is_checked(unit):
    store = Datastore(16)
    store.add(["a cat.", "A  cat", "a dog"], unit(3))
    assert store.deduplicate() == 1
    for wrong in (0, 1.01, -1, float("nan")):
        with pytest.raises(InputError, match="cosine"):
            store.deduplicate(wrong)
    assert len(store) == 2
