"""Captions with their vectors: add, remove, filter, and find the nearest to an image."""

from recap.datastore.base import CaptionRow, CaptionStore, SearchResult
from recap.datastore.diskstore import DiskStore
from recap.datastore.index import (
    ApproximateArguments,
    DiskArguments,
    FlatArguments,
    HalfArguments,
    IndexArguments,
    VectorIndex,
)
from recap.datastore.mutable import MutableStore
from recap.datastore.store import Datastore
from recap.datastore.unimodal import ImageTable
from recap.datastore.view import DatastoreView, open_store

__all__ = [
    "ApproximateArguments",
    "CaptionRow",
    "CaptionStore",
    "Datastore",
    "DatastoreView",
    "DiskArguments",
    "DiskStore",
    "FlatArguments",
    "HalfArguments",
    "ImageTable",
    "IndexArguments",
    "MutableStore",
    "SearchResult",
    "VectorIndex",
    "open_store",
]
