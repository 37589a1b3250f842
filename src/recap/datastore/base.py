"""What a store of captions promises, wherever it keeps them, and what all that can be changed have in common."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import centred_unit_rows, usable_unit_rows
from recap.datastore import ranking
from recap.errors import EncoderMismatchError, InputError
from recap.files import progress_bar
from recap.types import Evidence, Vectors

BATCH = 8192
"""Captions that are read and written at a time when a store is copied or walked through."""

Ids: TypeAlias = npt.NDArray[np.int64]
"""Numbers of captions. A caption keeps its number for life, and a number is never given twice."""

Mask: TypeAlias = npt.NDArray[np.bool_]
Names: TypeAlias = str | Collection[str]

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


class Columns(NamedTuple):
    """What is known about new captions, one value each."""

    texts: Sequence[str]
    sources: Sequence[str]
    synthetic: Sequence[bool]
    image_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which captions may be found; None filters nothing."""

    sources: frozenset[str] | None = None
    exclude_sources: frozenset[str] | None = None
    synthetic: bool | None = None

    @classmethod
    def of(cls, sources: Names | None, exclude_sources: Names | None, synthetic: bool | None) -> Filters:
        """Return filters from the arguments of a caller."""
        wanted, unwanted = (None if value is None else frozenset(names(value)) for value in (sources, exclude_sources))
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

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def centred_by(self, center: npt.ArrayLike | None) -> CaptionStore:
        """Return the same captions, searched around another centre; this store when the centre is its own."""

    @abstractmethod
    def copy_to(self, folder: str | Path) -> None:
        """Write all captions to ``folder`` as one store, and stay where it is."""

    @abstractmethod
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

    @abstractmethod
    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""

    @abstractmethod
    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""

    @abstractmethod
    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""

    @abstractmethod
    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""

    @abstractmethod
    def content_hash(self) -> str:
        """Return what differs between stores with other captions."""


class MutableStore(CaptionStore):
    """Captions of one text encoder, each with its vector, source, image, and whether a machine wrote it.

    ``add`` takes the encoder's unit rows as they are. What is searched are these rows moved by ``center`` (the mean
    text vector of the alignment) and at unit length again, so that a dot product with an aligned image is the aligned
    cosine. Several threads may search at once; while one of them changes or commits it, no other may use the store.
    """

    url = ""
    progress = False
    """Whether what takes long shows a bar."""

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self.find()

    @property
    @abstractmethod
    def next_id(self) -> int:
        """The id that the next caption will have."""

    @property
    @abstractmethod
    def center(self) -> Vectors | None:
        """The vector that is subtracted before searching."""

    @abstractmethod
    def centred_by(self, center: npt.ArrayLike | None) -> MutableStore:
        """Return the same captions, searched around another centre; this store when the centre is its own."""

    @abstractmethod
    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, or by none."""

    @abstractmethod
    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id; an unknown id raises ``InputError``."""

    @contextmanager
    def held_at(self, folder: str | Path) -> Iterator[None]:
        """Keep others from writing to ``folder`` if it is the store's home; ``PackError`` if one did so before."""
        yield

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Hold ``folder`` while the block puts a copy of this store in its place; it stays its home if it was."""
        with self.held_at(folder):
            yield

    @abstractmethod
    def commit(self) -> None:
        """Make the changes last, in the place the store was opened at."""

    @abstractmethod
    def compact(self) -> None:
        """Get rid of what removed captions have left behind."""

    @abstractmethod
    def facts(self) -> dict[str, str | int | float]:
        """Return how the captions are kept and searched, by name."""

    @abstractmethod
    def _insert(self, ids: Ids, rows: Vectors, columns: Columns) -> None:
        """Append captions that have been checked, under ascending ids from ``next_id`` on."""

    @abstractmethod
    def _remove(self, ids: Ids) -> None:
        """Remove captions by ascending ids; an unknown one raises ``InputError``."""

    @abstractmethod
    def _skip_to(self, next_id: int) -> None:
        """Give no id below ``next_id`` any more."""

    @abstractmethod
    def _find(self, filters: Filters, image_ids: Names | None, matching: re.Pattern[str] | None) -> Ids:
        """Return the ids of the captions that pass."""

    @abstractmethod
    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        """Return the nearest of the captions that pass ``filters``, without those of the excluded images."""

    def __iter__(self) -> Iterator[CaptionRow]:
        return self.walk(self.ids)

    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that pass all filters; ``matching`` is searched for in the text."""
        return self._find(Filters.of(source, None, synthetic), image_ids, matching)

    def walk(self, ids: Ids) -> Iterator[CaptionRow]:
        """Yield captions by id without having all of them in memory at once."""
        for start in range(0, len(ids), BATCH):
            yield from self.rows(ids[start : start + BATCH])

    def add(
        self,
        texts: Sequence[str],
        vectors: npt.ArrayLike,
        *,
        source: str | Sequence[str] = "",
        synthetic: bool | Sequence[bool] = False,
        image_ids: Sequence[str] | None = None,
    ) -> Ids:
        """Append captions with the text encoder's rows, and return their ids.

        ``source`` and ``synthetic`` are one value for all or one for each.
        """
        count = len(texts)
        rows = unit_rows(vectors, self.dimension, "caption vectors")
        sources = [source] * count if isinstance(source, str) else list(source)
        flags = [synthetic] * count if isinstance(synthetic, bool) else list(synthetic)
        images = [""] * count if image_ids is None else list(image_ids)
        for name, values in (("vectors", rows), ("sources", sources), ("flags", flags), ("image ids", images)):
            if len(values) != count:
                raise InputError(f"{count} captions were given with {len(values)} {name}")
        blank = [row for row, text in enumerate(texts) if not text.strip()]
        if blank:
            raise InputError(f"captions must not be blank: rows {', '.join(map(str, blank[:5]))}")
        ids = self.next_id + np.arange(count, dtype=np.int64)
        self._insert(ids, rows, Columns(texts, sources, flags, images))
        return ids

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""
        gone = np.unique(np.asarray(ids, dtype=np.int64))
        if len(gone):
            self._remove(gone)
        return len(gone)

    def remove_where(
        self, *, source: Names | None = None, synthetic: bool | None = None, image_ids: Names | None = None
    ) -> int:
        """Remove the captions that pass all filters, and return how many."""
        if source is None and synthetic is None and image_ids is None:
            raise InputError("remove_where needs at least one of source, synthetic and image_ids")
        return self.remove(self.find(source=source, synthetic=synthetic, image_ids=image_ids))

    def merge(self, other: MutableStore) -> Ids:
        """Append all captions of ``other``, and return the ids they have here."""
        require_same_encoder(self, other)
        theirs = other.ids
        ours = self.next_id + np.arange(len(theirs), dtype=np.int64)
        self._insert_all(ours, other, theirs)
        return ours

    def take_over(self, other: MutableStore, ids: Ids | None = None) -> None:
        """Append captions of ``other``, all or those of ``ids``, under the ids they have, all above those here."""
        require_same_encoder(self, other)
        ids = other.ids if ids is None else ids
        if len(self) and len(ids) and ids[0] <= self.ids[-1]:
            raise InputError(f"only an empty store can take over another; this one has {len(self)} captions")
        self._insert_all(ids, other, ids)
        self._skip_to(max(self.next_id, other.next_id))

    def _insert_all(self, ours: Ids, other: MutableStore, theirs: Ids) -> None:
        for start in progress_bar(range(0, len(theirs), BATCH), desc="captions", unit="batch", progress=self.progress):
            piece = slice(start, start + BATCH)
            fields = [(row.text, row.source, row.synthetic, row.image_id) for row in other.rows(theirs[piece])]
            self._insert(ours[piece], other.raw_vectors(theirs[piece]), Columns(*zip(*fields, strict=True)))

    def deduplicate(self, cosine: float | None = None) -> int:
        """Keep the first of captions that differ only in case, spaces or the full stop; return how many went.

        With ``cosine`` also the first of those whose vectors, as the encoder made them, are at least so similar. In
        stores of more than 50,000 captions a caption is compared with its nearest neighbours only.
        """
        if cosine is not None:
            ranking.check_threshold(cosine)
        gone = self.remove(self.ids[ranking.same_words(row.text for row in self)])
        if cosine is None:
            return gone
        ids = self.ids
        starts = progress_bar(range(0, len(ids), BATCH), desc="captions", unit="batch", progress=self.progress)
        pieces = (self.raw_vectors(ids[start : start + BATCH]) for start in starts)
        return gone + self.remove(ids[ranking.near_duplicates(ids, pieces, self._raw_search(), cosine)])

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        *,
        sources: Names | None = None,
        exclude_sources: Names | None = None,
        exclude_image_ids: Excluded | None = None,
        synthetic: bool | None = None,
    ) -> SearchResult:
        """Return the ``k`` nearest captions of each query among those that pass the filters.

        Queries are points of the centred caption space. ``exclude_image_ids`` names for each query the image (or
        several) whose captions are left out; None and the empty name leave out nothing.
        """
        rows = unit_rows(queries, self.dimension, "queries")
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        excluded = rows if exclude_image_ids is None else exclude_image_ids
        if isinstance(excluded, str) or len(excluded) != len(rows):
            raise InputError(f"exclude_image_ids needs one entry for each of the {len(rows)} queries")
        return self._search(rows, k, Filters.of(sources, exclude_sources, synthetic), exclude_image_ids)

    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""
        found = np.asarray(ids, dtype=np.int64)
        pairs = zip(self.rows(found[found >= 0]), np.asarray(similarities)[found >= 0].tolist(), strict=True)
        return tuple(Evidence(row.text, near, row.source, row.synthetic, row.image_id) for row, near in pairs)

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""
        return centred(self.raw_vectors(ids), self.center)

    def ids_of_images(self, image_ids: Iterable[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        return [self.find(image_ids=name) for name in image_ids]

    def _raw_search(self) -> Callable[[Vectors, int], SearchResult]:
        """Return a search for captions near to rows of the text encoder, by the cosines of the rows as they are."""

        def search(rows: Vectors, k: int) -> SearchResult:
            # captions that are nearly equal are neighbours around any centre
            near = self._search(centred(rows, self.center), k, Filters(), None)
            return SearchResult(near.ids, ranking.dot_products(rows, near.ids, self.raw_vectors))

        return search


def names(value: Names) -> list[str]:
    """Return one name or several as a list."""
    return [value] if isinstance(value, str) else list(value)


def require_same_encoder(one: CaptionStore, other: CaptionStore) -> None:
    """Raise ``EncoderMismatchError`` unless both hold vectors of the same encoder."""
    if (one.dimension, one.fingerprint) != (other.dimension, other.fingerprint):
        kinds = [(s.encoder or "an unnamed encoder", s.dimension, s.fingerprint) for s in (one, other)]
        both = " and ".join(f"{name} ({size}-d, fingerprint {fingerprint})" for name, size, fingerprint in kinds)
        raise EncoderMismatchError(f"captions of two encoders cannot be mixed: {both}; embed them again")


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
    return one is other if one is None or other is None else bool(np.array_equal(one, other))
