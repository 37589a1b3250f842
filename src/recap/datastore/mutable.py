"""What every store of captions that can be changed has in common, wherever it keeps them."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recap.datastore import ranking as duplicates
from recap.datastore.base import (
    CaptionRow,
    Excluded,
    Filters,
    Ids,
    Names,
    SearchResult,
    centred,
    is_same_center,
    require_same_encoder,
    unit_rows,
)
from recap.datastore.ranking import dot_products
from recap.errors import InputError
from recap.types import Evidence, Vectors

BATCH = 8192
"""So many captions are read and written at a time when a store is copied or walked through."""


class MutableStore(ABC):
    """Captions of one text encoder, each with its vector, source, image, and whether a machine wrote it.

    ``add`` takes the encoder's unit rows as they are. What is searched are these rows moved by ``center`` (the mean
    text vector of the alignment) and at unit length again, so that a dot product with an aligned image is the aligned
    cosine. Several threads may search at once; while one of them adds or removes, no other may use the store.
    """

    dimension: int
    encoder: str
    fingerprint: str
    url: str = ""
    """Where the captions are when not in a folder of their own: a pack keeps this address in place of a copy."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""

    @property
    @abstractmethod
    def next_id(self) -> int:
        """The id that the next caption will have, unless told another."""

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
    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""

    @abstractmethod
    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that fit all that is given; ``matching`` is searched for in the text."""

    @abstractmethod
    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id; an unknown id raises ``InputError``."""

    @abstractmethod
    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""

    @abstractmethod
    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""

    @abstractmethod
    def copy_to(self, folder: str | Path) -> None:
        """Write the whole store to ``folder``, and stay where it is."""

    @contextmanager
    def held_at(self, folder: str | Path) -> Iterator[None]:
        """Keep other processes from writing to ``folder``, if it is the store's home, while the block runs.

        If one of them has done so before, unknown to this store, ``PackError`` is raised.
        """
        yield

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Let the block put a copy of this store in the place of ``folder``, which becomes its home if it was.

        Meanwhile the folder is held; see ``held_at``.
        """
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
        """Return what there is to know about how the captions are kept and searched, by name."""

    @abstractmethod
    def _insert(
        self,
        ids: Ids,
        texts: Sequence[str],
        rows: Vectors,
        sources: Sequence[str],
        synthetic: Sequence[bool],
        image_ids: Sequence[str],
    ) -> None:
        """Append captions whose unit rows and columns have been checked, under ascending ids from ``next_id`` on."""

    @abstractmethod
    def _skip_to(self, next_id: int) -> None:
        """Give no id below ``next_id`` any more."""

    @abstractmethod
    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        """Return the nearest of the captions that pass ``filters``, without those of the excluded images."""

    def __iter__(self) -> Iterator[CaptionRow]:
        return self.walk(self.ids)

    def walk(self, ids: Ids) -> Iterator[CaptionRow]:
        """Yield captions by id without having all of them in memory at once."""
        for start in range(0, len(ids), BATCH):
            yield from self.rows(ids[start : start + BATCH])

    def content_hash(self) -> str:
        """Return a hash of ids and texts: the same for the same captions, wherever and in whatever files they are."""
        content = hashlib.sha256()
        for lines in self._lines():
            content.update(lines)
        return content.hexdigest()

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
        self._insert(ids, texts, rows, sources, flags, images)
        return ids

    def remove_where(
        self, *, source: Names | None = None, synthetic: bool | None = None, image_ids: Names | None = None
    ) -> int:
        """Remove the captions that fit all that is given, and return how many."""
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

    def take_over(self, other: MutableStore) -> None:
        """Fill this store, which must be empty, with the captions of ``other`` under the ids they have there."""
        require_same_encoder(self, other)
        if len(self):
            raise InputError(f"only an empty store can take over another; this one has {len(self)} captions")
        ids = other.ids
        self._insert_all(ids, other, ids)
        self._skip_to(other.next_id)

    def _insert_all(self, ours: Ids, other: MutableStore, theirs: Ids) -> None:
        for start in range(0, len(theirs), BATCH):
            piece = slice(start, start + BATCH)
            rows = other.rows(theirs[piece])
            self._insert(
                ours[piece],
                [row.text for row in rows],
                other.raw_vectors(theirs[piece]),
                [row.source for row in rows],
                [row.synthetic for row in rows],
                [row.image_id for row in rows],
            )

    def deduplicate(self, cosine: float | None = None) -> int:
        """Keep the first of captions that differ only in case, spaces or the full stop; return how many went.

        With ``cosine`` also the first of those whose vectors, as the encoder made them, are at least so similar. In
        stores of more than 50,000 captions a caption is compared with its nearest neighbours only.
        """
        if cosine is not None:
            duplicates.check_threshold(cosine)
        gone = self.remove(self.ids[duplicates.same_words(row.text for row in self)])
        if cosine is None:
            return gone
        ids = self.ids
        pieces = self._raw_pieces(ids)
        if len(ids) <= duplicates.EXACT_ROWS:
            return gone + self.remove(ids[duplicates.alike(pieces, cosine)])
        return gone + self.remove(ids[duplicates.alike_among_neighbours(ids, pieces, self._raw_search(), cosine)])

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
        asked = unit_rows(queries, self.dimension, "queries")
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        if exclude_image_ids is not None and (
            isinstance(exclude_image_ids, str) or len(exclude_image_ids) != len(asked)
        ):
            raise InputError(f"exclude_image_ids needs one entry for each of the {len(asked)} queries")
        return self._search(asked, k, Filters.of(sources, exclude_sources, synthetic), exclude_image_ids)

    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""
        pairs = list(zip(np.asarray(ids).tolist(), np.asarray(similarities).tolist(), strict=True))
        rows = [(row, similarity) for row, similarity in pairs if row >= 0]
        captions = self.rows([row for row, _ in rows])
        return tuple(
            Evidence(caption.text, similarity, caption.source, caption.synthetic, caption.image_id)
            for caption, (_, similarity) in zip(captions, rows, strict=True)
        )

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""
        return centred(self.raw_vectors(ids), self.center)

    def ids_of_images(self, image_ids: Iterable[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        return [self.find(image_ids=name) for name in image_ids]

    def _lines(self) -> Iterator[bytes]:
        return (row.line for row in self)

    def _raw_pieces(self, ids: Ids) -> Iterator[tuple[slice, Vectors]]:
        for start in range(0, len(ids), BATCH):
            piece = slice(start, start + BATCH)
            yield piece, self.raw_vectors(ids[piece])

    def _raw_search(self) -> Callable[[Vectors, int], SearchResult]:
        """Return a search for captions near to rows of the text encoder, by the cosines of the rows as they are."""

        def search(rows: Vectors, k: int) -> SearchResult:
            # captions that are nearly equal are neighbours around any centre
            near = self._search(centred(rows, self.center), k, Filters(), None)
            return SearchResult(near.ids, dot_products(rows, near.ids, self.raw_vectors))

        return search

    def _checked(self, center: npt.ArrayLike | None) -> Vectors | None:
        if center is None:
            return None
        center = np.array(center, dtype=np.float32)
        if center.shape != (self.dimension,) or not np.isfinite(center).all():
            raise InputError(f"the centre must be {self.dimension} finite numbers, not of shape {center.shape}")
        return center

    def _is_centred_by(self, center: Vectors | None) -> bool:
        return is_same_center(center, self.center)
