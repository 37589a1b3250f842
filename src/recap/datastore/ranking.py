"""Which captions are near: from what an index proposes to the true nearest, and which captions say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recap.errors import InputError
from recap.types import Vectors

if TYPE_CHECKING:
    from recap.datastore.base import Excluded, Ids, Mask, SearchResult

GATHER_NUMBERS = 8_000_000
"""Numbers of proposed vectors that are held at a time."""

SPARE = 8
"""How many more are asked for when queries leave images out; too few, and the query is asked again."""

EXACT_ROWS = 50_000
"""Up to this many captions every one is compared with every other for duplicates; above, with its neighbours."""

NEIGHBOURS = 64
BLOCK = 2048
"""Rows that are compared at a time."""


def rank(
    propose: Callable[[Vectors, int], tuple[Ids, Vectors]],
    queries: Vectors,
    k: int,
    *,
    error: float,
    available: int,
    vectors: Callable[[Ids], Vectors],
    images: Callable[[Ids], npt.NDArray[Any]],
    exclude: Excluded | None = None,
) -> tuple[Ids, Vectors]:
    """Return ids and similarities of the ``k`` best of ``available`` captions for each query, in a definite order.

    ``propose(queries, count)``, an index, is asked for more than ``k``. The similarity of each proposal is computed
    again from ``vectors(ids)``; those whose ``images(ids)`` a query excludes drop out. When a caption that was not
    proposed could still belong among the best, because the index is off by up to ``error`` or because many are equally
    near, that query is asked again for twice as many. An index that cannot say how far it is off (infinity) is asked
    again only when too many dropped out.
    """
    left_out = _left_out(exclude)
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    similarities = np.full((len(queries), k), -np.inf, dtype=np.float32)
    pending = np.arange(len(queries))
    fetch = min(k + (SPARE if left_out else 0) + 8 + k // 2, available)
    while len(pending) and fetch:
        proposed, rough = propose(queries[pending], fetch)
        allowed = proposed if left_out is None else _sift(proposed, [left_out[number] for number in pending], images)
        exact = dot_products(queries[pending], allowed, vectors)
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
    return ids, similarities


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


def dot_error(dimension: int, *, half: bool = False) -> float:
    """Bound the error of a dot product of unit vectors summed in float32, in any order, of rows rounded to float16."""
    summing = dimension * 2.0**-24 + 2.0**-22
    return summing + (2.0**-11 + dimension**0.5 * 2.0**-25 if half else 0.0)


def float32_rows(rows: npt.NDArray[Any]) -> Vectors:
    """Return rows of float16 as float32, six times as fast as numpy's cast: no row is infinite or NaN.

    The bits of a float16 moved to the place they have in a float32 make the same number but for a power of two.
    """
    if rows.dtype == np.float32:
        return np.ascontiguousarray(rows)
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x70002000)
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)
    return values


def uncentred(rows: Vectors, center: Vectors | None) -> Vectors:
    """Return the unit vectors that become ``rows`` when they are centred and brought back to unit length.

    Seen from the centre, which lies within the unit sphere, each row points at one point of the sphere.
    """
    if center is None:
        return rows
    directions, origin = rows.astype(np.float64), center.astype(np.float64)
    along = directions @ origin
    distances = np.sqrt(along**2 + 1 - origin @ origin) - along
    return (origin + distances[:, None] * directions).astype(np.float32)


def _left_out(exclude: Excluded | None) -> list[frozenset[str]] | None:
    """Return the images that each query leaves out; None when none of them leaves out any."""
    entries = ([entry] if isinstance(entry, str) else entry or () for entry in exclude or ())
    images = [frozenset(name for name in entry if name) for entry in entries]
    return images if any(images) else None


def _sift(ids: Ids, excluded: Sequence[frozenset[str]], images: Callable[[Ids], npt.NDArray[Any]]) -> Ids:
    """Return ``ids`` with -1 for the captions of the images that each row leaves out."""
    kept = ids.copy()
    row, column = np.nonzero((ids >= 0) & np.array([bool(names) for names in excluded])[:, None])
    of_images = images(ids[row, column]).tolist()
    pairs = zip(row.tolist(), of_images, strict=True)
    gone: Mask = np.array([image in excluded[number] for number, image in pairs], dtype=bool)
    kept[row[gone], column[gone]] = -1
    return kept


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


def near_duplicates(
    ids: Ids, pieces: Iterable[Vectors], search: Callable[[Vectors, int], SearchResult], cosine: float
) -> Mask:
    """Return which captions are similar to an earlier one that stays; ``pieces`` are their vectors, in order.

    Of many captions each is compared with those only that ``search`` finds for it.
    """
    if len(ids) <= EXACT_ROWS:
        return duplicates_among_all(pieces, cosine)
    return duplicates_among_neighbours(ids, pieces, search, cosine)


def duplicates_among_all(pieces: Iterable[Vectors], cosine: float) -> Mask:
    """Return which unit rows have a cosine of at least ``cosine`` with an earlier row that stays.

    Every row is compared with all that stay, so nothing is missed: the work grows with the square of the rows.
    """
    stay: list[Vectors] = []
    masks: list[Mask] = [np.zeros(0, dtype=bool)]
    for rows in _blocks(pieces):
        gone = np.zeros(len(rows), dtype=bool)
        for known in stay:
            gone |= (rows @ known.T).max(axis=1) >= cosine
        near = np.tril(rows @ rows.T >= cosine, -1)
        for row in np.flatnonzero(near.any(axis=1) & ~gone):
            gone[row] = bool((near[row] & ~gone).any())
        masks.append(gone)
        if not gone.all():
            stay.append(rows[~gone])
    return np.concatenate(masks)


def duplicates_among_neighbours(
    ids: Ids, pieces: Iterable[Vectors], search: Callable[[Vectors, int], SearchResult], cosine: float
) -> Mask:
    """Return the same from the nearest neighbours that ``search`` finds: for stores of any size."""
    gone, row = np.zeros(len(ids), dtype=bool), 0
    for rows in _blocks(pieces):
        found = search(rows, min(NEIGHBOURS, len(ids)))
        for near, similarities in zip(found.ids, found.similarities, strict=True):
            earlier = near[(similarities >= cosine) & (near >= 0) & (near < ids[row])]
            gone[row] = bool((~gone[np.searchsorted(ids, earlier)]).any())
            row += 1
    return gone


def _blocks(pieces: Iterable[Vectors]) -> Iterable[Vectors]:
    return (piece[start : start + BLOCK] for piece in pieces for start in range(0, len(piece), BLOCK))
