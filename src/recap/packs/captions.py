"""The captions of a pack on disk: added to and removed from in place, without reading or writing the rest.

A change is one commit of the datastore: its files are written first and the manifest last, so that a process that is
killed leaves the captions as they were before or as they should be after. The card follows, and may be a step behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy.typing as npt

from recap import pack
from recap.datasets import Sentence
from recap.datastore import Datastore
from recap.encoders import TextEncoder
from recap.errors import EncoderMismatchError, PackError


@contextmanager
def changing(folder: Path, *, compact: bool = False) -> Iterator[Datastore]:
    """Yield the datastore of the pack in a folder, and commit what the block does to it.

    ``compact`` writes the whole of it anew, so that nothing of a removed caption stays on the disk.
    """
    store = Datastore.load(folder / pack.DATASTORE)
    before = store.ids
    yield store
    if not len(store):
        raise PackError(f"{folder}: no caption would be left, and a pack needs some; delete the folder instead")
    if compact:
        store.compact()
    elif len(before) != len(store) or (before != store.ids).any():
        store.save(folder / pack.DATASTORE)
    pack.refresh_card(folder, store)


def add(
    folder: Path,
    sentences: Sequence[Sentence],
    encoder: TextEncoder,
    *,
    source: str = "",
    synthetic: bool = False,
    progress: bool = False,
) -> int:
    """Add captions to the pack in a folder, and return how many were new.

    A caption that is there already, of the same source and image, is passed over: the same file can be added again
    after a crash. ``source`` and ``synthetic`` hold for captions whose file does not say.
    """
    known = pack.read_config(folder)["text_fingerprint"]
    if encoder.fingerprint != known:
        raise EncoderMismatchError(f"{folder}: its captions were embedded by another encoder than {encoder.name}")
    rows = [Sentence(s.text, s.source or source, s.image_id, s.synthetic or synthetic) for s in sentences]
    with changing(folder) as store:
        there = _there(store, rows)
        new = [row for row in dict.fromkeys(rows) if (row.text, row.source, row.image_id) not in there]
        if new:
            texts = [row.text for row in new]
            store.add(
                texts,
                encoder.encode_texts(texts, progress=progress),
                source=[row.source for row in new],
                synthetic=[row.synthetic for row in new],
                image_ids=[row.image_id for row in new],
            )
    return len(new)


def remove(folder: Path, ids: npt.ArrayLike, *, compact: bool = False) -> int:
    """Remove captions by id from the pack in a folder, and return how many."""
    with changing(folder, compact=compact) as store:
        return store.remove(ids)


def dedupe(folder: Path, *, cosine: float | None = None, compact: bool = False) -> int:
    """Keep the first of captions that say the same, and return how many went; see ``Datastore.deduplicate``."""
    with changing(folder, compact=compact) as store:
        return store.deduplicate(cosine)


def _there(store: Datastore, rows: Sequence[Sentence]) -> set[tuple[str, str, str]]:
    """Return which captions of the store could be meant by ``rows``, by text, source and image."""
    candidates = store.find(source={row.source for row in rows})
    wanted = {row.text for row in rows}
    found = (row for row in store.rows(candidates) if row.text in wanted)
    return {(row.text, row.source, row.image_id) for row in found}
