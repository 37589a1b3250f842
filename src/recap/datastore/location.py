"""Where a store is: a folder, or an address."""

from __future__ import annotations

from pathlib import Path

from recap.datastore.diskstore import DiskStore
from recap.datastore.manifest import DISK, read_manifest
from recap.datastore.mutable import MutableStore
from recap.datastore.store import Datastore
from recap.datastore.view import DatastoreView

MILVUS = "milvus:"


def open_store(location: str | Path, *, verify: bool = False) -> MutableStore | DatastoreView:
    """Open the store in a folder, or at an address such as ``milvus:http://host:19530?collection=captions``.

    With several collections, separated by commas, it is a view of all of them. ``verify`` compares the sha256 of files.
    """
    if isinstance(location, str) and location.startswith(MILVUS):
        from recap.datastore.milvus import open_collections

        return open_collections(location)
    if read_manifest(Path(location)).index.get("kind") == DISK:
        return DiskStore(location, verify=verify)
    return Datastore.load(location, verify=verify)
