"""Captions with their vectors: add, remove, filter, and find the nearest to an image."""

from recap.datastore.base import CaptionRow, CaptionStore, SearchResult
from recap.datastore.index import ApproximateArguments, FlatArguments, HalfArguments, IndexArguments, VectorIndex
from recap.datastore.store import Datastore
from recap.datastore.unimodal import ImageTable
from recap.datastore.view import DatastoreView

__all__ = [
    "ApproximateArguments",
    "CaptionRow",
    "CaptionStore",
    "Datastore",
    "DatastoreView",
    "FlatArguments",
    "HalfArguments",
    "ImageTable",
    "IndexArguments",
    "SearchResult",
    "VectorIndex",
]
