"""What all encoders share: look-ahead decoding in threads, batches, unit length, the vector cache."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from recap.encoders import images as pictures
from recap.encoders.inputs import label, read, several
from recap.encoders.preprocess import Pixels
from recap.errors import ImageError, InputError, RecapError
from recap.files import progress_bar
from recap.types import ImageLike, Vectors, unit_rows

if TYPE_CHECKING:
    from recap.encoders.cache import VectorCache

_TEXT_CHUNK = 2048


@contextmanager
def unjoined_pool(threads: int, prefix: str) -> Iterator[ThreadPoolExecutor]:
    """Give threads to a generator, and at its end wait for none of them.

    The garbage collector may end a generator in the midst of starting or ending a thread, which would then wait for
    itself.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=prefix)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def cores() -> int:
    """Return how many processor cores this process may use: all it can have, or as few as ``OMP_NUM_THREADS`` says."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # a list is for nested parallelism, its first number for the outermost
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(there, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else there


def fingerprint_of(*parts: str) -> str:
    """Return the sha256 of all that decides about an encoder's vectors."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A picture on its way: its cached vector, or the array the network will read, or what is wrong with it."""

    name: str
    content: bytes | None = None
    vector: Vectors | None = None
    pixels: Pixels | None = None
    error: ImageError | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How much of each row is asked for, and under which name the cache keeps that."""

    width: int
    fingerprint: str

    @classmethod
    def of(cls, encoder: BatchedImageEncoder, details: bool) -> _Wanted:
        if not details:
            return cls(encoder.dimension, encoder.fingerprint)
        return cls(encoder.dimension + encoder.details, fingerprint_of("details", encoder.fingerprint))


@dataclass(kw_only=True, eq=False)
class BatchedImageEncoder(ABC):
    """Base of the image encoders. A subclass gives ``preprocess`` and ``forward``.

    Pictures are decoded by a few threads while the network is at work on the batch before, at most two batches ahead,
    so memory stays bounded however many pictures come.
    """

    name: str
    fingerprint: str
    dimension: int
    shorter_side: int
    """The size pictures are scaled to; larger JPEGs need not be decoded in full."""
    batch_size: int
    cache: VectorCache | None
    details: int = 0
    """How many numbers behind the vector say more of a picture."""
    sight: str = ""
    """The fingerprint of what these numbers mean."""

    @abstractmethod
    def preprocess(self, picture: Image.Image) -> Pixels:
        """Return the array the network reads for an upright RGB picture. Runs in several threads."""

    @abstractmethod
    def forward(self, batch: Pixels) -> Vectors:
        """Return one row for each preprocessed picture: a vector of any length, and its details."""

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return one unit row for each image; the first unreadable one raises ``ImageError``."""
        rows = np.empty((len(images), self.dimension), np.float32)
        results = self.encode_each(images)
        bar = progress_bar(results, total=len(images), unit="image", progress=progress)
        for row, result in zip(rows, bar, strict=True):
            if isinstance(result, ImageError):
                raise result
            row[:] = result
        return rows

    def encode_each(self, images: Iterable[ImageLike], *, details: bool = False) -> Iterator[Vectors | ImageError]:
        """Yield for each image, in order, its vector or the reason why there is none; on request with details."""
        return self._encode_each(several(images), _Wanted.of(self, details and self.details > 0))

    def _encode_each(self, images: Iterator[ImageLike], wanted: _Wanted) -> Iterator[Vectors | ImageError]:
        ahead: deque[Future[_Prepared]] = deque()
        with unjoined_pool(min(cores(), 8), "recap-decode") as pool:
            ahead.extend(pool.submit(self._prepare, image, wanted) for image in islice(images, 2 * self.batch_size))
            while ahead:
                batch = [ahead.popleft().result() for _ in range(min(self.batch_size, len(ahead)))]
                ahead.extend(pool.submit(self._prepare, image, wanted) for image in islice(images, len(batch)))
                yield from self._finish(batch, wanted)

    def _prepare(self, image: ImageLike, wanted: _Wanted) -> _Prepared:
        """Read, look up, decode and preprocess one picture."""
        name = "image"
        try:
            content = read(image)
            name = label(image)
            key = None
            if self.cache is not None:
                key = pictures.digest(content, name)
                if (known := self._look_up(self.cache, key, wanted)) is not None:
                    return _Prepared(name, key, vector=known)
            picture = pictures.decode_content(content, name, self.shorter_side)
            return _Prepared(name, key, pixels=self.preprocess(picture))
        except ImageError as error:
            return _Prepared(name, error=error)

    def _look_up(self, cache: VectorCache, key: bytes, wanted: _Wanted) -> Vectors | None:
        """Return what the cache has of a picture; a row with details serves where none are wanted."""
        for way in dict.fromkeys((wanted, _Wanted.of(self, self.details > 0))):
            if way.width >= wanted.width and (found := cache.get(way.fingerprint, [key], way.width)):
                return found[key][: wanted.width]
        return None

    def _finish(self, batch: list[_Prepared], wanted: _Wanted) -> Iterator[Vectors | ImageError]:
        """Run the network on what is left of a batch, keep the new vectors, and yield all results in order."""
        waiting = [item for item in batch if item.pixels is not None]
        fresh: dict[int, Vectors] = {}
        if waiting:
            rows = self.forward(np.stack([item.pixels for item in waiting if item.pixels is not None]))
            rows = np.concatenate(
                [unit_rows(rows[:, : self.dimension]), rows[:, self.dimension : wanted.width]], axis=1
            )
            fresh = {id(item): row for item, row in zip(waiting, rows, strict=True)}
        if self.cache is not None:
            new = {item.content: fresh[id(item)] for item in waiting if item.content is not None}
            self.cache.put(wanted.fingerprint, {key: row for key, row in new.items() if np.isfinite(row).all()})
        for item in batch:
            if item.error is not None:
                yield item.error
                continue
            vector = item.vector if item.vector is not None else fresh[id(item)]
            finite = np.isfinite(vector).all()
            yield vector if finite else ImageError(f"{item.name}: {self.name} gave a vector without direction")


class Preprocessing(Protocol):
    """A way to turn a picture into the array a network reads; two that are equal give the same."""

    @property
    def size(self) -> int:
        """The side pictures are scaled to."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what a call returns."""
        ...

    def __call__(self, picture: Image.Image) -> Pixels:
        """Return the array."""
        ...


@dataclass(kw_only=True, eq=False)
class SingleImageEncoder(BatchedImageEncoder):
    """Base of the image encoders that are one network with one way of preprocessing; a subclass gives ``forward``."""

    preprocessing: Preprocessing = field(kw_only=False)
    shorter_side: int = field(init=False)

    def __post_init__(self) -> None:
        self.shorter_side = self.preprocessing.size

    def preprocess(self, picture: Image.Image) -> Pixels:
        """Scale, crop and normalise."""
        return self.preprocessing(picture)


@dataclass(kw_only=True, eq=False)
class CachedTextEncoder(ABC):
    """Base of the text encoders. A subclass gives ``tokenize`` and ``forward``."""

    name: str
    fingerprint: str
    dimension: int
    cache: VectorCache | None
    truncated: int = 0
    """How many texts so far were longer than the window and have been cut before the end token."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> tuple[Sequence[Any], int]:
        """Return what ``forward`` reads for each text, and how many texts had to be cut."""

    @abstractmethod
    def forward(self, tokens: Sequence[Any]) -> Vectors:
        """Return one row for each tokenized text, of any length, independent of the others."""

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text."""
        if isinstance(texts, str):
            raise InputError("texts must be several texts; put a single one in a list")
        rows = np.empty((len(texts), self.dimension), np.float32)
        with progress_bar(total=len(texts), unit="text", progress=progress) as bar:
            for start in range(0, len(texts), _TEXT_CHUNK):
                chunk = texts[start : start + _TEXT_CHUNK]
                rows[start : start + len(chunk)] = self._encode_chunk(chunk)
                bar.update(len(chunk))
        return rows

    def _encode_chunk(self, texts: Sequence[str]) -> Vectors:
        keys = [_text_digest(text) for text in texts]
        # cached texts are tokenized too: how many were cut must not depend on what has been encoded before
        tokens, cut = self.tokenize(texts)
        self.truncated += cut
        known = {} if self.cache is None else self.cache.get(self.fingerprint, keys, self.dimension)
        missing = [i for i, key in enumerate(keys) if key not in known]
        if missing:
            rows = unit_rows(self.forward([tokens[i] for i in missing]))
            for i, row in zip(missing, rows, strict=True):
                if not np.isfinite(row).all():
                    raise RecapError(f"{self.name} gave a vector without direction for the text {texts[i][:80]!r}")
            fresh = {keys[i]: row for i, row in zip(missing, rows, strict=True)}
            if self.cache is not None:
                self.cache.put(self.fingerprint, fresh)
            known |= fresh
        return np.stack([known[key] for key in keys])


def _text_digest(text: str) -> bytes:
    try:
        return hashlib.sha256(text.encode()).digest()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InputError(f"not a text that can be encoded: {text!r:.80}") from error
