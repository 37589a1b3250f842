"""The calls to one collection of Milvus, and the address it has."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Excluded, Filters, Ids, Names, names
from recap.datastore.ranking import dot_error, rank
from recap.datastore.view import MILVUS
from recap.errors import InputError, MissingExtraError, PackError
from recap.types import Vectors

DEFAULT_COLLECTION = "captions"
MILVUS_INDEXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FLAT": ({}, {}),
    "AUTOINDEX": ({}, {}),
    "HNSW": ({"M": 16, "efConstruction": 200}, {"ef": 256}),
    "IVF_FLAT": ({"nlist": 1024}, {"nprobe": 64}),
    "IVF_SQ8": ({"nlist": 1024}, {"nprobe": 64}),
    "DISKANN": ({}, {"search_list": 256}),
}
"""Kinds of index that can be asked for, with what they are built and searched with."""

TOKEN = "RECAP_MILVUS_TOKEN"
"""The environment variable with the token, or user:password, of a server that asks for one."""

MOST = 16_384
"""The most rows that Milvus returns at once."""
GET = 1024
"""Captions that are fetched by id at a time."""
LONGEST = 65_535
"""Bytes of the longest text that fits."""
PATIENCE = 120
"""Seconds for which a server is waited for that does not answer any more."""

LITE_OPTIONS = {"grpc.keepalive_time_ms": 600_000, "grpc.keepalive_permit_without_calls": False}
"""For the server of a file: it takes the client's usual signs of life for an attack, and hangs up."""
AWAY = frozenset({1, 2, 101, 103, 401, 503, 901, 902})
"""What Milvus and its client say while a server starts: not ready, no connection, collection or node not there yet."""


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
        options = {name: values[-1] for name, values in parse_qs(query).items()}
        index = options.get("index", "").upper()
        collections = tuple(name for name in options.get("collection", DEFAULT_COLLECTION).split(",") if name)
        if not url.startswith(MILVUS) or options.keys() - {"collection", "index"} or not collections:
            raise InputError(
                f"{url}: not an address such as milvus:./captions.db or milvus:http://host:19530?collection=a"
            )
        if index and index not in MILVUS_INDEXES:
            raise InputError(f"{url}: unknown index {index}; choose one of {', '.join(MILVUS_INDEXES)}")
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

    @property
    def whole(self) -> str:
        """The address with the index that is to be made."""
        return f"{self.url}&index={self.index}" if self.index else self.url


def milvus_condition(filters: Filters, image_ids: Names | None = None) -> str | None:
    """Return filters as Milvus wants them; None when nothing can pass."""
    parts = []
    for field, wanted in (("source", filters.sources), ("image_id", None if image_ids is None else names(image_ids))):
        if wanted is not None:
            if not wanted:
                return None
            parts.append(f"{field} in {_quote(wanted)}")
    if filters.exclude_sources:
        parts.append(f"source not in {_quote(filters.exclude_sources)}")
    if filters.synthetic is not None:
        parts.append(f"synthetic == {'true' if filters.synthetic else 'false'}")
    return " and ".join(parts)


def _quote(values: Iterable[str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    return "[" + ", ".join(f'"{value.translate(escapes)}"' for value in sorted(values)) + "]"


class Collection:
    """The calls that a store makes to one collection: an id, a unit vector, and what is known about each caption."""

    def __init__(self, address: Address, *, new: bool = False) -> None:
        """Connect; ``new`` makes the file of Milvus Lite if there is none."""
        pymilvus = require_pymilvus()
        # what it has to say it also raises
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if address.embedded and new:
            Path(address.server).parent.mkdir(parents=True, exist_ok=True)
        elif address.embedded and not Path(address.server).exists():
            raise PackError(f"{address.url}: there is no such file")
        self.address = address
        self._errors = (pymilvus.MilvusException, import_module("grpc").RpcError)
        try:
            options = {"grpc_options": LITE_OPTIONS} if address.embedded else {}
            self.client = pymilvus.MilvusClient(address.server, token=os.environ.get(TOKEN, ""), **options)
        except (*self._errors, ModuleNotFoundError) as error:
            if address.embedded and find_spec("milvus_lite") is None:
                raise MissingExtraError("a datastore in a file of Milvus Lite", "milvus") from error
            why = "; one process at a time can open it: is it open in another?" if address.embedded else ""
            raise PackError(f"{address.server}: cannot be opened: {error}{why}") from error

    def call(self, method: str, **arguments: Any) -> Any:
        """Call the server; one that is being started again is waited for."""
        end = time.monotonic() + (0 if self.address.embedded else PATIENCE)
        while True:
            try:
                return getattr(self.client, method)(collection_name=self.address.collections[0], **arguments)
            except self._errors as error:
                if getattr(error, "code", None) not in AWAY or time.monotonic() > end:
                    raise PackError(f"{self.address.url}: {method} failed: {error}") from error
            # nobody knows whether captions have arrived, and Milvus keeps two with one id as two
            method = "upsert" if method == "insert" else method
            time.sleep(0.5)

    def create(self, dimension: int, properties: dict[str, str]) -> None:
        """Make it, with its index."""
        kinds, index = require_pymilvus().DataType, properties["index"]
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimension)
        for name in ("text", "source", "image_id"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST)
        schema.add_field("synthetic", kinds.BOOL)
        indexes = self.client.prepare_index_params()
        indexes.add_index("vector", index_type=index, metric_type="IP", params=MILVUS_INDEXES[index][0])
        known = {f"recap.{name}": value for name, value in properties.items()}
        self.call("create_collection", schema=schema, properties=known, consistency_level="Strong")
        # there is nothing to wait for: the collection is empty
        self.call("create_index", index_params=indexes, sync=False)

    def properties(self) -> dict[str, str]:
        """Return what recap keeps with the collection."""
        known = dict(self.call("describe_collection").get("properties") or {})
        return {name.removeprefix("recap."): str(known[name]) for name in known if name.startswith("recap.")}

    def set_properties(self, **values: str) -> None:
        """Change some of it."""
        self.call("alter_collection_properties", properties={f"recap.{name}": text for name, text in values.items()})

    def require_free(self) -> None:
        """Raise ``InputError`` unless a new collection may have this name."""
        if self.call("has_collection") and not self.properties().get("unfinished"):
            raise InputError(f"{self.address.url}: there is such a collection already; name another one")

    def count(self, condition: str = "") -> int:
        """Return how many captions pass ``condition``."""
        return int(self.call("query", filter=condition, output_fields=["count(*)"])[0]["count(*)"])

    def window(self, first: int, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        """Return fields of the captions that pass ``condition`` among the ids from ``first`` on, as many as may be."""
        within = f"id >= {first} and id < {first + MOST}" + (f" and {condition}" if condition else "")
        rows: list[dict[str, Any]] = self.call("query", filter=within, output_fields=fields)
        return rows

    def get(self, ids: npt.ArrayLike, fields: Sequence[str], step: int = GET) -> list[dict[str, Any]]:
        """Return fields of captions by id; an id that is not there raises ``InputError``."""
        found: dict[int, dict[str, Any]] = {}
        wanted = np.asarray(ids, dtype=np.int64).tolist()
        unique = sorted(set(wanted))
        for start in range(0, len(unique), step):
            rows = self.call("query", filter=f"id in {unique[start : start + step]}", output_fields=["id", *fields])
            found |= {int(row["id"]): row for row in rows}
        for id in unique:
            if id not in found:
                raise InputError(f"no caption has the id {id}")
        return [found[id] for id in wanted]

    def search(
        self, queries: Vectors, k: int, index: str, condition: str | None, exclude: Excluded | None
    ) -> tuple[Ids, Vectors]:
        """Return ids and similarities of the ``k`` nearest that pass ``condition`` (None: nothing does).

        Milvus proposes them; they are scored again and put in order here.
        """
        seen: dict[int, dict[str, Any]] = {}
        shape = (-1, queries.shape[1])

        def propose(asked: Vectors, count: int) -> tuple[Ids, Vectors]:
            params = MILVUS_INDEXES[index][1]
            params = {**params, "ef": max(params["ef"], 2 * count)} if "ef" in params else params
            found = self.call(
                "search",
                data=list(asked),
                anns_field="vector",
                limit=count,
                filter=condition,
                # what this process has added is found; to wait for what others add would take a tick of the server
                consistency_level="Session",
                search_params={"metric_type": "IP", "params": params},
                output_fields=["vector", "image_id"],
            )
            ids = np.full((len(asked), count), -1, dtype=np.int64)
            similarities = np.full((len(asked), count), -np.inf, dtype=np.float32)
            for row, hits in enumerate(found):
                seen.update((int(hit["id"]), hit["entity"]) for hit in hits)
                ids[row, : len(hits)] = [int(hit["id"]) for hit in hits]
                similarities[row, : len(hits)] = [hit["distance"] for hit in hits]
            return ids, similarities

        return rank(
            propose,
            queries,
            k,
            error=dot_error(queries.shape[1]) if index == "FLAT" else float("inf"),
            available=0 if condition is None else MOST,
            vectors=lambda ids: np.array([seen[id]["vector"] for id in ids.tolist()], np.float32).reshape(shape),
            images=lambda ids: np.array([seen[id]["image_id"] for id in ids.tolist()], dtype=object),
            exclude=exclude,
        )


def require_pymilvus() -> Any:
    """Import the client of Milvus, or say which extra brings it."""
    try:
        return import_module("pymilvus")
    except ImportError as error:
        raise MissingExtraError("a datastore in Milvus", "milvus") from error
