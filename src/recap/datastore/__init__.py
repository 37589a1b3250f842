"""Captions with their vectors: add, remove, filter, and find the nearest to an image."""

from recap.datastore.base import CaptionRow, CaptionStore, MutableStore, SearchResult
from recap.datastore.index import (
    ApproximateArguments,
    DiskArguments,
    FlatArguments,
    HalfArguments,
    IndexArguments,
    VectorIndex,
)
from recap.datastore.store import Datastore, DiskStore
from recap.datastore.view import DatastoreView, ImageTable, open_store

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
