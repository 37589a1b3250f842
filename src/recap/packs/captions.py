"""The captions of a pack on disk: added to and removed from in place, without reading or writing the rest.

A change is one commit of the datastore: its files are written first and the manifest last, so that a process that is
killed leaves the captions as they were before or as they should be after. The card follows, and may be a step behind.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.alignment import LinearAlignment
from recap.assets import vector_file
from recap.datasets import Sentence, read_sentences
from recap.datastore import Datastore, DatastoreView, DiskStore, MutableStore
from recap.datastore.base import Ids
from recap.datastore.index import index_arguments
from recap.datastore.manifest import DISK
from recap.datastore.view import database_of, is_address
from recap.encoders import TextEncoder
from recap.errors import EncoderMismatchError, PackError
from recap.files import atomic_folder
from recap.packs import folder as pack
from recap.packs.config import PackConfig

MakeStore = Callable[[TextEncoder], MutableStore | None]
"""Makes an empty store for captions of an encoder; None where the default, in memory, will do."""


def check_place(where: str) -> None:
    """Raise ``InputError`` unless captions can be moved to such a place; see ``move``."""
    if is_address(where):
        database_of(where).check_free(where)
    else:
        index_arguments(where)


@contextmanager
def staging(target: Path, where: str | None) -> Iterator[MakeStore]:
    """Yield what makes an empty store on disk, beside a pack that is to be fitted, for captions that go to ``where``.

    So they need not fit into memory, unless that is where they are searched. The store goes when the block ends; what
    a killed process has left of one goes when the next is made.
    """
    folder = target.absolute().with_name(f".{target.absolute().name}.captions")

    def make(text: TextEncoder) -> MutableStore | None:
        if where is None or not (where == DISK or is_address(where)):
            return None
        shutil.rmtree(folder, ignore_errors=True)
        about: dict[str, Any] = {"encoder": text.name, "fingerprint": text.fingerprint, "dtype": "float32"}
        return DiskStore.create(folder, text.dimension, **about)

    try:
        yield make
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def changing(folder: Path, *, compact: bool = False) -> Iterator[MutableStore]:
    """Yield the datastore of the pack in a folder, and commit what the block does to it.

    ``compact`` writes the whole of it anew, so that nothing of a removed caption stays on the disk.
    """
    with pack.changing(folder):
        store = pack.read_own_datastore(folder)
        before = (store.next_id, len(store))
        yield store
        if not len(store):
            raise PackError(f"{folder}: no caption would be left, and a pack needs some; delete the folder instead")
        if compact:
            store.compact()
        elif before != (store.next_id, len(store)):
            store.commit()
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
    rows = [Sentence(s.text, s.source or source, s.image_id, s.synthetic or synthetic) for s in sentences]
    with changing(folder) as store:
        store.progress = progress
        if encoder.fingerprint != PackConfig.read(folder).text_fingerprint:
            raise EncoderMismatchError(f"{folder}: its captions were embedded by another encoder than {encoder.name}")
        known = _find_equal(store, rows)
        new = [row for row in dict.fromkeys(rows) if (row.text, row.source, row.image_id) not in known]
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


def add_file(
    folder: Path, captions: str, *, source: str = "", synthetic: bool = False, progress: bool = False
) -> tuple[int, int]:
    """Add the captions of a file, or of standard input for ``-``; return how many were new, and how many were not.

    The source is the file's name unless it is given or the file says.
    """
    sentences = read_sentences(captions)
    encoder = PackConfig.read(folder).load_encoder(cache=vector_file())
    named = source or ("" if captions == "-" else Path(captions).stem)
    count = add(folder, sentences, encoder.text, source=named, synthetic=synthetic, progress=progress)
    return count, len(sentences) - count


def select(
    folder: Path,
    *,
    ids: Sequence[int] = (),
    source: Sequence[str] = (),
    image: Sequence[str] = (),
    match: re.Pattern[str] | None = None,
    synthetic: bool | None = None,
) -> tuple[MutableStore | DatastoreView, Ids]:
    """Return the datastore of a pack and the ids of the captions that fit all filters; an unknown id is an error."""
    store = pack.read_datastore(folder)
    fitting = store.find(source=source or None, synthetic=synthetic, image_ids=image or None, matching=match)
    if ids:
        store.rows(ids)
        fitting = fitting[np.isin(fitting, ids)]
    return store, fitting


def remove_selected(folder: Path, *, compact: bool = False, **which: Any) -> int:
    """Remove the captions that fit all filters of ``select``, and return how many."""
    # between finding captions and removing them nobody may change what their ids mean
    with pack.changing(folder):
        return remove(folder, select(folder, **which)[1], compact=compact)


def remove(folder: Path, ids: npt.ArrayLike, *, compact: bool = False) -> int:
    """Remove captions by id from the pack in a folder, and return how many."""
    with changing(folder, compact=compact) as store:
        gone = np.unique(np.asarray(ids, dtype=np.int64))
        # in a database removals last at once, so this cannot wait until they are committed
        if len(gone) and len(gone) == len(store):
            raise PackError(f"{folder}: no caption would be left, and a pack needs some; delete the folder instead")
        return store.remove(gone)


def dedupe(folder: Path, *, cosine: float | None = None, compact: bool = False, progress: bool = False) -> int:
    """Keep the first of captions that say the same, and return how many went; see ``MutableStore.deduplicate``."""
    with changing(folder, compact=compact) as store:
        store.progress = progress
        return store.deduplicate(cosine)


def move(folder: Path, where: str, *, progress: bool = False) -> tuple[MutableStore | DatastoreView, str | None]:
    """Keep the captions of the pack in a folder elsewhere, or search them in another way.

    ``where`` is a kind of index in memory (flat, half, approximate), ``disk``, or the address of a database such as
    ``milvus:./captions.db``; with several collections, the captions are divided among them, and those of a store on
    disk are written by a process for each. They keep their ids. What was in the pack goes; what was in a database
    stays there. Meanwhile no other process can change captions that are in the pack. After a crash they are where they
    were, and the same command starts anew.
    Returns where they are now, and the address of the database they were in, if they were in one.
    """
    check_place(where)
    before = PackConfig.read(folder).datastore or None
    with pack.changing(folder):
        _move(folder, where, progress)
    return pack.read_datastore(folder), before


def _move(folder: Path, where: str, progress: bool) -> None:
    old = pack.read_datastore(folder)
    if isinstance(old, DatastoreView) and is_address(where):
        raise PackError(f"{folder}: its captions are in several collections; move them to disk first")
    inside = folder / pack.DATASTORE
    about: dict[str, Any] = {
        "encoder": old.encoder,
        "fingerprint": old.fingerprint,
        "center": LinearAlignment.load(folder / pack.ALIGNMENT).text_mean_,
    }
    with nullcontext() if isinstance(old, DatastoreView) else old.held_at(inside):
        config = PackConfig.read(folder).but(datastore="")
        if is_address(where) and isinstance(old, MutableStore):
            on_disk = inside if isinstance(old, DiskStore) else None
            filled = database_of(where).fill(where, old, on_disk, progress=progress, **about)
            config.but(datastore=filled).write()
            shutil.rmtree(inside, ignore_errors=True)
        else:
            with atomic_folder(inside) as target:
                _write(old, where, target, about, progress)
            config.write()


def _write(old: MutableStore | DatastoreView, where: str, target: Path, about: dict[str, Any], progress: bool) -> None:
    dtype: Any = getattr(old, "dtype", "float32")
    stores = old.stores if isinstance(old, DatastoreView) else [old]
    if where == DISK:
        on_disk = DiskStore.create(target, old.dimension, dtype=dtype, **about)
        on_disk.progress = progress
        for store in stores:
            on_disk.take_over(store)
        on_disk.commit()
    else:
        in_memory = Datastore(old.dimension, index=where, dtype=dtype, **about)
        in_memory.progress = progress
        for store in stores:
            in_memory.take_over(store)
        in_memory.save(target)


def _find_equal(store: MutableStore, rows: Sequence[Sentence]) -> set[tuple[str, str, str]]:
    """Return which captions of the store could be meant by ``rows``, by text, source and image."""
    candidates = store.find(source={row.source for row in rows})
    wanted = {row.text for row in rows}
    found = (row for row in store.walk(candidates) if row.text in wanted)
    return {(row.text, row.source, row.image_id) for row in found}
