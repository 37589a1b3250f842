"""A store whose captions are in Milvus: embedded in a file, on a server, or in a cluster."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Excluded, Filters, Ids, Names, SearchResult, centred
from recap.datastore.collection import (
    LONGEST,
    MOST,
    Address,
    Collection,
    condition,
    decode_center,
    encode_center,
    encode_names,
    require_pymilvus,
    search,
    stacked,
)
from recap.datastore.mutable import MutableStore
from recap.datastore.ranking import left_out
from recap.datastore.view import DatastoreView
from recap.errors import InputError, PackError
from recap.types import Vectors

FORMAT = "1"
FIELDS = ("text", "source", "synthetic", "image_id")
GET = 1024
"""So many captions are fetched by id at a time."""


class MilvusStore(MutableStore):
    """One collection of Milvus.

    Its vectors are centred when they are inserted, and the centre is kept with the collection: around another one it
    cannot be searched. What the text encoder made is found again from the centred vector and the centre. Changes
    last at once; one process at a time may make them. What others have added is seen, and its ids are not given again;
    but of two that add in the same moment, one may write over the other's captions.
    """

    def __init__(self, url: str) -> None:
        """Open a collection that is there."""
        address = Address.single(url)
        collection = Collection(address)
        if not collection.exists():
            raise PackError(f"{address.url}: there is no such collection")
        if collection.is_unfinished():
            raise PackError(
                f"{address.url}: captions were being copied there, and that was not finished; do it again "
                "(recap datastore move)"
            )
        self._open(collection)

    def _open(self, collection: Collection) -> None:
        known = collection.properties()
        self.url = collection.address.url
        if known.get("recap.format") != FORMAT:
            raise PackError(f"{self.url}: not a collection of captions that this recap knows")
        collection.load()
        self._collection = collection
        self.dimension = int(known["recap.dimension"])
        self.encoder, self.fingerprint = known["recap.encoder"], known["recap.fingerprint"]
        self._index = known["recap.index"]
        self._center = decode_center(known["recap.center"])
        self._next_id = int(known["recap.next_id"])
        self._source_names: set[str] = set(json.loads(known["recap.sources"]))
        self._made = known.get("recap.made", "")
        self._unfinished = bool(known.get("recap.unfinished"))

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
        server. ``unfinished`` is for a collection that is to be filled at one go: nobody else can open it until it is
        committed.
        """
        if dimension < 1:
            raise InputError(f"a store needs a dimension of at least 1, not {dimension}")
        address = Address.single(url)
        collection = Collection(address, new=True)
        if not replace:
            collection.require_free()
        if collection.exists():
            collection.drop()
        properties = {
            "format": FORMAT,
            "dimension": str(dimension),
            "encoder": encoder,
            "fingerprint": fingerprint,
            "index": address.index or ("FLAT" if address.embedded else "AUTOINDEX"),
            "center": encode_center(_usable(center, dimension)),
            "next_id": "0",
            "sources": "[]",
            "made": secrets.token_hex(8),
            "unfinished": "1" if unfinished else "",
        }
        collection.create(dimension, {f"recap.{name}": value for name, value in properties.items()})
        store = cls.__new__(cls)
        store._open(collection)
        return store

    def __len__(self) -> int:
        return self._collection.count()

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self.find()

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
        if self._is_centred_by(wanted):
            return
        if len(self):
            raise self._centred_otherwise()
        self._collection.set_properties(center=encode_center(wanted))
        self._center = wanted

    def centred_by(self, center: npt.ArrayLike | None) -> MilvusStore:
        """Return this store when the centre is its own; another one is an error."""
        if not self._is_centred_by(_usable(center, self.dimension)):
            raise self._centred_otherwise()
        return self

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove captions by id, and return how many; an unknown id raises ``InputError``."""
        gone = np.unique(np.asarray(ids, dtype=np.int64))
        self._collection.get(gone, (), MOST)
        self._collection.delete(gone)
        return len(gone)

    def find(
        self,
        *,
        source: Names | None = None,
        synthetic: bool | None = None,
        image_ids: Names | None = None,
        matching: re.Pattern[str] | None = None,
    ) -> Ids:
        """Return the ids of the captions that fit all that is given; ``matching`` is searched for here, not there."""
        wanted = condition(Filters.of(source, None, synthetic), image_ids)
        found: list[int] = []
        fields = () if matching is None else ("text",)
        for first in range(0, self.next_id if wanted is not None else 0, MOST):
            rows = self._collection.between(first, first + MOST, wanted or "", fields)
            found += [int(row["id"]) for row in rows if matching is None or matching.search(row["text"])]
        return np.array(found, dtype=np.int64)

    def rows(self, ids: npt.ArrayLike) -> list[CaptionRow]:
        """Return captions by id."""
        wanted = np.asarray(ids, dtype=np.int64)
        found = self._collection.get(wanted, FIELDS, GET)
        return [CaptionRow(id, **{name: found[id][name] for name in FIELDS}) for id in wanted.tolist()]

    def vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the centred unit vectors of captions, as they are searched."""
        wanted = np.asarray(ids, dtype=np.int64)
        found = self._collection.get(wanted, ("vector",), GET)
        return stacked((found[id]["vector"] for id in wanted.tolist()), self.dimension)

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return uncentred(self.vectors(ids), self.center)

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
        self._refresh()
        counts = {
            name: self._collection.count(condition(Filters(sources=frozenset([name]))) or "")
            for name in sorted(self._source_names)
        }
        return {name: count for name, count in counts.items() if count}

    def facts(self) -> dict[str, str | int | float]:
        """Return where the captions are, and how they are searched."""
        return {"search": "milvus", "index": self._index, "address": self.url}

    def content_hash(self) -> str:
        """Return what differs between stores with other captions, without fetching them.

        No id is given twice in a collection: as long as it lives, the next id and the number of captions say which
        ones there are.
        """
        return f"{self.url} {self._made} {self.next_id} {len(self)}"

    def copy_to(self, folder: str | Path) -> None:
        """Write all captions to ``folder`` as a store on disk."""
        from recap.datastore.diskstore import DiskStore

        copied = DiskStore.create(
            folder,
            self.dimension,
            encoder=self.encoder,
            fingerprint=self.fingerprint,
            center=self.center,
            dtype="float32",
        )
        copied.take_over(self)
        copied.commit()

    def commit(self) -> None:
        """Bring everything to the disk of the server."""
        self._collection.flush()
        if self._unfinished:
            self._collection.set_properties(unfinished="")
            self._unfinished = False

    def compact(self) -> None:
        """Let the server get rid of removed captions."""
        self._collection.flush()
        self._collection.compact()

    def _insert(
        self,
        ids: Ids,
        texts: Sequence[str],
        rows: Vectors,
        sources: Sequence[str],
        synthetic: Sequence[bool],
        image_ids: Sequence[str],
    ) -> None:
        if not len(ids):
            return
        columns = (texts, sources, image_ids)
        if any(len(value.encode(errors="surrogatepass")) > LONGEST for column in columns for value in column):
            raise InputError(f"Milvus keeps texts of up to {LONGEST} bytes; one of the captions or names is longer")
        # before the captions themselves, so that whatever happens no id is given twice and no source is unheard of
        self._skip_to(int(ids[-1]) + 1, {*self._source_names, *sources})
        moved = centred(rows, self.center)
        fields = zip(ids.tolist(), moved, texts, sources, map(bool, synthetic), image_ids, strict=True)
        keys = ("id", "vector", "text", "source", "synthetic", "image_id")
        self._collection.insert([dict(zip(keys, row, strict=True)) for row in fields])

    def _skip_to(self, next_id: int, sources: set[str] | None = None) -> None:
        known = self._source_names if sources is None else sources
        self._collection.set_properties(next_id=str(next_id), sources=encode_names(known))
        self._next_id, self._source_names = next_id, known

    def _refresh(self) -> None:
        known = self._collection.properties()
        self._next_id = max(self._next_id, int(known["recap.next_id"]))
        self._source_names |= set(json.loads(known["recap.sources"]))

    def _centred_otherwise(self) -> InputError:
        return InputError(
            f"{self.url}: its captions are centred by another mean text vector and would have to be inserted anew; "
            "copy them to another collection (recap datastore move)"
        )

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        found = search(self._collection, self._index, queries, k, condition(filters), left_out(exclude))
        return SearchResult(*found)


def check_free(url: str) -> None:
    """Raise ``InputError`` unless a new collection can be made at this address; nothing is made."""
    address = Address.single(url)
    if address.embedded and not Path(address.server).exists():
        require_pymilvus()
    else:
        Collection(address).require_free()


def open_collections(url: str) -> MilvusStore | DatastoreView:
    """Open the collection at an address, or several as one."""
    address = Address.parse(url)
    stores = [MilvusStore(address.one(name).url) for name in address.collections]
    return stores[0] if len(stores) == 1 else DatastoreView(stores, url=address.url)


def uncentred(rows: Vectors, center: Vectors | None) -> Vectors:
    """Return the unit vectors that become ``rows`` when they are centred and brought back to unit length.

    Seen from the centre, which lies within the unit sphere, each row points at one point of the sphere.
    """
    if center is None:
        return rows
    directions, origin = rows.astype(np.float64), center.astype(np.float64)
    along = directions @ origin
    distances = np.sqrt(along**2 + 1 - origin @ origin) - along
    return (origin + distances[:, None] * directions).astype(np.float32)


def _usable(center: npt.ArrayLike | None, dimension: int) -> Vectors | None:
    if center is None:
        return None
    checked = np.array(center, dtype=np.float32)
    if checked.shape != (dimension,) or not np.linalg.norm(checked.astype(np.float64)) < 1:
        raise InputError(f"the centre must be {dimension} numbers, the mean of unit vectors, and so shorter than 1")
    return checked
