"""A store whose captions are in Milvus: embedded in a file, on a server, or in a cluster."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recap.datastore.base import CaptionRow, Excluded, Filters, Ids, Names, SearchResult, centred, names
from recap.datastore.collection import (
    LONGEST,
    MOST,
    Address,
    Collection,
    condition,
    decode_center,
    encode_center,
    encode_names,
)
from recap.datastore.mutable import MutableStore
from recap.datastore.ranking import dot_error, dot_products, rank
from recap.datastore.view import DatastoreView
from recap.errors import InputError, PackError
from recap.types import Vectors

FORMAT = "1"
FIELDS = ("text", "source", "synthetic", "image_id")
GET = 1024
"""So many captions are fetched by id at a time."""

SPARE = 8
"""So many more are asked for when queries leave images out; too few, and the query is asked again."""


class MilvusStore(MutableStore):
    """One collection of Milvus.

    Its vectors are centred when they are inserted, and the centre is kept with the collection: around another one it
    cannot be searched. What the text encoder made is found again from the centred vector and the centre. Changes
    last at once; one process at a time may make them.
    """

    def __init__(self, url: str) -> None:
        """Open a collection that is there."""
        address = Address.parse(url)
        if len(address.collections) != 1:
            raise InputError(f"{url}: several collections are opened by open_store, as a view")
        self._collection = Collection(address)
        if not self._collection.exists():
            raise PackError(f"{address.url}: there is no such collection")
        known = self._collection.open()
        if known.get("recap.format") != FORMAT:
            raise PackError(f"{address.url}: not a collection of captions that this recap knows")
        self.url = address.url
        self.dimension = int(known["recap.dimension"])
        self.encoder, self.fingerprint = known["recap.encoder"], known["recap.fingerprint"]
        self._index = known["recap.index"]
        self._center = decode_center(known["recap.center"])
        self._next_id = int(known["recap.next_id"])
        self._source_names: set[str] = set(json.loads(known["recap.sources"]))
        self._made = known.get("recap.made", "")

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
    ) -> MilvusStore:
        """Make an empty collection; one of the same name is an error, unless it is to be replaced.

        The index is the one the address names: by default an exact one in a file, and the server's own choice on a
        server.
        """
        if dimension < 1:
            raise InputError(f"a store needs a dimension of at least 1, not {dimension}")
        address = Address.parse(url)
        collection = Collection(address)
        if collection.exists():
            if not replace:
                raise InputError(f"{address.url}: there is such a collection already; name another one")
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
        }
        collection.create(dimension, {f"recap.{name}": value for name, value in properties.items()})
        return cls(address.url)

    def __len__(self) -> int:
        return self._collection.count()

    @property
    def ids(self) -> Ids:
        """The ids of all captions, ascending."""
        return self.find()

    @property
    def next_id(self) -> int:
        """The id that the next caption will have."""
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
            raise InputError(
                f"{self.url}: its captions are centred by another mean text vector and would have to be inserted anew; "
                "copy them to another collection (recap datastore move)"
            )
        self._collection.set_properties(center=encode_center(wanted))
        self._center = wanted

    def centred_by(self, center: npt.ArrayLike | None) -> MilvusStore:
        """Return this store when the centre is its own; another one is an error."""
        self.set_center(center)
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
        for first in range(0, self._next_id if wanted is not None else 0, MOST):
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
        return self._stacked(found[id]["vector"] for id in wanted.tolist())

    def raw_vectors(self, ids: npt.ArrayLike) -> Vectors:
        """Return the unit vectors of captions as the text encoder made them."""
        return uncentred(self.vectors(ids), self.center)

    def sources(self) -> dict[str, int]:
        """Return how many captions each source has."""
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
        return f"{self.url} {self._made} {self._next_id} {len(self)}"

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

    def _stacked(self, rows: Iterable[npt.ArrayLike]) -> Vectors:
        return np.array(list(rows), dtype=np.float32).reshape(-1, self.dimension)

    def _search(self, queries: Vectors, k: int, filters: Filters, exclude: Excluded | None) -> SearchResult:
        wanted = condition(filters)
        left_out = None if exclude is None else [frozenset(n for n in names(entry or ()) if n) for entry in exclude]
        seen: dict[int, tuple[Vectors, str]] = {}

        def propose(asked: Vectors, count: int) -> tuple[Ids, Vectors]:
            ids = np.full((len(asked), count), -1, dtype=np.int64)
            similarities = np.full((len(asked), count), -np.inf, dtype=np.float32)
            hits = self._collection.search(asked, count, wanted or "", self._index, ("vector", "image_id"))
            for row, found in enumerate(hits):
                for column, hit in enumerate(found):
                    id, entity = int(hit["id"]), hit["entity"]
                    ids[row, column], similarities[row, column] = id, hit["distance"]
                    seen[id] = (np.asarray(entity["vector"], dtype=np.float32), entity["image_id"])
            return ids, similarities

        def rescore(numbers: npt.NDArray[np.intp], ids: Ids) -> Vectors:
            kept = ids.copy()
            for row, number in enumerate(numbers if left_out is not None else ()):
                unwanted = left_out[number] if left_out is not None else frozenset()
                kept[row, [id >= 0 and seen[id][1] in unwanted for id in ids[row].tolist()]] = -1
            return dot_products(queries[numbers], kept, lambda part: self._stacked(seen[id][0] for id in part.tolist()))

        return rank(
            propose,
            queries,
            k,
            error=dot_error(self.dimension) if self._index == "FLAT" else float("inf"),
            available=MOST if wanted is not None else 0,
            spare=SPARE if left_out is not None and any(left_out) else 0,
            rescore=rescore,
        )


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
