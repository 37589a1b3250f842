"""A store whose captions are in Milvus: embedded in a file, on a server, or in a cluster."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore.base import (
    CaptionRow,
    Columns,
    Excluded,
    Filters,
    Ids,
    MutableStore,
    Names,
    SearchResult,
    centred,
    is_same_center,
)
from recap.datastore.collection import LONGEST, MOST, Address, Collection, milvus_condition, require_pymilvus
from recap.datastore.ranking import uncentred
from recap.datastore.store import DiskStore
from recap.datastore.view import DatastoreView
from recap.errors import InputError, PackError
from recap.types import Vectors

FORMAT = "1"
FIELDS = ("text", "source", "synthetic", "image_id")
ASK = 64
"""Queries that are asked at a time: what they find comes with its vectors."""
MESSAGE_BYTES = 8 << 20
"""About how much is inserted in one message; servers take up to 64 MB."""


class MilvusStore(MutableStore):
    """One collection of Milvus.

    Its vectors are centred when they are inserted, and the centre is kept with the collection: around another one it
    cannot be searched. What the text encoder made is found again from the centred vector and the centre. Changes
    last at once; one process at a time may make them. What others have added is seen (by a search a moment later),
    and its ids are not given again; but of two that add in the same moment, one may write over the other's captions.
    """

    def __init__(self, url: str, *, unfinished: bool = False) -> None:
        """Open a collection that is there; one that is not finished only if that is said."""
        collection = Collection(Address.single(url))
        if not collection.call("has_collection"):
            raise PackError(f"{collection.address.url}: there is no such collection")
        if collection.properties().get("unfinished") and not unfinished:
            what = "captions were being copied there, and that was not finished; do it again (recap datastore move)"
            raise PackError(f"{collection.address.url}: {what}")
        self._open(collection)

    def _open(self, collection: Collection) -> None:
        known = collection.properties()
        self.url = collection.address.url
        if known.get("format") != FORMAT:
            raise PackError(f"{self.url}: not a collection of captions that this recap knows")
        collection.call("load_collection")
        self._collection = collection
        self.dimension, self._next_id = int(known["dimension"]), 0
        self.encoder, self.fingerprint, self._index = known["encoder"], known["fingerprint"], known["index"]
        center = base64.b64decode(known["center"])
        self._center = np.frombuffer(center, dtype="<f4").astype(np.float32) if center else None
        self._source_names: set[str] = set()
        self._refresh(known)
        self._catch_up()
        self._made = known.get("made", "")
        self._unfinished = bool(known.get("unfinished"))

    @classmethod
    def create(
        cls,
        url: str,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        replace: bool = False,
        unfinished: bool = False,
    ) -> MilvusStore:
        """Make an empty collection; one of the same name is an error, unless it is unfinished or to be replaced.

        The index is the one the address names: by default an exact one in a file, and the server's own choice on a
        server. One that is to be filled at one go is ``unfinished``: nobody else can open it until it is committed.
        """
        if dimension < 1:
            raise InputError(f"a store needs a dimension of at least 1, not {dimension}")
        address = Address.single(url)
        collection = Collection(address, new=True)
        if not replace:
            collection.require_free()
        if collection.call("has_collection"):
            collection.call("drop_collection")
        properties = {
            "format": FORMAT,
            "dimension": str(dimension),
            "encoder": encoder,
            "fingerprint": fingerprint,
            "index": address.index or ("FLAT" if address.embedded else "AUTOINDEX"),
            "center": _encode_center(_usable(center, dimension)),
            "next_id": "0",
            "sources": "[]",
            "made": secrets.token_hex(8),
            "unfinished": "1" if unfinished else "",
        }
        collection.create(dimension, properties)
        store = cls.__new__(cls)
        store._open(collection)
        return store

    def __len__(self) -> int:
        return self._collection.count()

    @property
    def next_id(self) -> int:
        """The id that the next caption will have; asked for each time, because others may have added some."""
        self._refresh()
        return self._next_id

    @property
    def center(self) -> Vectors | None:
        """The vector that was subtracted when captions were inserted."""
        return self._center

    def set_center(self, center: npt.ArrayLike | None) -> None:
        """Centre by another mean text vector, which only an empty collection can."""
        wanted = _usable(center, self.dimension)
        if not len(self) and not is_same_center(wanted, self.center):
            self._collection.set_properties(center=_encode_center(wanted))
            self._center = wanted
        self.centred_by(wanted)

    def centred_by(self, center: npt.ArrayLike | None) -> MilvusStore:
        """Return this store when the centre is its own; another one is an error."""
        if not is_same_center(_usable(center, self.dimension), self.center):
            raise InputError(
                f"{self.url}: its captions are centred by another mean text vector and would have to be inserted anew; "
                "copy them to another collection (recap datastore move)"
            )
        return self

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        found = self._collection.get(ids, FIELDS)
        return [CaptionRow(int(row["id"]), **{name: row[name] for name in FIELDS}) for row in found]

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""
        found = self._collection.get(ids, ("vector",))
        return np.array([row["vector"] for row in found], dtype=np.float32).reshape(-1, self.dimension)

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return uncentred(self.vectors(ids), self.center)

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        self._refresh()
        known = sorted(self._source_names)
        counts = [self._collection.count(milvus_condition(Filters(sources=frozenset([name]))) or "") for name in known]
        return {name: count for name, count in zip(known, counts, strict=True) if count}

    def facts(self) -> dict[str, str | int | float]:
        """Return where the captions are, and how they are searched."""
        return {"search": "milvus", "index": self._index, "address": self.url}

    def content_hash(self) -> str:
        """Return what differs between stores with other captions: no id is given twice, so numbers of them say it."""
        return f"{self.url} {self._made} {self.next_id} {len(self)}"

    def copy_to(self, folder: str | Path) -> None:
        """Write all captions to ``folder`` as a store on disk."""
        about: dict[str, Any] = {"encoder": self.encoder, "fingerprint": self.fingerprint}
        copied = DiskStore.create(folder, self.dimension, center=self.center, dtype="float32", **about)
        copied.take_over(self)
        copied.commit()

    def commit(self) -> None:
        """Bring everything to the disk of the server."""
        self._collection.call("flush")
        if self._unfinished:
            self._collection.set_properties(unfinished="")
            self._unfinished = False

    def compact(self) -> None:
        """Let the server get rid of removed captions."""
        self._collection.call("flush")
        self._collection.call("compact")

    def _insert(self, ids: Ids, rows: Vectors, columns: Columns) -> None:
        if not len(ids):
            return
        texts = (columns.texts, columns.sources, columns.image_ids)
        if any(len(value.encode(errors="surrogatepass")) > LONGEST for column in texts for value in column):
            raise InputError(f"Milvus keeps texts of up to {LONGEST} bytes; one of the captions or names is longer")
        # before the captions themselves, so that whatever happens no id is given twice and no source is unheard of
        self._source_names |= {*columns.sources}
        self._skip_to(int(ids[-1]) + 1)
        columns = columns._replace(synthetic=[bool(flag) for flag in columns.synthetic])
        fields = zip(ids.tolist(), centred(rows, self.center), *columns, strict=True)
        data = [dict(zip(("id", "vector", *FIELDS), row, strict=True)) for row in fields]
        step = max(1, MESSAGE_BYTES // (4 * self.dimension))
        for start in range(0, len(data), step):
            # it would be the client that inserts again what has arrived
            self._collection.call("insert", data=data[start : start + step], retry_times=0)

    def _remove(self, ids: Ids) -> None:
        self._collection.get(ids, (), MOST)
        for start in range(0, len(ids), MOST):
            self._collection.call("delete", ids=ids[start : start + MOST].tolist())

    def _skip_to(self, next_id: int) -> None:
        self._next_id, listed = next_id, json.dumps(sorted(self._source_names), ensure_ascii=False)
        self._collection.set_properties(next_id=str(next_id), sources=listed)

    def _refresh(self, known: dict[str, str] | None = None) -> None:
        known = known or self._collection.properties()
        self._next_id = max(self._next_id, int(known["next_id"]))
        self._source_names |= set(json.loads(known["sources"]))

    def _catch_up(self) -> None:
        """Count captions that are there although the server, when it was killed, forgot that they were announced."""
        while late := self._collection.window(self._next_id, "", ["id", "source"]):
            self._next_id = max(int(row["id"]) for row in late) + 1
            self._source_names |= {row["source"] for row in late}

    def _find(self, filters: Filters, image_ids: Names | None, matching: re.Pattern[str] | None) -> Ids:
        wanted = milvus_condition(filters, image_ids)
        found: list[int] = []
        # texts are searched here, not there
        fields = ["id"] if matching is None else ["id", "text"]
        for first in range(0, self.next_id if wanted is not None else 0, MOST):
            rows = self._collection.window(first, wanted or "", fields)
            found += [int(row["id"]) for row in rows if matching is None or matching.search(row["text"])]
        return np.array(sorted(found), dtype=np.int64)

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        ids, similarities = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
        for start in range(0, len(queries), ASK):
            piece = slice(start, start + ASK)
            some, wanted = exclude and exclude[piece], milvus_condition(filters)
            ids[piece], similarities[piece] = self._collection.search(queries[piece], k, self._index, wanted, some)
        return SearchResult(ids, similarities)


def fill(url: str, store: MutableStore, folder: Path | None = None, *, progress: bool = False, **about: Any) -> str:
    """Make the collections of an address, and put the captions of a store there, in equal parts and under their ids.

    Where the store is in a ``folder``, searched on disk, each part is written by a process of its own, as many at a
    time as there are cores. Nobody can open one of the collections before all are filled. Returns the address.
    """
    address = Address.parse(url)
    jobs = [
        (address.one(name).whole, ids, store.dimension, about)
        for name, ids in zip(address.collections, np.array_split(store.ids, len(address.collections)), strict=True)
    ]
    if folder is None or address.embedded or len(jobs) == 1:
        filled = [_fill_one(store, *job, progress) for job in jobs]
    else:
        workers = min(len(jobs), os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            list(pool.map(_fill_from, [folder] * len(jobs), jobs))
        filled = [MilvusStore(address.one(name).url, unfinished=True) for name in address.collections]
    for new in filled:
        new.commit()
    return address.url


def _fill_from(folder: Path, job: tuple[str, Ids, int, dict[str, Any]]) -> None:
    _fill_one(DiskStore(folder), *job, progress=False)


def _fill_one(
    store: MutableStore, url: str, ids: Ids, dimension: int, about: dict[str, Any], progress: bool
) -> MilvusStore:
    new = MilvusStore.create(url, dimension, unfinished=True, **about)
    new.progress = progress
    new.take_over(store, ids)
    return new


def open_address(url: str) -> MilvusStore | DatastoreView:
    """Open the collection at an address, or a view of several."""
    address = Address.parse(url)
    stores = [MilvusStore(address.one(name).url) for name in address.collections]
    return stores[0] if len(stores) == 1 else DatastoreView(stores, url=address.url)


def check_free(url: str) -> None:
    """Raise ``InputError`` unless new collections can be made at this address; nothing is made."""
    address = Address.parse(url)
    if address.embedded and not Path(address.server).exists():
        require_pymilvus()
        return
    for name in address.collections:
        Collection(address.one(name)).require_free()


def _encode_center(center: Vectors | None) -> str:
    return "" if center is None else base64.b64encode(center.astype("<f4").tobytes()).decode()


def _usable(center: npt.ArrayLike | None, dimension: int) -> Vectors | None:
    if center is None:
        return None
    checked = np.array(center, dtype=np.float32)
    if checked.shape != (dimension,) or not np.linalg.norm(checked.astype(np.float64)) < 1:
        raise InputError(f"the centre must be {dimension} numbers, the mean of unit vectors, and so shorter than 1")
    return checked
