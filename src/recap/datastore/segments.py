"""Captions in segments: each an Arrow batch and a matrix of vectors, in memory or mapped from files."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Columns, Filters, Ids, Mask, Names, names
from recap.datastore.manifest import check_size, column_numbers, count_joined, map_batch, map_matrix, read_table
from recap.errors import InputError, PackError
from recap.types import Vectors, unit_rows

COLUMNS = {"id": "int", "text": "text", "source": "text", "synthetic": "bool", "image_id": "text"}
"""The columns of a segment and their kinds."""

PIECE = 16_384
"""Rows that are read or written at a time."""

SMALL_BLOCK = 4096
"""As ``SMALL_SEGMENT`` for a segment in memory, so that single additions do not pile up."""

FULLY_VALIDATED = 1_000_000
"""Up to so many captions every id and letter of an Arrow file is checked before it is used."""


class Segment:
    """Captions in the order of their ids, which do not change any more; each part is in memory or mapped."""

    def __init__(self, batch: Any, matrix: npt.NDArray[Any], files: tuple[Path, Path] | None = None) -> None:
        self.batch = batch
        self.matrix = matrix
        self.ids: Ids = column_numbers(batch["id"])
        self.files = files
        """Where captions and vectors were put last; they may since have been deleted there."""

    @classmethod
    def open(cls, files: tuple[Path, Path], rows: int, dimension: int, dtype: str) -> Segment:
        """Map vectors, and read captions, or map those in an Arrow file too."""
        # first the vectors, which are only mapped: their file shows how many rows there can be
        matrix = map_matrix(files[1], "vectors", dtype, (rows, dimension))
        segment = cls(_read_captions(files[0], rows), matrix, files)
        if len(segment) != rows or not rows:
            raise PackError(f"{files[0]} holds {len(segment)} captions; the manifest promises {rows}")
        return segment

    def __len__(self) -> int:
        return len(self.ids)

    def check_ids(self, least: int, end: int) -> None:
        """Raise unless ids ascend from ``least`` on and stay below ``end``; of many on disk the first and the last."""
        many = self.files is not None and self.files[0].suffix == ".arrow" and len(self) > FULLY_VALIDATED
        if self.ids[0] < least or self.ids[-1] >= end or (not many and (np.diff(self.ids) <= 0).any()):
            raise PackError(f"{self.files and self.files[0]} is damaged: its ids do not ascend, or are not expected")

    def stream(self) -> Iterator[tuple[slice, Vectors]]:
        """Yield all unit rows in pieces, and let each leave memory again at once."""
        for start in range(0, len(self), PIECE):
            piece = slice(start, min(start + PIECE, len(self)))
            rows = _unit(self.matrix[piece], copy=True)
            self.release()
            yield piece, rows

    def release(self) -> None:
        """Give the pages of mapped vectors back to the system, where it takes them."""
        mapping = getattr(self.matrix, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def mask(self, filters: Filters, image_ids: Names | None = None) -> Mask | None:
        """Return which captions pass; None when there are no filters."""
        parts: list[Mask] = []
        if filters.sources is not None:
            parts.append(self.index_in("source", filters.sources) >= 0)
        if filters.exclude_sources is not None:
            parts.append(self.index_in("source", filters.exclude_sources) < 0)
        if filters.synthetic is not None:
            parts.append(self.batch["synthetic"].to_numpy(zero_copy_only=False) == filters.synthetic)
        if image_ids is not None:
            parts.append(self.index_in("image_id", names(image_ids)) >= 0)
        return np.logical_and.reduce(parts) if parts else None

    def index_in(self, column: str, values: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return for each caption which of ``values`` it has in a column; -1: none of them."""
        import pyarrow
        from pyarrow import compute

        # as bytes, since a name that is no Unicode may be looked for, too
        binary, cells = pyarrow.large_binary(), self.batch[column]
        known = pyarrow.array([value.encode(errors="surrogatepass") for value in values], binary)
        words = cells.dictionary if pyarrow.types.is_dictionary(cells.type) else cells
        found = compute.index_in(words.cast(binary), value_set=known).fill_null(-1).to_numpy()
        numbers: npt.NDArray[np.int32] = found if words is cells else found[column_numbers(cells.indices)]
        return numbers

    def matching(self, pattern: re.Pattern[str], mask: Mask) -> Mask:
        """Return where ``mask`` is true and the pattern occurs in the text."""
        found = mask.copy()
        for start in range(0, len(self), PIECE):
            places = start + np.flatnonzero(mask[start : start + PIECE])
            texts = self.batch["text"].take(places).to_pylist()
            found[places] = [pattern.search(text) is not None for text in texts]
        return found

    def lines(self, alive: Mask) -> Iterator[bytes]:
        """Yield the captions that are left, many at a time, as lines of id and text."""
        import pyarrow
        from pyarrow import compute

        space, end, nothing = (pyarrow.scalar(text, pyarrow.large_string()) for text in (" ", "\n", ""))
        for start in range(0, len(self), PIECE):
            places = start + np.flatnonzero(alive[start : start + PIECE])
            texts, ids = self.batch["text"].take(places), self.batch["id"].take(places).cast("large_string")
            lines = compute.binary_join_element_wise(compute.binary_join_element_wise(ids, texts, space), nothing, end)
            yield lines.buffers()[2].to_pybytes() if len(lines) else b""


Part: TypeAlias = tuple[Segment, Mask]
"""A segment, and which of its captions are left."""


class Segments:
    """All captions of a store in the order of their ids: first segments in files, then those in memory only."""

    def __init__(self, dimension: int, dtype: str) -> None:
        self.dimension = dimension
        self.dtype = dtype
        self.next_id = 0
        self.version = 0
        """Grows with every change of which captions there are."""
        self.all: list[Segment] = []
        self.gone: Ids = np.empty(0, dtype=np.int64)
        """Which captions of the segments are no longer there, ascending."""
        self._firsts: Ids = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.all)) - len(self.gone)

    @property
    def in_files(self) -> int:
        """How many segments lie in files."""
        return sum(segment.files is not None for segment in self.all)

    def alive(self, segment: Segment) -> Mask:
        """Return which captions of a segment are still there."""
        alive = np.ones(len(segment), dtype=bool)
        first, last = np.searchsorted(self.gone, [segment.ids[0], segment.ids[-1] + 1])
        alive[np.searchsorted(segment.ids, self.gone[first:last])] = False
        return alive

    def count_from(self, first_id: int) -> int:
        """Return how many captions there are from an id on, with those that are gone."""
        return sum(len(segment) - int(np.searchsorted(segment.ids, first_id)) for segment in self.all)

    def add(self, ids: Ids, rows: Vectors, columns: Columns) -> None:
        """Append captions; their ids are ascending and above all before."""
        if not len(ids):
            return
        new = Segment(encode_sources(_new_table(ids, columns)), rows.astype(self.dtype, copy=False))
        joined = count_joined(list(map(len, self.all[self.in_files :])), len(new), SMALL_BLOCK)
        start = len(self.all) - joined
        self.put(start, [join([*self.living(start), (new, np.ones(len(new), dtype=bool))]) if joined else new])
        self.next_id = int(ids[-1]) + 1
        self.version += 1

    def remove(self, ids: Ids) -> None:
        """Drop captions (ascending); an id that is not there raises ``InputError``."""
        for _ in self._located(ids):
            pass
        self.gone = np.union1d(self.gone, ids)
        self.version += 1

    def living(self, start: int) -> list[Part]:
        """Return the segments from ``start`` on without those of which nothing is left."""
        parts = [(segment, self.alive(segment)) for segment in self.all[start:]]
        return [(segment, alive) for segment, alive in parts if alive.any()]

    def groups(self, start: int, limit: int | None) -> list[list[Part]]:
        """Return what is left from ``start`` on in groups of at most ``limit`` bytes of vectors, if they can be."""
        groups: list[list[Part]] = []
        size = 0
        for segment, alive in self.living(start):
            size += segment.matrix.nbytes
            if not groups or (limit is not None and size > limit):
                groups.append([])
                size = segment.matrix.nbytes
            groups[-1].append((segment, alive))
        return groups

    def put(self, start: int, new: Sequence[Segment]) -> None:
        """Let ``new``, which hold all captions that are left of them, replace the segments from ``start`` on."""
        self.gone = self.gone_before(start)
        self.all = [*self.all[:start], *new]
        self._firsts = np.array([segment.ids[0] for segment in self.all], dtype=np.int64)

    def gone_before(self, start: int) -> Ids:
        """Return which captions of the segments before ``start`` are gone."""
        return self.gone if start >= len(self.all) else self.gone[self.gone < self.all[start].ids[0]]

    def mark_gone(self, ids: Ids) -> None:
        """Mark captions as removed; ids that no segment has are passed over."""
        there = [np.intersect1d(segment.ids, ids) if len(ids) else ids for segment in self.all]
        self.gone = np.concatenate([np.empty(0, dtype=np.int64), *there])

    def find(self, filters: Filters, image_ids: Names | None = None, matching: re.Pattern[str] | None = None) -> Ids:
        """Return the ids of the captions that pass."""
        found = [np.empty(0, dtype=np.int64)]
        for segment in self.all:
            mask, alive = segment.mask(filters, image_ids), self.alive(segment)
            alive = alive if mask is None else alive & mask
            found.append(segment.ids[alive if matching is None else segment.matching(matching, alive)])
        return np.concatenate(found)

    def ids_of_images(self, image_ids: Sequence[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        images = list(dict.fromkeys(image_ids))
        found: dict[str, list[int]] = {name: [] for name in images}
        for segment in self.all:
            numbers = segment.index_in("image_id", images)
            here = (numbers >= 0) & self.alive(segment)
            for number, id in zip(numbers[here].tolist(), segment.ids[here].tolist(), strict=True):
                found[images[number]].append(id)
        return [np.array(found[name], dtype=np.int64) for name in image_ids]

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        total: Counter[str] = Counter()
        for segment in self.all:
            column = segment.batch["source"]
            counts = np.bincount(column_numbers(column.indices)[self.alive(segment)], minlength=len(column.dictionary))
            total.update(dict(zip(column.dictionary.to_pylist(), counts.tolist(), strict=True)))
        return {name: count for name, count in total.items() if count}

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        found: dict[int, CaptionRow] = {}
        for here, segment, places in self._located(ids):
            rows = zip(*(_cells(segment.batch[name], places) for name in COLUMNS), strict=True)
            found.update((place, CaptionRow(*row)) for place, row in zip(here.tolist(), rows, strict=True))
        return [found[number] for number in range(len(found))]

    def image_ids(self, ids: Ids) -> npt.NDArray[np.object_]:
        """Return the images that captions belong to."""
        images = np.empty(len(ids), dtype=object)
        for here, segment, places in self._located(ids):
            images[here] = _cells(segment.batch["image_id"], places)
        return images

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return unit rows by id."""
        wanted = np.asarray(ids, dtype=np.int64)
        if len(self.all) == 1:
            return _unit(self.all[0].matrix[self._positions(self.all[0], wanted)])
        rows = np.empty((len(wanted), self.dimension), dtype=np.float32)
        for here, segment, places in self._located(wanted):
            rows[here] = _unit(segment.matrix[places])
        return rows

    def stream(self, first_id: int = 0) -> Iterator[tuple[Ids, Vectors]]:
        """Yield ids and unit rows of all captions from ``first_id`` on, in pieces."""
        for segment in self.all:
            if segment.ids[-1] < first_id:
                continue
            alive = self.alive(segment) & (segment.ids >= first_id)
            for piece, rows in segment.stream():
                kept = alive[piece]
                if kept.all():
                    yield segment.ids[piece], rows
                elif kept.any():
                    yield segment.ids[piece][kept], rows[kept]

    def stored(self, size: int) -> Iterator[tuple[Ids, npt.NDArray[Any]]]:
        """Yield ids and rows of all captions as they are kept, ``size`` at a time or less."""
        for segment in self.all:
            alive = self.alive(segment)
            for start in range(0, len(segment), size):
                piece = slice(start, start + size)
                kept = slice(None) if alive[piece].all() else alive[piece]
                yield segment.ids[piece][kept], segment.matrix[piece][kept]
            segment.release()

    def sample(self, size: int, seed: int) -> Vectors:
        """Return unit rows of some captions, gathered while all are read once."""
        sample = np.empty((size, self.dimension), dtype=np.float32)
        chosen = np.zeros(len(self), dtype=bool)
        chosen[np.random.default_rng(seed).choice(len(self), size, replace=False)] = True
        seen = taken = 0
        for ids, rows in self.stream() if size else ():
            picked = rows[chosen[seen : seen + len(ids)]]
            sample[taken : taken + len(picked)] = picked
            seen, taken = seen + len(ids), taken + len(picked)
        return sample

    def _located(self, ids: npt.ArrayLike) -> Iterator[tuple[npt.NDArray[np.intp], Segment, npt.NDArray[np.intp]]]:
        """Yield which of ``ids`` are in one segment, it, and their positions there; ``InputError`` if they are not."""
        wanted = np.asarray(ids, dtype=np.int64)
        owners = np.searchsorted(self._firsts, wanted, side="right") - 1
        if (owners < 0).any():
            raise InputError(f"no caption has the id {wanted[owners < 0][0]}")
        for owner in np.unique(owners):
            here = np.flatnonzero(owners == owner)
            yield here, self.all[owner], self._positions(self.all[owner], wanted[here])

    def _positions(self, segment: Segment, wanted: Ids) -> npt.NDArray[np.intp]:
        places = np.searchsorted(segment.ids, wanted)
        there = segment.ids[np.minimum(places, len(segment) - 1)] == wanted
        if len(self.gone):
            near = np.searchsorted(self.gone, wanted)
            there &= self.gone[np.minimum(near, len(self.gone) - 1)] != wanted
        if not there.all():
            raise InputError(f"no caption has the id {wanted[~there].flat[0]}")
        return places


def join(parts: Sequence[Part]) -> Segment:
    """Return what is left of several segments as one in memory."""
    matrix = np.concatenate([segment.matrix[alive] for segment, alive in parts])
    return Segment(encode_sources(joined_table(parts)), matrix)


def _schema() -> Any:
    import pyarrow

    text = pyarrow.large_string()
    kinds = (pyarrow.int64(), text, pyarrow.dictionary(pyarrow.int32(), text), pyarrow.bool_(), text)
    return pyarrow.schema(zip(COLUMNS, kinds, strict=True))


def _new_table(ids: Ids, columns: Columns) -> Any:
    import pyarrow

    text = pyarrow.large_string()
    try:
        texts, sources, images = (
            pyarrow.array(list(c), text) for c in (columns.texts, columns.sources, columns.image_ids)
        )
    except UnicodeEncodeError as error:
        raise InputError(f"captions, sources and image ids must be Unicode: {error}") from error
    synthetic = pyarrow.array(np.asarray(columns.synthetic, dtype=bool))
    return pyarrow.table([pyarrow.array(ids), texts, sources, synthetic, images], names=list(COLUMNS))


def joined_table(parts: Sequence[Part]) -> Any:
    """Return what is left of some segments as a table; sources are written out."""
    import pyarrow

    place = list(COLUMNS).index("source")
    tables = []
    for segment, alive in parts:
        table = pyarrow.table(segment.batch if alive.all() else segment.batch.filter(pyarrow.array(alive)))
        tables.append(table.set_column(place, "source", table["source"].cast(pyarrow.large_string())))
    return pyarrow.concat_tables(tables).combine_chunks()


def encode_sources(table: Any) -> Any:
    """Return a table as a batch that keeps each name of a source once, and a number a caption."""
    encoded = table.set_column(list(COLUMNS).index("source"), "source", table["source"].dictionary_encode())
    return encoded.combine_chunks().to_batches()[0]


def _cells(column: Any, places: npt.NDArray[np.intp]) -> list[Any]:
    """Return some cells of an Arrow column; for few of them ``take`` and its imports would take longer."""
    try:
        return [column[place].as_py() for place in places.tolist()]
    except UnicodeDecodeError as error:
        raise PackError("a caption is no text, so its file is damaged; recap pack verify says which") from error


def _read_captions(path: Path, rows: int) -> Any:
    """Return captions as a batch; those in an Arrow file are mapped."""
    import pyarrow

    try:
        if path.suffix == ".arrow":
            batch = map_batch(path, _schema(), texts=rows <= FULLY_VALIDATED)
            # a name that is kept once is written out for each caption when segments are joined
            names = batch["source"].dictionary
            ends = np.frombuffer(names.buffers()[1], np.int64, len(names) + 1, 8 * names.offset)
            check_size(rows * int(np.diff(ends).max()), rows, path)
        else:
            batch = encode_sources(read_table(path, COLUMNS, rows)).select(list(COLUMNS))
        if not batch.schema.equals(_schema()) or any(column.null_count for column in batch.columns):
            raise TypeError("its columns are of other kinds, or have gaps")
    except (pyarrow.ArrowException, OSError, KeyError, IndexError, ValueError, TypeError) as error:
        raise PackError(f"{path} is not a readable table of captions: {error}") from error
    return batch


def _unit(rows: npt.NDArray[Any], *, copy: bool = False) -> Vectors:
    """Return stored rows as float32 of unit length."""
    if rows.dtype == np.float32:
        return np.array(rows) if copy else np.asarray(rows)
    return unit_rows(rows)
