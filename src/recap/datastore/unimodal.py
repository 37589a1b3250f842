"""Retrieval from image to image: the captions of the pictures that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from recap.datastore.base import Excluded, SearchResult
from recap.datastore.index import IndexArguments
from recap.datastore.store import Datastore
from recap.errors import InputError
from recap.types import Vectors


class ImageTable:
    """Vectors of images under their names, beside a store that has their captions.

    Inside it is a store whose captions are the names, so that it is searched, saved and loaded in the same way.
    """

    def __init__(
        self,
        dimension: int,
        *,
        encoder: str = "",
        fingerprint: str = "",
        center: npt.ArrayLike | None = None,
        index: str | IndexArguments = "flat",
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self._images = Datastore(
            dimension, encoder=encoder, fingerprint=fingerprint, center=center, index=index, dtype=dtype
        )

    def __len__(self) -> int:
        return len(self._images)

    def __contains__(self, image_id: str) -> bool:
        return len(self._images.ids_of_images([image_id])[0]) > 0

    @property
    def fingerprint(self) -> str:
        """The image encoder's fingerprint."""
        return self._images.fingerprint

    def add_images(self, image_ids: Sequence[str], vectors: npt.ArrayLike) -> None:
        """Add the image encoder's rows; an image that is there already gets the new one."""
        if len(set(image_ids)) != len(image_ids):
            raise InputError("an image was given twice in one call")
        before = self._images.ids
        self._images.add(image_ids, vectors, image_ids=image_ids)
        known = np.concatenate([np.empty(0, np.int64), *self._images.ids_of_images(image_ids)])
        self._images.remove(np.intersect1d(known, before))

    def remove_images(self, image_ids: Sequence[str]) -> int:
        """Remove images by name, and return how many were there."""
        return self._images.remove_where(image_ids=image_ids)

    def search_images(
        self, queries: Vectors, k: int, *, exclude_image_ids: Excluded | None = None
    ) -> list[list[tuple[str, float]]]:
        """Return for each query the names of the ``k`` nearest images with their similarities, best first."""
        found = self._images.search(queries, k, exclude_image_ids=exclude_image_ids)
        pairs = zip(found.ids, found.similarities, strict=True)
        return [[(item.text, item.similarity) for item in self._images.evidence(*pair)] for pair in pairs]

    def search_captions(
        self, store: Datastore, queries: Vectors, k_images: int, *, exclude_image_ids: Excluded | None = None
    ) -> SearchResult:
        """Return the captions that ``store`` has of the ``k_images`` nearest images, with the images' similarities.

        The result has as many columns as the longest row needs.
        """
        rows = []
        for images in self.search_images(queries, k_images, exclude_image_ids=exclude_image_ids):
            captions = store.ids_of_images([name for name, _ in images])
            rows.append(
                [(int(id), similarity) for ids, (_, similarity) in zip(captions, images, strict=True) for id in ids]
            )
        width = max(map(len, rows), default=0)
        ids = np.full((len(rows), width), -1, dtype=np.int64)
        similarities = np.full((len(rows), width), -np.inf, dtype=np.float32)
        for number, row in enumerate(rows):
            if row:
                ids[number, : len(row)], similarities[number, : len(row)] = zip(*row, strict=True)
        return SearchResult(ids, similarities)

    def save(self, folder: str | Path) -> None:
        """Write the table to ``folder``, as ``Datastore.save`` does."""
        self._images.save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> ImageTable:
        """Read a table."""
        images = Datastore.load(folder)
        table = cls(images.dimension)
        table._images = images
        return table
