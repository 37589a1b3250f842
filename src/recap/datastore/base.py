"""What a store of captions promises, wherever it keeps them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import centred_unit_rows, usable_unit_rows
from recap.errors import EncoderMismatchError, InputError
from recap.types import Evidence, Vectors

Ids: TypeAlias = npt.NDArray[np.int64]
"""Numbers of captions. A caption keeps its number for life, and a number is never given twice."""

Names: TypeAlias = str | Collection[str]
"""One name or several."""

Excluded: TypeAlias = Sequence[str | Collection[str] | None]
"""For each query the image, or the images, whose captions must not be found."""


@dataclass(frozen=True, slots=True)
class CaptionRow:
    """One caption as the store keeps it."""

    id: int
    text: str
    source: str = ""
    synthetic: bool = False
    """Whether a machine wrote it."""
    image_id: str = ""

    @property
    def line(self) -> bytes:
        """Id and text as a line, of which the hash of a store is made."""
        return f"{self.id} {self.text}\n".encode(errors="surrogatepass")


@dataclass(frozen=True, slots=True)
class Filters:
    """Which captions may be found; None filters nothing."""

    sources: frozenset[str] | None = None
    exclude_sources: frozenset[str] | None = None
    synthetic: bool | None = None

    @classmethod
    def of(cls, sources: Names | None, exclude_sources: Names | None, synthetic: bool | None) -> Filters:
        """Return filters from what a caller gives."""
        wanted, unwanted = (None if given is None else frozenset(names(given)) for given in (sources, exclude_sources))
        return cls(wanted, unwanted, synthetic)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The nearest captions of each query, best first; equal similarities are in the order of the ids."""

    ids: Ids
    """(queries, k); -1 where fewer captions exist."""
    similarities: Vectors
    """(queries, k); minus infinity where the id is -1."""


@runtime_checkable
class CaptionStore(Protocol):
    """Captions that can be searched: one store, several as one, or a server's.

    Queries are points of the centred caption space. What is found for one of them depends on that query and the
    filters only, never on its neighbours in the batch.
    """

    dimension: int
    encoder: str
    fingerprint: str
    url: str
    """Where the captions are when not in a folder of their own: a pack keeps this address in place of a copy."""

    def __len__(self) -> int: ...

    def centred_by(self, center: npt.ArrayLike | None) -> CaptionStore:
        """Return the same captions, searched around another centre."""
        ...

    def copy_to(self, folder: str | Path) -> None:
        """Write all captions to ``folder`` as one store."""
        ...

    def search(
        self,
        queries: Vectors,
        k: int,
        *,
        sources: Names | None = None,
        exclude_sources: Names | None = None,
        exclude_image_ids: Excluded | None = None,
        synthetic: bool | None = None,
    ) -> SearchResult:
        """Return the ``k`` nearest of the captions that pass the filters."""
        ...

    def evidence(self, ids: Ids, similarities: Vectors) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result."""
        ...

    def vectors(self, ids: Ids) -> Vectors:
        """Return the centred unit vectors of captions."""
        ...

    def raw_vectors(self, ids: Ids) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        ...

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        ...

    def content_hash(self) -> str:
        """Return what differs between stores with other captions."""
        ...


def names(value: Names) -> list[str]:
    """Return one name or several as a list."""
    return [value] if isinstance(value, str) else list(value)


class Encoded(Protocol):
    """Anything that holds vectors of one encoder."""

    dimension: int
    encoder: str
    fingerprint: str


def require_same_encoder(one: Encoded, other: Encoded) -> None:
    """Raise ``EncoderMismatchError`` unless both hold vectors of the same encoder."""
    if (one.dimension, one.fingerprint) != (other.dimension, other.fingerprint):
        both = (
            f"{s.encoder or 'an unnamed encoder'} ({s.dimension}-d, fingerprint {s.fingerprint})" for s in (one, other)
        )
        raise EncoderMismatchError(f"captions of two encoders cannot be mixed: {' and '.join(both)}; embed them again")


def unit_rows(vectors: npt.ArrayLike, dimension: int, what: str) -> Vectors:
    """Return ``vectors`` as a fresh float32 matrix of unit rows; say which rows cannot be used."""
    rows = np.array(vectors, dtype=np.float32, order="C")
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise InputError(f"{what} must have the shape (n, {dimension}), not {rows.shape}")
    return usable_unit_rows(rows, what)


def centred(rows: Vectors, center: Vectors | None) -> Vectors:
    """Return unit rows moved by ``center`` and brought back to unit length; a row on the centre becomes zero."""
    return rows if center is None else centred_unit_rows(rows, center)


def is_same_center(one: Vectors | None, other: Vectors | None) -> bool:
    """Tell whether two stores are centred alike."""
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))
