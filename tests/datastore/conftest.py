"""One list of index kinds for all tests of this folder, and the brute force they are measured against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from recap.datastore import ApproximateArguments, Datastore, FlatArguments, HalfArguments, IndexArguments, SearchResult

EXACT: dict[str, IndexArguments] = {
    "flat": FlatArguments(),
    "half": HalfArguments(),
    "approximate, still small": ApproximateArguments(),
    "approximate, all lists": ApproximateArguments(minimum_rows=30, lists=6, probes=6),
}
"""Kinds whose answers must be those of brute force. Another backend is one more line."""


@pytest.fixture(params=list(EXACT))
def arguments(request: pytest.FixtureRequest) -> IndexArguments:
    return EXACT[request.param]


@pytest.fixture
def unit() -> Callable[..., np.ndarray]:
    """Random unit rows; equal seeds give equal rows."""

    def rows(count: int, dimension: int = 16, seed: int = 0) -> np.ndarray:
        values = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    return rows


@pytest.fixture
def brute() -> Callable[..., SearchResult]:
    """The definition: all similarities in float64, rounded, best first, then by id."""

    def search(
        store: Datastore, queries: np.ndarray, k: int, allowed: Callable[[int, object], bool] | None = None
    ) -> SearchResult:
        ids = np.full((len(queries), k), -1)
        similarities = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for number, query in enumerate(queries):
            rows = [row.id for row in store if allowed is None or allowed(number, row)]
            raw = store.raw_vectors(rows)
            moved = raw if store.center is None else raw - store.center
            moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
            scores = (moved.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
            order = sorted(range(len(rows)), key=lambda i: (-scores[i], rows[i]))[:k]
            ids[number, : len(order)] = [rows[i] for i in order]
            similarities[number, : len(order)] = [scores[i] for i in order]
        return SearchResult(ids, similarities)

    return search
