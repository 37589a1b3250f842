"""Captions for stores of every kind."""

from __future__ import annotations


def grow(store, unit, count, seed=0):
    """Add captions with vectors, sources and pictures; the even and the odd seeds are two sources."""
    return store.add(
        [f"caption {seed}/{i} ü\n" for i in range(count)],
        unit(count, seed=seed),
        source="odd" if seed % 2 else "even",
        synthetic=[i % 2 == 0 for i in range(count)],
        image_ids=[f"image {i // 5}" for i in range(count)],
    )
