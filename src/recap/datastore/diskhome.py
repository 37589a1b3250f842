"""The folder of a store that is searched on disk: what is committed there, and what is waiting to be."""

from __future__ import annotations

import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recap.datastore import disk
from recap.datastore.base import Ids, is_same_center
from recap.datastore.index import RECALL_K, RECALL_QUERIES, DiskArguments, index_arguments
from recap.datastore.manifest import DISK, MANIFEST, BuiltIndex, Manifest, Segment, read_manifest
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
            files = [self.folder / file.name for file in (built.trained, built.sizes, built.lists)]
            found.lists = read_lists((files[0], files[1], files[2]), built.rows, built.next_id, built.recall)
        return found

    def pending(self) -> Path:
        """Return the folder of what is not committed yet; it goes when nobody uses these captions any more."""
        parts = self.parts
        if parts.pending is None or not parts.pending.exists():
            parts.pending = self.folder / f"{disk.PENDING}{secrets.token_hex(6)}"
            parts.pending.mkdir()
            weakref.finalize(parts, shutil.rmtree, parts.pending, ignore_errors=True)
        return parts.pending

    def commit(self, searcher: DiskSearcher) -> None:
        """Make all segments, the removals, and the lists of ``searcher`` the store: old state or new, never between."""
        with self.locked() as writer:
            gone = np.setdiff1d(self.parts.gone, self._gone, assume_unique=True)
            manifest = replace(
                self.manifest,
                next_id=self.parts.table.next_id,
                index=searcher.arguments.as_dict(),
                center=None if searcher.center is None else writer.center(searcher.center),
                removed=self.manifest.removed + ((writer.removal(gone),) if len(gone) else ()),
                segments=self.manifest.segments + self._adopted_segments(writer),
                built=self._adopted_lists(writer, searcher),
            )
            self.manifest = writer.commit(manifest)
        self._gone, self._center = self.parts.gone, searcher.center

    def is_all(self, searcher: DiskSearcher) -> bool:
        """Tell whether the files of the folder are all there is to the store, and hold nothing that has gone."""
        parts, manifest, lists = self.parts, self.manifest, searcher.lists
        new = len(parts.table) or len(parts.segments) > len(manifest.segments) or len(parts.gone)
        lists_here = manifest.built is None if lists is None else lists.files[0].parent == self.folder
        centred = is_same_center(searcher.center, self._center)
        return not new and parts.table.next_id == manifest.next_id and lists_here and centred

    def copy_files(self, folder: Path) -> None:
        """Make a store in ``folder`` of the same files, which are never written to again."""
        with disk.writing(folder) as writer:
            if writer.found is not None:
                raise InputError(f"{folder} holds a datastore already")
            for file in self.manifest.files:
                link_or_copy(self.folder / file.name, folder / file.name)
            writer.commit(self.manifest)

    @contextmanager
    def locked(self) -> Iterator[disk.Writer]:
        """Yield a writer; ``PackError`` when another process has changed the folder."""
        with disk.writing(self.folder) as writer:
            if writer.found is None or writer.found.generation != self.manifest.generation:
                raise PackError(f"{self.folder} was changed by another process since it was read; open it again")
            yield writer

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
        for file in manifest.files:
            file.check(folder, verify)

    def _adopted_segments(self, writer: disk.Writer) -> tuple[Segment, ...]:
        adopted = []
        for part in self.parts.segments[len(self.manifest.segments) :]:
            segment = Segment(len(part), writer.adopt(part.captions), writer.adopt(part.vectors))
            part.moved(self.folder / segment.captions.name, self.folder / segment.vectors.name)
            adopted.append(segment)
            writer.next_number()
        return tuple(adopted)

    def _adopted_lists(self, writer: disk.Writer, searcher: DiskSearcher) -> BuiltIndex | None:
        lists: Lists | None = searcher.lists
        if lists is None or lists.files[0].parent == self.folder:
            return None if lists is None else self.manifest.built
        trained, sizes, content = map(writer.adopt, lists.files)
        paths = (self.folder / trained.name, self.folder / sizes.name, self.folder / content.name)
        searcher.lists = replace(lists, files=paths)
        return BuiltIndex(
            rows=lists.rows,
            next_id=lists.next_id,
            trained=trained,
            sizes=sizes,
            lists=content,
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
