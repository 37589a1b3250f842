"""Captions in parts: segments that are read where they lie on disk, and a last part that grows in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Filters, Ids, Names, names
from recap.datastore.blocks import STREAM_ROWS, VectorBlocks
from recap.datastore.disk import arrow_table, write_vectors
from recap.datastore.matrix import map_matrix
from recap.datastore.table import CaptionTable, Mask
from recap.errors import InputError, PackError
from recap.files import atomic_write
from recap.types import Vectors


class MappedPart:
    """The captions of one segment: an Arrow file and a matrix, neither of which is read into memory."""

    def __init__(self, captions: Path, vectors: Path, rows: int, dimension: int, dtype: str) -> None:
        import pyarrow

        self.captions = captions
        self.vectors = vectors
        self._matrix = map_matrix(vectors, "vectors", dtype, (rows, dimension))
        try:
            self._batch: Any = pyarrow.ipc.open_file(pyarrow.memory_map(str(captions))).get_batch(0)
            self.ids: Ids = self._batch["id"].to_numpy()
        except (pyarrow.ArrowException, OSError, KeyError, IndexError) as error:
            raise PackError(f"{captions} is not a readable Arrow file of captions: {error}") from error
        if len(self.ids) != rows:
            raise PackError(f"{captions} holds {len(self.ids)} captions; the manifest promises {rows}")

    def __len__(self) -> int:
        return len(self.ids)

    def moved(self, captions: Path, vectors: Path) -> None:
        """Take note that the files have other names now."""
        self.captions, self.vectors = captions, vectors

    def rows(self, positions: npt.NDArray[np.intp]) -> list[CaptionRow]:
        """Return captions by place."""
        columns = self._batch.take(np.asarray(positions, dtype=np.int64)).to_pydict()
        fields = zip(*(columns[name] for name in ("id", "text", "source", "synthetic", "image_id")), strict=True)
        return [CaptionRow(*row) for row in fields]

    def image_ids(self, positions: npt.NDArray[np.intp]) -> list[str]:
        """Return the images that captions belong to."""
        found: list[str] = self._batch["image_id"].take(np.asarray(positions, dtype=np.int64)).to_pylist()
        return found

    def take(self, positions: npt.NDArray[np.intp]) -> Vectors:
        """Return unit rows by place."""
        return _unit(self._matrix[positions])

    def stream(self) -> Iterator[tuple[slice, Vectors]]:
        """Yield all unit rows in pieces. They are read, not mapped, so that they leave memory again at once."""
        count, dimension = self._matrix.shape
        with self.vectors.open("rb") as file:
            file.seek(self.vectors.stat().st_size - count * dimension * self._matrix.dtype.itemsize)
            for start in range(0, count, STREAM_ROWS):
                rows = min(STREAM_ROWS, count - start)
                flat = np.fromfile(file, dtype=self._matrix.dtype, count=rows * dimension)
                yield slice(start, start + rows), _unit(flat.reshape(rows, dimension))

    def mask(self, filters: Filters, image_ids: Names | None = None) -> Mask | None:
        """Return which captions pass; None when there is nothing to pass."""
        parts = []
        if filters.sources is not None:
            parts.append(self._of_sources(filters.sources))
        if filters.exclude_sources is not None:
            parts.append(~self._of_sources(filters.exclude_sources))
        if filters.synthetic is not None:
            parts.append(self._batch["synthetic"].to_numpy(zero_copy_only=False) == filters.synthetic)
        if image_ids is not None:
            import pyarrow
            from pyarrow import compute

            wanted = pyarrow.array(names(image_ids), pyarrow.large_string())
            parts.append(compute.is_in(self._batch["image_id"], wanted).to_numpy(zero_copy_only=False))
        return np.logical_and.reduce(parts) if parts else None

    def matching(self, pattern: re.Pattern[str], mask: Mask) -> Mask:
        """Return where ``mask`` is true and the pattern occurs in the text."""
        found = mask.copy()
        for start in range(0, len(self), STREAM_ROWS):
            places = start + np.flatnonzero(mask[start : start + STREAM_ROWS])
            texts = self._batch["text"].take(places).to_pylist()
            found[places] = [pattern.search(text) is not None for text in texts]
        return found

    def source_counts(self, alive: Mask | None) -> dict[str, int]:
        """Return how many of the captions that are left each source has."""
        column = self._batch["source"]
        codes = column.indices.to_numpy()
        counts = np.bincount(codes if alive is None else codes[alive], minlength=len(column.dictionary))
        return dict(zip(column.dictionary.to_pylist(), counts.tolist(), strict=True))

    def _of_sources(self, wanted: frozenset[str]) -> Mask:
        column = self._batch["source"]
        chosen = np.array([name in wanted for name in column.dictionary.to_pylist()], dtype=bool)
        mask: Mask = chosen[column.indices.to_numpy()]
        return mask


class Parts:
    """All captions of a store on disk, in the order of their ids; what is removed stays in its segment, marked."""

    def __init__(self, dimension: int, dtype: str) -> None:
        self.dimension = dimension
        self.dtype = dtype
        self.segments: list[MappedPart] = []
        self.gone: Ids = np.empty(0, dtype=np.int64)
        """Which captions of the segments are no longer there, ascending."""
        self.table = CaptionTable()
        """The captions that are in no segment yet."""
        self.blocks = VectorBlocks(dimension, dtype)
        self.version = 0
        """Grows with every change of which captions there are."""
        self.pending: Path | None = None
        """Where segments lie that belong to no committed store yet."""

    def __len__(self) -> int:
        return sum(map(len, self.segments)) - len(self.gone) + len(self.table)

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        parts = [segment.ids[self.alive(segment)] for segment in self.segments]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts, self.table.ids])

    def alive(self, segment: MappedPart) -> Mask:
        """Return which captions of a segment are still there."""
        alive = np.ones(len(segment), dtype=bool)
        first, last = np.searchsorted(self.gone, [segment.ids[0], segment.ids[-1] + 1])
        alive[np.searchsorted(segment.ids, self.gone[first:last])] = False
        return alive

    @property
    def bytes_in_memory(self) -> int:
        """About how much the vectors take that are in no segment yet."""
        return len(self.blocks) * self.dimension * self.blocks.dtype.itemsize

    def add(
        self,
        ids: Ids,
        texts: Sequence[str],
        rows: Vectors,
        sources: Sequence[str],
        synthetic: Sequence[bool],
        image_ids: Sequence[str],
    ) -> None:
        """Append captions; their ids are ascending and above all before."""
        self.table.extend(ids, self.blocks.append(rows), texts, sources, synthetic, image_ids)
        self.version += 1

    def remove(self, ids: Ids) -> None:
        """Drop captions (ascending, all there)."""
        first = len(ids) if not len(self.table) else int(np.searchsorted(ids, self.table.ids[0]))
        self.gone = np.union1d(self.gone, ids[:first])
        self.table.keep(~np.isin(self.table.ids, ids[first:]))
        self.version += 1

    def spill(self, folder: Path) -> None:
        """Turn the captions in memory into a segment in ``folder``."""
        import pyarrow

        if not len(self.table):
            return
        stem = f"segment-{len(self.segments):05d}"
        captions, vectors = folder / f"{stem}.arrow", folder / f"{stem}.safetensors"
        columns = arrow_table(self.table, 0, coded=True).combine_chunks()
        ipc: Any = pyarrow.ipc
        with atomic_write(captions) as file, ipc.new_file(file, columns.schema) as writer:
            writer.write_table(columns)
        write_vectors(vectors, self.blocks, self.table.slots)
        self.segments.append(MappedPart(captions, vectors, len(self.table), self.dimension, self.dtype))
        next_id = self.table.next_id
        self.table, self.blocks = CaptionTable(), VectorBlocks(self.dimension, self.dtype)
        self.table.next_id = next_id

    def located(self, ids: npt.ArrayLike) -> Iterator[tuple[npt.NDArray[np.intp], MappedPart | None, Any]]:
        """Yield which of ``ids`` are in one part, the part (None: the one in memory), and their places in it.

        An id that is not there raises ``InputError``.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        firsts = np.array([segment.ids[0] for segment in self.segments], dtype=np.int64)
        owners = np.searchsorted(firsts, wanted, side="right") - 1
        if len(self.table):
            owners[wanted >= self.table.ids[0]] = len(self.segments)
        for owner in np.unique(owners):
            here = np.flatnonzero(owners == owner)
            if owner < 0:
                raise InputError(f"no caption has the id {wanted[here[0]]}")
            if owner == len(self.segments):
                yield here, None, self.table.positions(wanted[here])
            else:
                yield here, self.segments[owner], self._positions(int(owner), wanted[here])

    def check(self, ids: Ids) -> None:
        """Raise ``InputError`` unless there are captions with all of these ids."""
        for _ in self.located(ids):
            pass

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        found: dict[int, CaptionRow] = {}
        for here, part, places in self.located(ids):
            rows = [self.table.row(place) for place in places] if part is None else part.rows(places)
            found.update(zip(here.tolist(), rows, strict=True))
        return [found[number] for number in range(len(found))]

    def image_ids(self, ids: Ids) -> npt.NDArray[np.object_]:
        """Return the images that captions belong to."""
        images = np.empty(len(ids), dtype=object)
        column = self.table.image_ids
        for here, part, places in self.located(ids):
            images[here] = (
                [column.names[code] for code in column.codes[places]] if part is None else part.image_ids(places)
            )
        return images

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return unit rows by id."""
        wanted = np.asarray(ids, dtype=np.int64)
        rows = np.empty((len(wanted), self.dimension), dtype=np.float32)
        for here, part, places in self.located(wanted):
            rows[here] = self.blocks.take(self.table.slots[places]) if part is None else part.take(places)
        return rows

    def stream(self, first_id: int = 0) -> Iterator[tuple[Ids, Vectors]]:
        """Yield ids and unit rows of all captions from ``first_id`` on, in pieces."""
        for segment in self.segments:
            if segment.ids[-1] < first_id:
                continue
            alive = self.alive(segment) & (segment.ids >= first_id)
            for piece, rows in segment.stream():
                kept = alive[piece]
                if kept.any():
                    yield segment.ids[piece][kept], rows[kept]
        for piece, rows in self.blocks.stream(self.table.slots):
            kept = self.table.ids[piece] >= first_id
            yield self.table.ids[piece][kept], rows[kept]

    def _positions(self, number: int, wanted: Ids) -> npt.NDArray[np.intp]:
        known = self.segments[number].ids
        places = np.searchsorted(known, wanted)
        inside = places < len(known)
        there = inside & (known[np.where(inside, places, 0)] == wanted)
        if len(self.gone):
            near = np.searchsorted(self.gone, wanted)
            there &= self.gone[np.minimum(near, len(self.gone) - 1)] != wanted
        if not there.all():
            raise InputError(f"no caption has the id {wanted[~there].flat[0]}")
        return places


def _unit(rows: npt.NDArray[Any]) -> Vectors:
    """Return stored rows as float32 of unit length."""
    unit = np.array(rows, dtype=np.float32)
    if rows.dtype != np.float32:
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return unit
