"""From what an index proposes to the true nearest captions, in an order that nothing but the query decides.

Captions that say the same as an earlier one: in the same words, or nearly so by their vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Excluded, Ids, SearchResult, names
from recap.errors import InputError
from recap.types import Vectors

GATHER_NUMBERS = 8_000_000
"""How many numbers of proposed vectors are held at a time."""

SPARE = 8
"""So many more are asked for when queries leave images out; too few, and the query is asked again."""


def rank(
    propose: Callable[[Vectors, int], tuple[Ids, Vectors]],
    queries: Vectors,
    k: int,
    *,
    error: float,
    available: int,
    spare: int,
    rescore: Callable[[npt.NDArray[np.intp], Ids], Vectors],
) -> SearchResult:
    """Return the ``k`` best of ``available`` captions for each query.

    ``propose(queries, count)``, an index, is asked for more than ``k``: by ``spare`` (how many of a query's nearest may
    drop out) and a few. Each proposal is scored again by ``rescore(query numbers, ids)``, minus infinity meaning out,
    and put in order. When a caption that was not proposed could still belong among the best, because the index is off
    by up to ``error`` or because many are equally near, that query is asked again for twice as many. An index that
    cannot say how far it is off (infinity) is asked again only when too many dropped out.
    """
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    similarities = np.full((len(queries), k), -np.inf, dtype=np.float32)
    pending = np.arange(len(queries))
    fetch = min(k + spare + 8 + k // 2, available)
    while len(pending) and fetch:
        proposed, rough = propose(queries[pending], fetch)
        exact = rescore(pending, proposed)
        order = np.lexsort((proposed, -exact), axis=1)[:, :k]
        best = np.take_along_axis(exact, order, axis=1)
        found = np.take_along_axis(proposed, order, axis=1)
        similarities[pending, : best.shape[1]] = best
        ids[pending, : best.shape[1]] = np.where(np.isneginf(best), -1, found)
        if fetch == available:
            break
        settled = best[:, -1] > rough[:, -1] + error if np.isfinite(error) else ~np.isneginf(best[:, -1])
        exhausted = proposed[:, -1] < 0
        pending = pending[~settled & ~exhausted]
        fetch = min(2 * fetch, available)
    return SearchResult(ids, similarities)


def dot_products(queries: Vectors, ids: Ids, vectors: Callable[[Ids], Vectors]) -> Vectors:
    """Return the similarity of each query with each of its ids; minus infinity where the id is negative.

    The sums run in float64 and are rounded once, so that equal vectors are equally similar whatever computed the
    proposals.
    """
    similarities = np.full(ids.shape, -np.inf, dtype=np.float32)
    step = max(1, GATHER_NUMBERS // max(1, ids.shape[1] * queries.shape[1]))
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        row, column = np.nonzero(part >= 0)
        rows = vectors(part[row, column])
        asked = queries[start : start + step].astype(np.float64)[row]
        similarities[start + row, column] = np.einsum("nd,nd->n", asked, rows)
    return similarities


def left_out(exclude: Excluded | None) -> list[frozenset[str]] | None:
    """Return the images that each query leaves out; None when none of them leaves out any."""
    images = [frozenset(name for name in names(entry or ()) if name) for entry in exclude or ()]
    return images if any(images) else None


def sifted(ids: Ids, excluded: Sequence[frozenset[Any]], images_of: Callable[[Ids], npt.NDArray[Any]]) -> Ids:
    """Return ``ids`` with -1 for the captions of the images that each row leaves out."""
    kept = ids.copy()
    for row, images in zip(kept, excluded, strict=True):
        if images:
            there = np.flatnonzero(row >= 0)
            row[there[[image in images for image in images_of(row[there]).tolist()]]] = -1
    return kept


def dot_error(dimension: int, *, half: bool = False) -> float:
    """Bound the error of a dot product of unit vectors summed in float32, in any order, of rows rounded to float16."""
    summing = dimension * 2.0**-24 + 2.0**-22
    return summing + (2.0**-11 + dimension**0.5 * 2.0**-25 if half else 0.0)


Mask = npt.NDArray[np.bool_]

EXACT_ROWS = 50_000
"""Up to this many captions every one is compared with every other; above, with its nearest ``NEIGHBOURS``."""

NEIGHBOURS = 64
BLOCK = 2048


def same_words(texts: Iterable[str]) -> Mask:
    """Return which texts differ from an earlier one in case, spaces or the full stop at most."""
    seen: set[str] = set()
    repeated = []
    for text in texts:
        key = " ".join(text.casefold().split()).removesuffix(".").rstrip()
        repeated.append(key in seen)
        seen.add(key)
    return np.array(repeated, dtype=bool)


def check_threshold(cosine: float) -> None:
    """Raise unless ``cosine`` can be a limit from which on two captions count as the same."""
    if not 0 < cosine <= 1:
        raise InputError(f"the cosine from which on captions are alike must be above 0 and at most 1, not {cosine}")


def alike(pieces: Iterable[tuple[slice, Vectors]], cosine: float) -> Mask:
    """Return which unit rows have a cosine of at least ``cosine`` with an earlier row that stays.

    Every row is compared with all that stay, so nothing is missed: the work grows with the square of the rows.
    """
    stay: list[Vectors] = []
    marks: list[Mask] = [np.zeros(0, dtype=bool)]
    for _, piece in pieces:
        for start in range(0, len(piece), BLOCK):
            rows = piece[start : start + BLOCK]
            gone = np.zeros(len(rows), dtype=bool)
            for known in stay:
                gone |= (rows @ known.T).max(axis=1) >= cosine
            gone = _alike_within(rows, gone, cosine)
            marks.append(gone)
            if not gone.all():
                stay.append(rows[~gone])
    return np.concatenate(marks)


def alike_among_neighbours(
    ids: Ids, pieces: Iterator[tuple[slice, Vectors]], search: Callable[[Vectors, int], SearchResult], cosine: float
) -> Mask:
    """Return the same as ``alike``, from the nearest neighbours that ``search`` finds: for stores of any size."""
    gone = np.zeros(len(ids), dtype=bool)
    for piece, rows in pieces:
        for start in range(0, len(rows), BLOCK):
            found = search(rows[start : start + BLOCK], min(NEIGHBOURS, len(ids)))
            first = piece.start + start
            for row, (near, similarities) in enumerate(zip(found.ids, found.similarities, strict=True), first):
                earlier = near[(similarities >= cosine) & (near >= 0) & (near < ids[row])]
                gone[row] = bool((~gone[np.searchsorted(ids, earlier)]).any())
    return gone


def _alike_within(rows: Vectors, gone: Mask, cosine: float) -> Mask:
    """Go on with the rows of one block: each against those before it that stay."""
    near = np.tril(rows @ rows.T >= cosine, -1)
    for row in np.flatnonzero(near.any(axis=1)):
        if not gone[row]:
            gone[row] = bool((near[row] & ~gone).any())
    return gone
