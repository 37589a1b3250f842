"""The columns of a store: what is known about each caption, and where its vector lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Ids, Names, names
from recap.errors import InputError

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]


class Labels:
    """A column of strings that repeat: each kept once, and a number a row."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: Codes = np.empty(0, dtype=np.int32)
        self._code_of: dict[str, int] = {}

    def extend(self, values: Iterable[str]) -> None:
        """Append one value a row."""
        self.codes = np.concatenate([self.codes, np.fromiter(map(self._code, values), dtype=np.int32)])

    def find(self, values: Iterable[str]) -> Codes:
        """Return the numbers of those values that occur."""
        known = (self._code_of.get(value, -1) for value in values)
        return np.array([code for code in known if code >= 0], dtype=np.int32)

    def is_any_of(self, values: Names) -> Mask:
        """Return which rows have one of ``values``."""
        chosen = np.zeros(len(self.names) + 1, dtype=bool)
        chosen[self.find(names(values))] = True
        return chosen[self.codes]

    def values(self) -> list[str]:
        """Return the value of each row."""
        return [self.names[code] for code in self.codes.tolist()]

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of rows of each name."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    def _code(self, value: str) -> int:
        code = self._code_of.setdefault(value, len(self.names))
        if code == len(self.names):
            self.names.append(value)
        return code


class CaptionTable:
    """Captions in the order of their ids."""

    def __init__(self) -> None:
        self.ids: Ids = np.empty(0, dtype=np.int64)
        self.slots: Ids = np.empty(0, dtype=np.int64)
        """The row of each caption's vector among all vectors ever appended."""
        self.texts: list[str] = []
        self.sources = Labels()
        self.image_ids = Labels()
        self.synthetic: Mask = np.empty(0, dtype=bool)
        self.next_id = 0
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[CaptionRow]:
        return map(self.row, range(len(self)))

    def row(self, position: int) -> CaptionRow:
        """Return one caption."""
        return CaptionRow(
            id=int(self.ids[position]),
            text=self.texts[position],
            source=self.sources.names[self.sources.codes[position]],
            synthetic=bool(self.synthetic[position]),
            image_id=self.image_ids.names[self.image_ids.codes[position]],
        )

    def extend(
        self,
        ids: Ids,
        slots: Ids,
        texts: Sequence[str],
        sources: Iterable[str],
        synthetic: npt.ArrayLike,
        image_ids: Iterable[str],
    ) -> None:
        """Append captions; their ids start at ``next_id`` or above."""
        self.version += 1
        self.next_id = int(ids[-1]) + 1 if len(ids) else self.next_id
        self.ids = np.concatenate([self.ids, ids])
        self.slots = np.concatenate([self.slots, slots])
        self.texts.extend(texts)
        self.sources.extend(sources)
        self.synthetic = np.concatenate([self.synthetic, np.asarray(synthetic, dtype=bool)])
        self.image_ids.extend(image_ids)

    def keep(self, mask: Mask) -> None:
        """Drop the rows outside ``mask``."""
        self.version += 1
        self.ids, self.slots, self.synthetic = self.ids[mask], self.slots[mask], self.synthetic[mask]
        self.texts = list(compress(self.texts, mask))
        for column in (self.sources, self.image_ids):
            column.codes = column.codes[mask]

    def positions(self, ids: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return where the captions with these ids stand; an id that is not there raises ``InputError``."""
        wanted = np.asarray(ids, dtype=np.int64)
        where = np.searchsorted(self.ids, wanted)
        inside = where < len(self)
        found = inside & (self.ids[np.where(inside, where, 0)] == wanted) if len(self) else np.zeros_like(inside)
        if not found.all():
            raise InputError(f"no caption has the id {wanted[~found].flat[0]}")
        return where

    def mask(
        self,
        sources: Names | None,
        exclude_sources: Names | None,
        synthetic: bool | None,
        image_ids: Names | None = None,
    ) -> Mask | None:
        """Return which rows pass all filters; None when there are no filters."""
        parts = []
        if sources is not None:
            parts.append(self.sources.is_any_of(sources))
        if exclude_sources is not None:
            parts.append(~self.sources.is_any_of(exclude_sources))
        if synthetic is not None:
            parts.append(self.synthetic == synthetic)
        if image_ids is not None:
            parts.append(self.image_ids.is_any_of(image_ids))
        return np.logical_and.reduce(parts) if parts else None
