"""Captions with their vectors, in memory and on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from recap.datastore import disk, duplicates
from recap.datastore.base import CaptionRow, Excluded, Ids, Names, SearchResult, require_same_encoder, unit_rows
from recap.datastore.blocks import VectorBlocks
from recap.datastore.index import IndexArguments, index_arguments
from recap.datastore.searcher import Searcher
from recap.datastore.table import CaptionTable, Mask
from recap.errors import InputError, PackError
from recap.types import Evidence, Vectors


@dataclass(frozen=True, slots=True)
class _Home:
    """Where the store lies on disk, and the captions it has there."""

    folder: Path
    manifest: disk.Manifest
    ids: Ids


class Datastore:
    """Captions of one text encoder, each with its vector, source, image, and whether a machine wrote it.

    ``add`` takes the encoder's unit rows as they are. The index holds them moved by ``center`` (the mean text vector
    of the alignment) and at unit length again, so that a dot product with an aligned image is the aligned cosine.
    ``dtype="float16"`` halves the files and the memory of new captions. Several threads may search at once; while one
    of them adds or removes, no other may use the store.
    """

    def __init__(
        self,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        index: str | IndexArguments = "flat",
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        if dimension < 1 or dtype not in ("float32", "float16"):
            raise InputError(
                f"a store needs a dimension of at least 1 and float32 or float16, not {dimension}, {dtype}"
            )
        self.dimension = dimension
        self.encoder = encoder
        self.fingerprint = fingerprint
        self.dtype: Literal["float32", "float16"] = dtype
        self._table = CaptionTable()
        self._blocks = VectorBlocks(dimension, dtype)
        self._searcher = Searcher(self._table, self._blocks, self._checked(center), index_arguments(index))
        self._home: _Home | None = None

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[CaptionRow]:
        return iter(self._table)

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self._table.ids.copy()

    @property
    def center(self) -> Vectors | None:
        """The vector that is subtracted before searching."""
        return self._searcher.center

    @property
    def index(self) -> IndexArguments:
        """The kind of index and its arguments."""
        return self._searcher.arguments

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, or by none; the index is built again when it is needed."""
        self._searcher = Searcher(self._table, self._blocks, self._checked(center), self.index)

    def centred_by(self, center: npt.ArrayLike | None) -> Datastore:
        """Return the same captions, searched around another centre; this store when the centre is its own.

        Both share the captions: what one adds or removes the other finds. Save them through one of the two.
        """
        wanted = self._checked(center)
        if wanted is self.center or (wanted is not None and self.center is not None and (wanted == self.center).all()):
            return self
        twin = copy(self)
        twin.set_center(wanted)
        return twin

    def set_index(self, index: str | IndexArguments) -> None:
        """Search with another kind of index; it is built when it is needed."""
        self._searcher = Searcher(self._table, self._blocks, self.center, index_arguments(index))

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
        return self._append(texts, rows, sources, flags, images)

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""
        gone = np.zeros(len(self), dtype=bool)
        gone[self._table.positions(ids)] = True
        return self._drop(gone)

    def remove_where(
        self, *, source: Names | None = None, synthetic: bool | None = None, image_ids: Names | None = None
    ) -> int:
        """Remove the captions that fit all that is given, and return how many."""
        if source is None and synthetic is None and image_ids is None:
            raise InputError("remove_where needs at least one of source, synthetic and image_ids")
        return self.remove(self.find(source=source, synthetic=synthetic, image_ids=image_ids))

    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that fit all that is given; ``matching`` is searched for in the text."""
        mask = self._table.mask(source, None, synthetic, image_ids)
        places = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
        if matching is not None:
            texts = self._table.texts
            places = places[[matching.search(texts[place]) is not None for place in places.tolist()]]
        return self._table.ids[places]

    def merge(self, other: Datastore) -> Ids:
        """Append all captions of ``other``, and return the ids they have here."""
        require_same_encoder(self, other)
        rows = list(other)
        ids = [np.empty(0, dtype=np.int64)]
        for piece, vectors in other._blocks.stream(other._table.slots):
            part = rows[piece]
            ids.append(
                self._append(
                    [row.text for row in part],
                    vectors,
                    [row.source for row in part],
                    [row.synthetic for row in part],
                    [row.image_id for row in part],
                )
            )
        return np.concatenate(ids)

    def deduplicate(self, cosine: float | None = None) -> int:
        """Keep the first of captions that differ only in case, spaces or the full stop; return how many went.

        With ``cosine`` also the first of those whose vectors, as the encoder made them, are at least so similar. In
        stores of more than 50,000 captions a caption is compared with its nearest neighbours only.
        """
        if cosine is not None:
            duplicates.check_threshold(cosine)
        gone = self._drop(duplicates.same_words(self._table.texts))
        if cosine is None:
            return gone
        pieces = self._blocks.stream(self._table.slots)
        if len(self) <= duplicates.EXACT_ROWS:
            return gone + self._drop(duplicates.alike(pieces, cosine))
        raw = Searcher(self._table, self._blocks, None, index_arguments("approximate"))
        near = duplicates.alike_among_neighbours(
            self.ids, pieces, lambda rows, k: raw.search(rows, k, None, None), cosine
        )
        return gone + self._drop(near)

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
        mask = self._table.mask(sources, exclude_sources, synthetic)
        return self._searcher.search(asked, k, mask, exclude_image_ids)

    def evidence(self, ids: npt.ArrayLike, similarities: npt.ArrayLike) -> tuple[Evidence, ...]:
        """Return the captions of one row of a result; absent ones (-1) are skipped."""
        pairs = list(zip(np.asarray(ids).tolist(), np.asarray(similarities).tolist(), strict=True))
        rows = [(row, similarity) for row, similarity in pairs if row >= 0]
        captions = self.rows([row for row, _ in rows])
        return tuple(
            Evidence(caption.text, similarity, caption.source, caption.synthetic, caption.image_id)
            for caption, (_, similarity) in zip(captions, rows, strict=True)
        )

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        return [self._table.row(position) for position in self._table.positions(ids)]

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""
        return self._searcher.vectors(ids)

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return self._blocks.take(self._table.slots[self._table.positions(ids)])

    def ids_of_images(self, image_ids: Iterable[str]) -> list[Ids]:
        """Return for each image the ids of its captions."""
        codes = self._table.image_ids.codes
        order = np.argsort(codes, kind="stable")
        sorted_codes = codes[order]
        found = []
        for name in image_ids:
            code = self._table.image_ids.find([name])
            ends = np.searchsorted(sorted_codes, [code[0], code[0] + 1]) if len(code) else (0, 0)
            found.append(self._table.ids[order[ends[0] : ends[1]]])
        return found

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        column = self._table.sources
        return {name: int(count) for name, count in zip(column.names, column.counts(), strict=True) if count}

    def save(self, folder: str | Path) -> None:
        """Write the store to ``folder``: old state or new, whatever happens meanwhile.

        Into the folder it came from only what has changed is written. What another store had there is replaced.
        """
        folder = Path(folder).resolve()
        self._home = _Home(folder, self._write(folder, whole=False), self._table.ids)

    def copy_to(self, folder: str | Path) -> None:
        """Write the whole store to ``folder`` without moving there: a later ``compact`` works where it did before."""
        folder = Path(folder).resolve()
        if self._home is not None and self._home.folder == folder:
            self.save(folder)
        else:
            self._write(folder, whole=True)

    @contextmanager
    def replaced_at(self, folder: str | Path) -> Iterator[None]:
        """Let the block put a copy of this store in the place of ``folder``, which becomes its home if it was.

        Meanwhile no other process writes there; that one did so before, unknown to this store, raises ``PackError``.
        """
        folder = Path(folder).resolve()
        if self._home is None or self._home.folder != folder:
            yield
            return
        with disk.writing(folder) as writer:
            self._check_unchanged(writer, self._home)
            yield
        self._home = _Home(folder, disk.read_manifest(folder), self._table.ids)

    def compact(self) -> None:
        """Get rid of the vectors of removed captions, in memory and in the folder the store came from or went to."""
        if self._home is not None:
            folder = self._home.folder
            manifest = self._write(folder, whole=True)
            self._home = _Home(folder, manifest, self._table.ids)
            kept = [disk.read_vectors(folder, segment, manifest, False) for segment in manifest.segments]
        else:
            kept = list(self._blocks.stream_stored(self._table.slots))
        self._blocks.replace(kept)
        self._table.slots = np.arange(len(self), dtype=np.int64)

    @classmethod
    def load(cls, folder: str | Path, *, index: str | IndexArguments | None = None, verify: bool = False) -> Datastore:
        """Read a store; its vectors stay on disk, mapped. ``verify`` compares every file's sha256."""
        folder = Path(folder).resolve()
        while True:
            manifest = disk.read_manifest(folder)
            try:
                return cls._read(folder, manifest, index, verify)
            except PackError:
                # another process may have replaced the files between the manifest and them
                if disk.read_manifest(folder).generation == manifest.generation:
                    raise

    @classmethod
    def _read(
        cls, folder: Path, manifest: disk.Manifest, index: str | IndexArguments | None, verify: bool
    ) -> Datastore:
        try:
            values = dict(manifest.index)
            arguments = index_arguments(values.pop("kind"), values) if index is None else index_arguments(index)
            store = cls(
                manifest.dimension,
                encoder=manifest.encoder,
                fingerprint=manifest.fingerprint,
                center=disk.read_center(folder, manifest, verify),
                index=arguments,
                dtype=manifest.dtype,  # type: ignore[arg-type]
            )
        except (InputError, KeyError) as error:
            raise PackError(f"{folder / disk.MANIFEST} is damaged: {error}") from error
        for segment in manifest.segments:
            captions = disk.read_captions(folder, segment, verify)
            slots = store._blocks.append(disk.read_vectors(folder, segment, manifest, verify))
            columns = (captions[name] for name in ("text", "source", "synthetic", "image_id"))
            store._table.extend(captions["id"], slots, *columns)
        store._table.keep(~np.isin(store._table.ids, disk.read_removed(folder, manifest, verify)))
        store._table.next_id = manifest.next_id
        store._home = _Home(folder, manifest, store._table.ids)
        return store

    def _checked(self, center: npt.ArrayLike | None) -> Vectors | None:
        if center is None:
            return None
        center = np.array(center, dtype=np.float32)
        if center.shape != (self.dimension,) or not np.isfinite(center).all():
            raise InputError(f"the centre must be {self.dimension} finite numbers, not of shape {center.shape}")
        return center

    def _append(
        self,
        texts: Sequence[str],
        rows: Vectors,
        source: Iterable[str],
        synthetic: Sequence[bool],
        image_ids: Iterable[str],
    ) -> Ids:
        ids = np.arange(self._table.next_id, self._table.next_id + len(texts), dtype=np.int64)
        slots = self._blocks.append(rows)
        self._table.extend(ids, slots, texts, source, synthetic, image_ids)
        self._searcher.added(ids, slots)
        return ids

    def _drop(self, gone: Mask) -> int:
        ids = self._table.ids[gone]
        if len(ids):
            self._table.keep(~gone)
            self._searcher.removed(ids)
        return len(ids)

    def _write(self, folder: Path, *, whole: bool) -> disk.Manifest:
        """Write all of the store, or what ``folder`` lacks where it is the store's home, and return the manifest."""
        home = self._home if self._home is not None and self._home.folder == folder else None
        with disk.writing(folder) as writer:
            if home is not None:
                self._check_unchanged(writer, home)
            manifest = disk.Manifest(
                encoder=self.encoder,
                fingerprint=self.fingerprint,
                dimension=self.dimension,
                dtype=self.dtype,
                next_id=self._table.next_id,
                index=self.index.as_dict(),
                center=None if self.center is None else writer.center(self.center),
            )
            if home is None or whole:
                manifest = writer.everything(manifest, self._table, self._blocks)
            else:
                manifest = writer.changes(manifest, home.manifest, self._table, self._blocks, home.ids)
            return writer.commit(manifest)

    @staticmethod
    def _check_unchanged(writer: disk.Writer, home: _Home) -> None:
        if writer.found is None or writer.found.generation != home.manifest.generation:
            raise PackError(f"{home.folder} was changed by another process since it was read; load it again")
