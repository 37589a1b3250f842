"""Pictures found by a text: both are compared in caption space, through the map of a pack.

Vectors are kept in a cache, and files are known there by path, size and time, so that searching a folder again reads
no picture. Of a pack only what is needed is loaded: the text encoder, the map, and for new pictures the image encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from recap.alignment import LinearAlignment
from recap.alignment.rows import centre_rows
from recap.assets import cache_dir
from recap.datasets.images import find_image_names
from recap.encoders.base import ImageEncoder, TextEncoder
from recap.encoders.cache import VectorCache, file_state
from recap.errors import ImageError, InputError
from recap.files import file_sha256, progress_bar
from recap.packs.config import PackConfig
from recap.packs.folder import ALIGNMENT, find
from recap.types import Found, Vectors, unit_rows

if TYPE_CHECKING:
    from recap.packs.base import Pack

KEPT_EVERY = 64
"""Pictures after which new vectors are written to the cache: an interrupted run loses no more."""


@dataclass(frozen=True, slots=True, eq=False)
class PictureIndex:
    """Pictures as points of caption space."""

    paths: tuple[str, ...]
    vectors: Vectors
    problems: tuple[ImageError, ...] = ()
    """Why some pictures are not there, each with its name."""

    def rank(self, query: Vectors, k: int) -> list[tuple[int, float]]:
        """Return the places of the pictures nearest to a point of caption space, and their cosines, best first."""
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        similarities = self.vectors @ query
        best = np.argsort(-similarities, kind="stable")[:k]
        return list(zip(best.tolist(), similarities[best].tolist(), strict=True))

    def nearest(self, query: Vectors, k: int) -> tuple[Found, ...]:
        """Return the pictures nearest to a point of caption space, best first."""
        return tuple(Found(self.paths[place], similarity) for place, similarity in self.rank(query, k))


@dataclass(frozen=True, slots=True)
class PictureSearch:
    """The parts of a captioner that a search needs; the encoders are loaded when they are first called."""

    alignment: LinearAlignment
    image_fingerprint: str
    image_side: Callable[[], ImageEncoder]
    text_side: Callable[[], TextEncoder]

    @classmethod
    def of(cls, pack: Pack) -> Self:
        """Return the search of a captioner in memory."""
        encoder = pack.encoder
        return cls(pack.alignment, encoder.image.fingerprint, lambda: encoder.image, lambda: encoder.text)

    @classmethod
    def load(cls, name: str | Path, *, device: str = "cpu", progress: bool = False) -> Self:
        """Load what a search needs of a pack: a folder, a name on the hub, or ``builtin``."""
        config = PackConfig.read(find(name, progress=progress))
        alignment = LinearAlignment.load(config.folder / ALIGNMENT)
        image, text = once(partial(config.load_image_side, device)), once(partial(config.load_text_side, device))
        return cls(alignment, config.image_fingerprint, image, text)

    def index(
        self, pictures: str | Path | Iterable[str | Path], *, cache: str | Path | None = None, progress: bool = False
    ) -> PictureIndex:
        """Return the pictures of a folder, or those that paths, folders and glob patterns name.

        ``cache`` is the file of vectors, None keeps none; a bar shows how many of the new ones are done.
        """
        given = [pictures] if isinstance(pictures, str | Path) else pictures
        paths = list(find_image_names(given))
        dimension = len(self.alignment.image_mean_)
        store = VectorCache(cache) if cache is not None else None
        known = store.get_files(self.image_fingerprint, paths, dimension) if store else {}
        problems: list[ImageError] = []
        for path, vector in self._encode([path for path in paths if path not in known], store, progress):
            if isinstance(vector, ImageError):
                problems.append(vector)
            else:
                known[path] = vector
        if store is not None:
            store.close()
        there = tuple(path for path in paths if path in known)
        rows = np.array([known[path] for path in there], np.float32).reshape(-1, dimension)
        # one product for all: ranks do not mind a rounding that depends on the other pictures
        mapped = centre_rows(rows, self.alignment.image_mean_) @ self.alignment.W_.T
        return PictureIndex(there, unit_rows(mapped, otherwise=0.0), tuple(problems))

    def search(self, text: str, index: PictureIndex, k: int = 20) -> tuple[Found, ...]:
        """Return the pictures of an index that a text describes best, best first."""
        return index.nearest(self.query(text), k)

    def query(self, text: str) -> Vectors:
        """Return a text as a point of caption space."""
        if not text.strip():
            raise InputError("an empty text finds nothing: say what the picture should show")
        row: Vectors = self.alignment.transform_texts(self.text_side().encode_texts([text]))[0]
        return row

    def _encode(
        self, paths: Sequence[str], store: VectorCache | None, progress: bool
    ) -> Iterator[tuple[str, Vectors | ImageError]]:
        """Yield new pictures with their vectors, and keep these."""
        if not paths:
            return
        states = {path: file_state(path) for path in paths}
        bar = progress_bar(paths, progress=progress, unit="image")
        encoded = zip(bar, self.image_side().encode_each(paths), strict=True)
        while part := list(islice(encoded, KEPT_EVERY)):
            yield from part
            if store is not None:
                self._keep(store, {path: row for path, row in part if not isinstance(row, ImageError)}, states)

    def _keep(self, store: VectorCache, vectors: dict[str, Vectors], states: dict[str, str]) -> None:
        same: dict[str, bytes] = {}
        for path in vectors:
            with suppress(OSError):
                content = bytes.fromhex(file_sha256(Path(path)))
                # of a file that has changed meanwhile it is not known what was encoded
                if states[path] == file_state(path):
                    same[path] = content
        store.put(self.image_fingerprint, {content: vectors[path] for path, content in same.items()})
        store.put_files({path: (states[path], content) for path, content in same.items()})


def default_cache() -> Path:
    """Return the file of vectors that the commands share."""
    return cache_dir() / "vectors.sqlite"
