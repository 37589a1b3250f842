"""The folder of a store that is searched on disk: what is committed there, and what is waiting to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recap.datastore import disk
from recap.datastore.base import Ids, is_same_center
from recap.datastore.disk import Pending
from recap.datastore.index import RECALL_K, RECALL_QUERIES, DiskArguments, index_arguments
from recap.datastore.manifest import DISK, MANIFEST, BuiltIndex, Manifest, Removal, Segment, read_manifest
from recap.datastore.parts import MappedPart, Parts
from recap.errors import InputError, PackError
from recap.files import link_or_copy

if TYPE_CHECKING:
    from recap.datastore.disksearch import DiskSearcher, Lists


class DiskHome:
    """A folder with a committed store; new segments and lists are collected in a hidden folder inside it."""

    parts: Parts
    _gone: Ids
    """What is marked as removed in the folder."""

    def __init__(self, folder: Path, *, verify: bool = False) -> None:
        self.folder = folder
        while True:
            self.manifest = read_manifest(folder)
            try:
                self._open(verify)
            except PackError:
                # another process may have replaced the files between the manifest and them
                if read_manifest(folder).generation == self.manifest.generation:
                    raise
            else:
                return

    def searcher(self) -> DiskSearcher:
        """Return what searches the committed captions."""
        from recap.datastore.disksearch import DiskSearcher, read_lists

        found = DiskSearcher(self.parts, self._center, self._arguments)
        built = self.manifest.built
        if built is not None:
            files = [self.folder / file.name for file in built.files]
            found.lists = read_lists(files, built.rows, built.next_id, built.recall)
        return found

    def pending(self) -> Path:
        """Return the folder of what is not committed yet; it goes when nobody uses these captions any more."""
        parts = self.parts
        if parts.pending is None or not parts.pending.path.exists():
            parts.pending = Pending(self.folder, parts)
        return parts.pending.path

    def commit(self, searcher: DiskSearcher) -> None:
        """Make all segments, the removals, and the lists of ``searcher`` the store: old state or new, never between."""
        with self.locked() as writer:
            manifest = replace(
                self.manifest,
                next_id=self.parts.table.next_id,
                index=searcher.arguments.as_dict(),
                center=None if searcher.center is None else writer.center(searcher.center),
                removed=self._removals(writer),
                segments=self._adopted_segments(writer),
                built=self._adopted_lists(writer, searcher),
            )
            self.manifest = writer.commit(manifest)
        self._gone, self._center = self.parts.gone, searcher.center
        # lists of a store around another centre may still wait there
        if self.parts.pending is not None and self.parts.pending.is_empty:
            self.parts.pending.close()

    def is_all(self, searcher: DiskSearcher) -> bool:
        """Tell whether the files of the folder are all there is to the store, and hold nothing that has gone."""
        parts, manifest = self.parts, self.manifest
        same = [part.captions for part in parts.segments] == list(self._listed())
        new = len(parts.table) or len(parts.gone) or parts.table.next_id != manifest.next_id
        centred = is_same_center(searcher.center, self._center)
        return same and not new and self._are_committed(searcher.lists) and centred

    def copy_files(self, folder: Path) -> None:
        """Make a store in ``folder`` of the same files, which are never written to again."""
        with disk.writing(folder) as writer:
            if writer.found is not None:
                raise InputError(f"{folder} holds a datastore already")
            try:
                for file in self.manifest.files:
                    link_or_copy(self.folder / file.name, folder / file.name)
            except FileNotFoundError as error:
                raise self.changed() from error
            if read_manifest(self.folder).generation != self.manifest.generation:
                raise self.changed()
            writer.commit(self.manifest)

    @contextmanager
    def locked(self) -> Iterator[disk.Writer]:
        """Yield a writer; ``PackError`` when another process has changed the folder."""
        with disk.writing(self.folder) as writer:
            if writer.found is None or writer.found.generation != self.manifest.generation:
                raise self.changed()
            yield writer

    def changed(self) -> PackError:
        """Return what to raise when another process has changed the folder."""
        return PackError(f"{self.folder} was changed by another process since it was read; open it again")

    def _open(self, verify: bool) -> None:
        folder, manifest = self.folder, self.manifest
        self._arguments = _arguments(folder, manifest)
        self._center = disk.read_center(folder, manifest, verify)
        self._gone = np.unique(disk.read_removed(folder, manifest, verify))
        self.parts = Parts(manifest.dimension, manifest.dtype)
        for segment in manifest.segments:
            files = (segment.captions.check(folder, verify), segment.vectors.check(folder, verify))
            self.parts.segments.append(MappedPart(*files, segment.rows, manifest.dimension, manifest.dtype))
        self.parts.gone, self.parts.table.next_id = self._gone, manifest.next_id
        for file in manifest.built.files if manifest.built is not None else ():
            file.check(folder, verify)

    def _removals(self, writer: disk.Writer) -> tuple[Removal, ...]:
        known, gone = self.manifest.removed, np.setdiff1d(self.parts.gone, self._gone, assume_unique=True)
        # what was gone from segments that have been written again must not be marked any more
        outdated = len(self._gone) + len(gone) > len(self.parts.gone)
        if outdated or (len(gone) and len(known) >= disk.MANY_REMOVALS):
            known, gone = (), self.parts.gone
        return (*known, writer.removal(gone)) if len(gone) else known

    def _listed(self) -> dict[Path, Segment]:
        """Return the committed segments by where their captions are."""
        return {self.folder / segment.captions.name: segment for segment in self.manifest.segments}

    def _are_committed(self, lists: Lists | None) -> bool:
        """Tell whether these lists, or None, are what the manifest says."""
        built = self.manifest.built
        if lists is None or built is None:
            return lists is None and built is None
        return lists.files[0] == self.folder / built.trained.name

    def _adopted_segments(self, writer: disk.Writer) -> tuple[Segment, ...]:
        segments, listed = [], self._listed()
        for part in self.parts.segments:
            segment = listed.get(part.captions)
            if segment is None:
                # where each file is has to be known even if the next step fails, for another try
                captions = writer.adopt(part.captions)
                part.captions = self.folder / captions.name
                vectors = writer.adopt(part.vectors)
                part.vectors = self.folder / vectors.name
                segment = Segment(len(part), captions, vectors)
                writer.next_number()
            segments.append(segment)
        return tuple(segments)

    def _adopted_lists(self, writer: disk.Writer, searcher: DiskSearcher) -> BuiltIndex | None:
        lists: Lists | None = searcher.lists
        if lists is None or self._are_committed(lists):
            return None if lists is None else self.manifest.built
        stored = []
        for number in range(len(lists.files)):
            stored.append(writer.adopt(lists.files[number]))
            lists.files[number] = self.folder / stored[-1].name
        return BuiltIndex(
            rows=lists.rows,
            next_id=lists.next_id,
            trained=stored[0],
            sizes=stored[1],
            lists=stored[2],
            recall=lists.recall,
            recall_k=RECALL_K,
            recall_queries=RECALL_QUERIES,
        )


def _arguments(folder: Path, manifest: Manifest) -> DiskArguments:
    values = dict(manifest.index)
    if values.pop("kind", None) != DISK:
        raise PackError(f"{folder} holds a datastore that is searched in memory: load it with Datastore.load")
    try:
        arguments = index_arguments(DISK, values)
    except InputError as error:
        raise PackError(f"{folder / MANIFEST} is damaged: {error}") from error
    assert isinstance(arguments, DiskArguments)
    return arguments
