"""Captions in parts: segments that are read where they lie on disk, and a last part that grows in memory."""

from __future__ import annotations

import mmap
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Filters, Ids, Names, names
from recap.datastore.disk import Pending, arrow_table, count_joined, map_matrix, write_vectors
from recap.datastore.table import STREAM_ROWS, CaptionTable, Mask, VectorBlocks
from recap.errors import InputError, PackError
from recap.files import atomic_write
from recap.types import Vectors, unit_rows

FULLY_VALIDATED = 1_000_000
"""Up to so many captions every offset of an Arrow file is looked at before it is used; above, that would take long."""


def _check_columns(batch: Any) -> None:
    """Raise ``TypeError`` unless the columns are of the kinds that ``arrow_table`` writes."""
    from pyarrow import types

    kinds = {"id": types.is_int64, "text": types.is_large_string, "image_id": types.is_large_string}
    kinds |= {"synthetic": types.is_boolean, "source": types.is_dictionary}
    for name, is_right in kinds.items():
        if not is_right(batch[name].type) or batch[name].null_count:
            raise TypeError(f"the column {name} is {batch[name].type}, or has gaps")


class MappedPart:
    """The captions of one segment: an Arrow file and a matrix, neither of which is read into memory."""

    def __init__(self, captions: Path, vectors: Path, rows: int, dimension: int, dtype: str) -> None:
        import pyarrow

        self.captions = captions
        """Where the file was put last; it may since have been deleted there, or another one have its name."""
        self.vectors = vectors
        self._matrix = map_matrix(vectors, "vectors", dtype, (rows, dimension))
        try:
            self._batch: Any = pyarrow.ipc.open_file(pyarrow.memory_map(str(captions))).get_batch(0)
            # offsets of strangers may point anywhere in memory
            self._batch.validate(full=rows <= FULLY_VALIDATED)
            self.ids: Ids = self._batch["id"].to_numpy()
            _check_columns(self._batch)
        except (pyarrow.ArrowException, OSError, KeyError, IndexError, ValueError, TypeError) as error:
            raise PackError(f"{captions} is not a readable Arrow file of captions: {error}") from error
        if len(self.ids) != rows:
            raise PackError(f"{captions} holds {len(self.ids)} captions; the manifest promises {rows}")

    def __len__(self) -> int:
        return len(self.ids)

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
        """Yield all unit rows in pieces, and let each leave memory again at once."""
        for start in range(0, len(self), STREAM_ROWS):
            piece = slice(start, min(start + STREAM_ROWS, len(self)))
            rows = _unit(self._matrix[piece])
            self.let_go()
            yield piece, rows

    def let_go(self) -> None:
        """Give the pages of the vectors back to the system, where it takes them."""
        mapping = getattr(self._matrix, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

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

    def lines(self, alive: Mask) -> Iterator[bytes]:
        """Yield the captions that are left, many at a time, as lines of id and text."""
        import pyarrow
        from pyarrow import compute

        space, end, nothing = (pyarrow.scalar(text, pyarrow.large_string()) for text in (" ", "\n", ""))
        for start in range(0, len(self), STREAM_ROWS):
            places = start + np.flatnonzero(alive[start : start + STREAM_ROWS])
            texts, ids = self._batch["text"].take(places), self._batch["id"].take(places).cast("large_string")
            both = compute.binary_join_element_wise(ids, texts, space)
            lines = compute.binary_join_element_wise(both, nothing, end)
            yield lines.buffers()[2].to_pybytes() if len(lines) else b""

    def copy_into(self, table: CaptionTable, blocks: VectorBlocks, alive: Mask) -> None:
        """Append the captions that are left, to the bit as they are here."""
        columns = self._batch.take(np.flatnonzero(alive)).to_pydict()
        fields = (columns[name] for name in ("text", "source", "synthetic", "image_id"))
        table.extend(self.ids[alive], blocks.append(np.array(self._matrix[alive])), *fields)

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
        self.pending: Pending | None = None
        """The folder of segments that belong to no committed store yet."""

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

    def recall_small(self) -> None:
        """Take small segments at the end back into memory if they are to be written again with what is there."""
        joined = count_joined([len(segment) for segment in self.segments], len(self.table))
        if not joined:
            return
        table, blocks, new = CaptionTable(), VectorBlocks(self.dimension, self.dtype), self.table
        for segment in self.segments[-joined:]:
            segment.copy_into(table, blocks, self.alive(segment))
        slots = np.concatenate([blocks.append(rows) for rows in self.blocks.stream_stored(new.slots)])
        table.extend(new.ids, slots, new.texts, new.sources.values(), new.synthetic, new.image_ids.values())
        table.next_id = new.next_id
        self.gone = self.gone[self.gone < self.segments[-joined].ids[0]]
        self.table, self.blocks = table, blocks
        del self.segments[-joined:]

    def spill(self, folder: Path) -> None:
        """Turn the captions in memory into a segment in ``folder``."""
        import pyarrow

        if not len(self.table):
            return
        stem = f"segment-{secrets.token_hex(4)}"
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

    def let_go(self) -> None:
        """Give back the memory that vectors take which have been looked at; they are still where they lie."""
        for segment in self.segments:
            segment.let_go()

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
    return np.array(rows) if rows.dtype == np.float32 else unit_rows(rows)
