"""Captions that say the same as an earlier one: in the same words, or nearly so by their vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Ids, SearchResult
from recap.errors import InputError
from recap.types import Vectors

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
