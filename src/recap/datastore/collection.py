"""A collection of captions in Milvus: its address, its fields, and the calls that a store makes.

The nearest captions of a collection: proposed by Milvus, scored again and put in order here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Filters, Ids, Names, names
from recap.datastore.ranking import SPARE, dot_error, dot_products, rank, sifted
from recap.datastore.view import MILVUS
from recap.errors import InputError, MissingExtraError, PackError
from recap.types import Vectors

TOKEN = "RECAP_MILVUS_TOKEN"
"""The environment variable with the token, or user:password, of a server that asks for one."""

DEFAULT_COLLECTION = "captions"
MOST = 16_384
"""Milvus returns no more rows than this at once."""

LONGEST = 65_535
"""Bytes of the longest text that fits."""

MESSAGE_BYTES = 8 << 20
"""About how much is inserted or fetched in one message; servers take up to 64 MB."""

INDEXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FLAT": ({}, {}),
    "AUTOINDEX": ({}, {}),
    "HNSW": ({"M": 16, "efConstruction": 200}, {"ef": 256}),
    "IVF_FLAT": ({"nlist": 1024}, {"nprobe": 64}),
    "IVF_SQ8": ({"nlist": 1024}, {"nprobe": 64}),
    "DISKANN": ({}, {"search_list": 256}),
}
"""Kinds of index that can be asked for, with what they are built and searched with."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where collections are: ``milvus:./captions.db``, or ``milvus:http://host:19530?collection=a,b&index=HNSW``."""

    server: str
    collections: tuple[str, ...] = (DEFAULT_COLLECTION,)
    index: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the parts of an address, or say what is wrong with it."""
        server, _, query = url.removeprefix(MILVUS).partition("?")
        given = {name: values[-1] for name, values in parse_qs(query).items()}
        unknown = sorted(given.keys() - {"collection", "index"})
        index = given.get("index", "").upper()
        collections = tuple(name for name in given.get("collection", DEFAULT_COLLECTION).split(",") if name)
        if not url.startswith(MILVUS) or unknown or not collections:
            raise InputError(
                f"{url}: not an address such as milvus:./captions.db or milvus:http://host:19530?collection=a"
            )
        if index and index not in INDEXES:
            raise InputError(f"{url}: unknown index {index}; choose one of {', '.join(INDEXES)}")
        if "://" not in server:
            if not server.endswith(".db"):
                raise InputError(f"{url}: a file of Milvus Lite has a name that ends in .db")
            server = str(Path(server).expanduser().resolve())
        return cls(server, collections, index)

    @classmethod
    def single(cls, url: str) -> Address:
        """Return the parts of the address of one collection."""
        address = cls.parse(url)
        if len(address.collections) != 1:
            raise InputError(f"{url}: a store is one collection; several are opened by open_store, as a view")
        return address

    @property
    def embedded(self) -> bool:
        """Whether it is a file of Milvus Lite and not a server."""
        return "://" not in self.server

    @property
    def url(self) -> str:
        """The whole address; a file by its full path."""
        return f"{MILVUS}{self.server}?collection={','.join(self.collections)}"

    def one(self, collection: str) -> Address:
        """Return the address of one of the collections."""
        return replace(self, collections=(collection,))


LITE_OPTIONS = {"grpc.keepalive_time_ms": 600_000, "grpc.keepalive_permit_without_calls": False}
"""For the server of a file: it takes the client's usual signs of life for an attack, and hangs up."""


class Collection:
    """One collection: an id, a unit vector, and what is known about each caption."""

    def __init__(self, address: Address, *, new: bool = False) -> None:
        """Connect; ``new`` makes the file of Milvus Lite if there is none."""
        pymilvus = require_pymilvus()
        if address.embedded and new:
            Path(address.server).parent.mkdir(parents=True, exist_ok=True)
        elif address.embedded and not Path(address.server).exists():
            raise PackError(f"{address.url}: there is no such file")
        self.address = address
        self.name = address.collections[0]
        self._error = pymilvus.MilvusException
        try:
            options = {"grpc_options": LITE_OPTIONS} if address.embedded else {}
            self._client = pymilvus.MilvusClient(address.server, token=os.environ.get(TOKEN, ""), **options)
        except (pymilvus.MilvusException, ModuleNotFoundError) as error:
            if address.embedded and find_spec("milvus_lite") is None:
                raise MissingExtraError("a datastore in a file of Milvus Lite", "milvus") from error
            why = "; one process at a time can open it: is it open in another?" if address.embedded else ""
            raise PackError(f"{address.server}: cannot be opened: {error}{why}") from error

    def exists(self) -> bool:
        """Return whether it has been created."""
        return bool(self._call("has_collection"))

    def is_unfinished(self) -> bool:
        """Return whether it was to be filled at one go, and that has not come to an end."""
        return bool(self.properties().get("recap.unfinished"))

    def require_free(self) -> None:
        """Raise ``InputError`` unless a new collection may have this name."""
        if self.exists() and not self.is_unfinished():
            raise InputError(f"{self.address.url}: there is such a collection already; name another one")

    def create(self, dimension: int, properties: dict[str, str]) -> None:
        """Create it, empty."""
        pymilvus = require_pymilvus()
        kinds, index = pymilvus.DataType, properties["recap.index"]
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimension)
        for name in ("text", "source", "image_id"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST)
        schema.add_field("synthetic", kinds.BOOL)
        indexes = self._client.prepare_index_params()
        indexes.add_index("vector", index_type=index, metric_type="IP", params=INDEXES[index][0])
        self._call("create_collection", schema=schema, properties=properties, consistency_level="Strong")
        # there is nothing to wait for: the collection is empty
        self._call("create_index", index_params=indexes, sync=False)

    def drop(self) -> None:
        """Delete it with all captions."""
        self._call("drop_collection")

    def load(self) -> None:
        """Make it ready for searching."""
        self._call("load_collection")

    def properties(self) -> dict[str, str]:
        """Return what is known about it as a whole."""
        described = self._call("describe_collection")
        return {name: str(value) for name, value in dict(described.get("properties") or {}).items()}

    def set_properties(self, **values: str) -> None:
        """Change some of its properties."""
        self._call("alter_collection_properties", properties={f"recap.{name}": text for name, text in values.items()})

    def count(self, condition: str = "") -> int:
        """Return how many captions fit."""
        return int(self._call("query", filter=condition, output_fields=["count(*)"])[0]["count(*)"])

    def insert(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add captions."""
        step = max(1, MESSAGE_BYTES // (4 * len(rows[0]["vector"]))) if rows else 1
        for start in range(0, len(rows), step):
            self._call("insert", data=rows[start : start + step])

    def delete(self, ids: Ids) -> None:
        """Remove captions."""
        for start in range(0, len(ids), MOST):
            self._call("delete", ids=ids[start : start + MOST].tolist())

    def get(self, ids: Ids, fields: Sequence[str], step: int) -> dict[int, dict[str, Any]]:
        """Return fields of captions by id; an id that is not there raises ``InputError``."""
        found: dict[int, dict[str, Any]] = {}
        wanted = np.unique(ids)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step].tolist()
            for row in self._call("query", filter=f"id in {part}", output_fields=["id", *fields]):
                found[int(row["id"])] = row
        missing = [id for id in wanted.tolist() if id not in found]
        if missing:
            raise InputError(f"no caption has the id {missing[0]}")
        return found

    def between(self, first: int, end: int, condition: str, fields: Sequence[str]) -> list[dict[str, Any]]:
        """Return those of the captions from one id to below another that fit, in order; at most ``MOST`` of them."""
        wanted = f"id >= {first} and id < {end}" + (f" and {condition}" if condition else "")
        rows = self._call("query", filter=wanted, output_fields=["id", *fields])
        return sorted(rows, key=lambda row: int(row["id"]))

    def search(self, queries: Vectors, count: int, condition: str, index: str, fields: Sequence[str]) -> list[Any]:
        """Return for each query the hits, best first."""
        params = dict(INDEXES[index][1])
        if "ef" in params:
            params["ef"] = max(params["ef"], 2 * count)
        hits: list[Any] = self._call(
            "search",
            data=list(queries),
            anns_field="vector",
            limit=count,
            filter=condition,
            search_params={"metric_type": "IP", "params": params},
            output_fields=list(fields),
        )
        return hits

    def flush(self) -> None:
        """Bring what was inserted to the disk."""
        self._call("flush")

    def compact(self) -> None:
        """Ask for the room of removed captions."""
        self._call("compact")

    def _call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(collection_name=self.name, **arguments)
        except self._error as error:
            raise PackError(f"{self.address.url}: {method} failed: {error}") from error


def condition(filters: Filters, image_ids: Names | None = None) -> str | None:
    """Return filters as Milvus wants them; None when nothing can pass."""
    parts = []
    for field, wanted in (("source", filters.sources), ("image_id", None if image_ids is None else names(image_ids))):
        if wanted is not None:
            if not wanted:
                return None
            parts.append(f"{field} in {_listed(wanted)}")
    if filters.exclude_sources:
        parts.append(f"source not in {_listed(filters.exclude_sources)}")
    if filters.synthetic is not None:
        parts.append(f"synthetic == {'true' if filters.synthetic else 'false'}")
    return " and ".join(parts)


def encode_center(center: Vectors | None) -> str:
    """Return a centre as a property."""
    return "" if center is None else base64.b64encode(center.astype("<f4").tobytes()).decode()


def decode_center(text: str) -> Vectors | None:
    """Return the centre that a property holds."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32) if text else None


def encode_names(given: Iterable[str]) -> str:
    """Return names as a property."""
    return json.dumps(sorted(given), ensure_ascii=False)


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, sorted(values)))}]"


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def require_pymilvus() -> Any:
    """Return the library, or raise ``MissingExtraError``."""
    try:
        return import_module("pymilvus")
    except ImportError as error:
        raise MissingExtraError("a datastore in Milvus", "milvus") from error


ASK = 64
"""So many queries are asked at a time: what they find comes with its vectors."""


def search(
    collection: Collection,
    index: str,
    queries: Vectors,
    k: int,
    condition: str | None,
    unwanted: list[frozenset[str]] | None,
) -> tuple[Ids, Vectors]:
    """Return ids and similarities of the ``k`` nearest that fit ``condition`` (None: nothing does).

    ``unwanted`` names the images that each query leaves out.
    """
    ids, similarities = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
    for start in range(0, len(queries), ASK):
        piece = slice(start, start + ASK)
        found = _Search(collection, index, queries[piece], condition, unwanted and unwanted[piece])
        ids[piece], similarities[piece] = found.ranked(k)
    return ids, similarities


class _Search:
    """A few queries, and what was found for them so far."""

    def __init__(
        self,
        collection: Collection,
        index: str,
        queries: Vectors,
        condition: str | None,
        unwanted: list[frozenset[str]] | None,
    ) -> None:
        self._collection, self._index, self._queries = collection, index, queries
        self._condition, self._unwanted = condition, unwanted
        self._seen: dict[int, tuple[Vectors, str]] = {}
        """Vector and image of each caption that was proposed."""

    def ranked(self, k: int) -> tuple[Ids, Vectors]:
        """Return ids and similarities of the ``k`` best."""
        dimension = self._queries.shape[1]
        result = rank(
            self._propose,
            self._queries,
            k,
            error=dot_error(dimension) if self._index == "FLAT" else float("inf"),
            available=MOST if self._condition is not None else 0,
            spare=0 if self._unwanted is None else SPARE,
            rescore=self._rescore,
        )
        return result.ids, result.similarities

    def _propose(self, asked: Vectors, count: int) -> tuple[Ids, Vectors]:
        ids = np.full((len(asked), count), -1, dtype=np.int64)
        similarities = np.full((len(asked), count), -np.inf, dtype=np.float32)
        fields = ("vector", "image_id")
        hits = self._collection.search(asked, count, self._condition or "", self._index, fields)
        for row, found in enumerate(hits):
            for column, hit in enumerate(found):
                id, entity = int(hit["id"]), hit["entity"]
                ids[row, column], similarities[row, column] = id, hit["distance"]
                self._seen[id] = (np.asarray(entity["vector"], dtype=np.float32), entity["image_id"])
        return ids, similarities

    def _rescore(self, numbers: npt.NDArray[np.intp], ids: Ids) -> Vectors:
        if self._unwanted is not None:
            ids = sifted(ids, [self._unwanted[number] for number in numbers], self._images)
        return dot_products(self._queries[numbers], ids, self._vectors)

    def _images(self, ids: Ids) -> npt.NDArray[np.object_]:
        return np.array([self._seen[id][1] for id in ids.tolist()], dtype=object)

    def _vectors(self, ids: Ids) -> Vectors:
        return stacked((self._seen[id][0] for id in ids.tolist()), self._queries.shape[1])


def stacked(rows: Iterable[npt.ArrayLike], dimension: int) -> Vectors:
    """Return rows as a matrix, also when there are none."""
    return np.array(list(rows), dtype=np.float32).reshape(-1, dimension)
