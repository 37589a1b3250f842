"""Pictures found by a text: both are compared in caption space, through the map of a pack.

Vectors are kept in a cache, and files are known there by path, size and time, so that searching a folder again reads
no picture. Of many pictures the points of caption space are kept as well, in one file that is mapped into memory. Of a
pack only what is needed is loaded: the text encoder, the map, and for new pictures the image encoder.
"""

from __future__ import annotations

import hashlib
import os
import zlib
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
from recap.datasets.images import find_image_names
from recap.encoders.base import ImageEncoder, TextEncoder
from recap.encoders.cache import VectorCache, file_state
from recap.errors import DiskFullError, ImageError, InputError
from recap.files import atomic_write, file_sha256, progress_bar
from recap.packs.config import PackConfig
from recap.packs.folder import ALIGNMENT, find
from recap.types import Found, Vectors, unit_rows

if TYPE_CHECKING:
    from recap.packs.base import Pack

KEPT_EVERY = 64
"""Pictures after which new vectors are written to the cache: an interrupted run loses no more."""
MANY = 1000
"""Pictures from which on their points are kept: to look up and map their vectors takes longer than all the rest."""


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
        given = [pictures] if isinstance(pictures, str | Path) else list(pictures)
        paths = list(find_image_names(given))
        if cache is None or len(paths) < MANY:
            return self._index(paths, cache, progress)
        name = hashlib.sha256("\0".join(map(os.path.abspath, given)).encode(errors="surrogatepass")).hexdigest()[:16]
        state, file = self._state(paths), Path(cache).with_name(f"points-{name}.f4")
        points = _read_points(file, state, (len(paths), len(self.alignment.text_mean_)))
        if points is not None:
            return PictureIndex(tuple(paths), points)
        index = self._index(paths, cache, progress)
        if not index.problems and state == self._state(paths):
            _write_points(file, state, index.vectors)
        return index

    def _index(self, paths: Sequence[str], cache: str | Path | None, progress: bool) -> PictureIndex:
        """Return pictures as points: vectors from the cache where they are known, encoded and kept there otherwise."""
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

    def _state(self, paths: Sequence[str]) -> bytes:
        """Return a checksum of encoder and map, and of the names, sizes and times of files."""
        digest = hashlib.sha256(self.image_fingerprint.encode())
        for part in (self.alignment.image_mean_, self.alignment.W_):
            digest.update(np.ascontiguousarray(part).data)
        facts = [os.getcwd(), *(f"{path}\0{file_state(path)}" for path in paths)]  # noqa: PTH109
        digest.update("\0".join(facts).encode(errors="surrogatepass"))
        return digest.digest()

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
        encoder = self.image_side()  # loaded before the bar begins to count
        bar = progress_bar(paths, progress=progress, unit="image")
        encoded = zip(bar, encoder.encode_each(paths), strict=True)
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


def _read_points(file: Path, state: bytes, shape: tuple[int, int]) -> Vectors | None:
    """Return the points that were written for these pictures as they are now, mapped into memory; None without them."""
    try:
        content = np.memmap(file, np.uint8, "r")
    except (OSError, ValueError):
        return None
    head, rows = bytes(content[: len(state) + 4]), content[len(state) + 4 :]
    if head != state + zlib.crc32(rows.data).to_bytes(4, "little") or rows.size != 4 * shape[0] * shape[1]:
        return None
    points: Vectors = np.frombuffer(rows, "<f4").reshape(shape)
    return points


def _write_points(file: Path, state: bytes, points: Vectors) -> None:
    rows = np.ascontiguousarray(points, "<f4").tobytes()
    # where nothing can be written the next search takes a little longer
    with suppress(OSError, DiskFullError), atomic_write(file) as target:
        target.write(state + zlib.crc32(rows).to_bytes(4, "little") + rows)
