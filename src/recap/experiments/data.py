"""The data sets in a folder, encoded: pictures and captions as vectors, with the captions themselves.

``docs/experiments.md`` lists the files of each data set.

Where pictures are missing, ``NAME-vectors/`` may stand in for them (see ``recap.datasets.vectors``); the pictures that
have a vector are used. COCO without ``dataset_coco.json`` takes the captions of train2014 from an asset, and those of
the test split from ``coco/karpathy_test_references.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.alignment import GRADIENT_METHODS, LinearAlignment
from recap.alignment.rows import Indices
from recap.assets import vector_file
from recap.datasets import read_flickr8k
from recap.datasets.published import FRAMES as FRAMES_A_VIDEO
from recap.datasets.published import (
    VIEWS,
    read_coco_captions,
    read_karpathy_coco,
    read_karpathy_flickr30k,
    read_msrvtt,
    read_vizwiz,
    read_xrays,
)
from recap.datasets.vectors import IDS, PictureVectors
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.errors import ImageError, InputError
from recap.experiments.base import Setup
from recap.types import ImageLike, Pair, Vectors, unit_rows

DATA_SETS: dict[str, tuple[str, Callable[[Path, str], list[Pair]]]] = {
    "flickr8k": ("Flickr8k", read_flickr8k),
    "flickr30k": ("Flickr30k", read_karpathy_flickr30k),
    "coco": ("MS-COCO", read_karpathy_coco),
    "vizwiz": ("VizWiz", read_vizwiz),
    "msrvtt": ("MSRVTT", read_msrvtt),
    "xrays": ("chest x-rays", read_xrays),
}
"""By name: the title, as the paper writes it, and what reads a split."""
TITLES = {name: title for name, (title, _) in DATA_SETS.items()}
READERS = {name: reader for name, (_, reader) in DATA_SETS.items()}
FRAMES = {"msrvtt": FRAMES_A_VIDEO, "xrays": VIEWS}
"""How many pictures make up one item of a data set, where their ids are numbered behind ``#``."""


@dataclass(frozen=True)
class Split:
    """One split of a data set, encoded."""

    name: str
    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    images: Vectors
    texts: Vectors
    """One row a caption, in the order of the pictures."""
    pictures: tuple[ImageLike, ...] = ()
    """Where the pictures lie; some may be known by their vectors alone."""
    part: str = ""
    """Which split it is: train, dev or test."""
    frames: Vectors | None = None
    """Of videos and studies, whose ``images`` are means: for each frame or view, a row for each of them."""

    @property
    def title(self) -> str:
        """The data set and the split, as tables name them."""
        return f"{TITLES.get(self.name, self.name)} {self.part}"

    def titled(self, *parts: str) -> str:
        """Return the heading of a table: the split, what else its rows have in common, and how many pictures."""
        return ", ".join((self.title, *parts, f"{len(self.ids):,} pictures"))

    @property
    def can_be_seen(self) -> bool:
        """Whether the pictures are at hand, and each is one item."""
        first = self.pictures[0] if self.pictures and self.frames is None else None
        return isinstance(first, str | Path) and Path(first).exists()

    @property
    def has_captions(self) -> bool:
        """Whether people's captions are known; those of VizWiz's test split are with its server only."""
        return any(self.captions)

    @cached_property
    def owners(self) -> Indices:
        """For each caption the row of its picture."""
        return np.repeat(np.arange(len(self.ids)), [len(texts) for texts in self.captions])

    def first(self, count: int) -> Split:
        """Return the first pictures with their captions."""
        if count >= len(self.ids):
            return self
        return replace(
            self,
            ids=self.ids[:count],
            captions=self.captions[:count],
            images=self.images[:count],
            texts=self.texts[self.owners < count],
            pictures=self.pictures[:count],
            frames=None if self.frames is None else self.frames[:, :count],
        )

    def fit(self, method: str, *, beta: float = 0.85, seed: int = 0) -> LinearAlignment:
        """Return the map of one method, fitted to these pairs; every frame of a video is paired with all its captions.

        ``identity`` is the encoder as it is: nothing is subtracted, so that it gives the plain cosine.
        """
        alignment = LinearAlignment(method, beta=beta, seed=seed, center=method != "identity")
        if self.frames is None:
            return alignment.fit(self.images, self.texts, self.owners)
        if method in GRADIENT_METHODS:
            owners = np.concatenate([self.owners + frame * len(self.ids) for frame in range(len(self.frames))])
            return alignment.fit(np.concatenate(self.frames), np.tile(self.texts, (len(self.frames), 1)), owners)
        for images in self.frames:
            alignment.partial_fit(images, self.texts, self.owners)
        return alignment

    def store(self, encoder: Encoder) -> Datastore:
        """Return the captions as a datastore."""
        text = encoder.text
        store = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint, dtype="float16")
        flat = [caption for texts in self.captions for caption in texts]
        store.add(flat, self.texts, source=self.name, image_ids=[self.ids[owner] for owner in self.owners])
        return store


class Bench:
    """The encoder and the data sets of one run; what has been encoded once comes from the cache."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.encoder = load_encoder(setup.encoder, cache=vector_file())
        self._known: dict[tuple[str, str], Split] = {}

    @cached_property
    def judge(self) -> Bench:
        """What captions are compared with pictures by: this, or the same data with the judge's encoder."""
        other = self.setup.judge_encoder
        return self if other in (None, self.setup.encoder) else Bench(replace(self.setup, encoder=other))

    def load(self, name: str, split: str) -> Split:
        """Return a split of a data set by name, encoded."""
        key = (name, split)
        if key not in self._known:
            self._known[key] = self._encoded(name, split)
        return self._known[key]

    def caption_store(self, name: str, without: Collection[str] = ()) -> Datastore:
        """Return the training captions of a data set, whose pictures need not be there, as a datastore.

        Those of some photographs are left out, by the numbers that Flickr gave them (``photo_number``).
        """
        pairs, _ = self.pairs(name, "train")
        kept = {pair.id.partition("#")[0]: pair for pair in pairs if photo_number(pair.id) not in without}
        captions = tuple(pair.captions for pair in kept.values())
        flat = [text for texts in captions for text in texts]
        texts = self.encoder.encode_texts(flat, progress=self.setup.progress)
        return Split(name, tuple(kept), captions, np.empty((len(kept), 0), np.float32), texts).store(self.encoder)

    def measured(self, name: str) -> Split:
        """Return the split that references are needed of: test, or dev where those of test are not published."""
        test = self.load(name, "test")
        return test if test.has_captions else self.load(name, "dev")

    def pairs(self, name: str, split: str) -> tuple[list[Pair], PictureVectors | None]:
        """Return the pairs of a split, and where their pictures are missing, the vectors that stand in for them."""
        if name not in READERS:
            raise InputError(f"there is no data set {name!r}; there are {', '.join(READERS)}")
        home, folder = self.setup.data / name, self.setup.data / f"{name}-vectors"
        if not (folder / IDS).exists():
            return self._some(name, READERS[name](home, split)), None
        if name == "coco" and not (home / "dataset_coco.json").exists():
            known, pairs = PictureVectors.read(folder, self.encoder.image), read_coco_captions(home, split)
        else:
            pairs = READERS[name](home, split)
            if pairs and isinstance(pairs[0].image, str | Path) and Path(pairs[0].image).exists():
                return self._some(name, pairs), None
            known = PictureVectors.read(folder, self.encoder.image)
        there = self._some(name, [pair for pair in pairs if pair.id in known])
        if not there:
            raise InputError(f"{folder} holds no vector of a {split} picture of {TITLES[name]}, and {home} no picture")
        return there, known

    def _encoded(self, name: str, split: str) -> Split:
        pairs, known = self.pairs(name, split)
        if known is None:
            images = self.encoder.encode_images([pair.image for pair in pairs], progress=self.setup.progress)
        else:
            images = known.take([pair.id for pair in pairs])
        frames = None
        if _is_numbered(name, pairs):
            pairs, images, frames = join_frames(pairs, images, FRAMES[name])
        captions = tuple(pair.captions for pair in pairs)
        flat = [caption for texts in captions for caption in texts]
        texts = self.encoder.encode_texts(flat, progress=self.setup.progress)
        ids, pictures = tuple(pair.id for pair in pairs), tuple(pair.image for pair in pairs)
        return Split(name, ids, captions, images, texts, pictures, split, frames)

    def _some(self, name: str, pairs: list[Pair]) -> list[Pair]:
        limit = self.setup.limit
        return pairs if limit is None else pairs[: limit * (FRAMES[name] if _is_numbered(name, pairs) else 1)]


def _is_numbered(name: str, pairs: Sequence[Pair]) -> bool:
    """Tell whether several pictures make up an item."""
    return name in FRAMES and any("#" in pair.id for pair in pairs)


def photo_number(name: str) -> str:
    """Return the number that Flickr gave a photograph, from its name in Flickr8k or Flickr30k; empty without one."""
    found = re.match(r"\d+", name)
    return found[0] if found else ""


def join_frames(pairs: Sequence[Pair], images: Vectors, count: int) -> tuple[list[Pair], Vectors, Vectors]:
    """Return one pair for each video that has all its frames, the mean of their vectors at unit length, and the frames.

    Frames of a video follow one another. A video is captioned by the mean; a caption is in the datastore once.
    """
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(pair.id.partition("#")[0], []).append(row)
    whole = {video: frames for video, frames in rows.items() if len(frames) == count}
    if not whole:
        raise InputError(f"no video has all of its {count} frames")
    frames: Vectors = images[np.array(list(whole.values())).T]
    means = unit_rows(frames.sum(axis=0))
    first = [pairs[some[0]] for some in whole.values()]
    return [Pair(pair.image, pair.captions, video) for video, pair in zip(whole, first, strict=True)], means, frames


SIDE = 224
"""A large picture is read at a size that still has twice as many pixels along its shorter side."""


def read_pixels(split: Split, place: int) -> npt.NDArray[Any] | None:
    """Return a picture to draw, upright and in RGB, or None where it is not at hand or cannot be read."""
    from recap.encoders.images import decode

    try:
        return np.asarray(decode(split.pictures[place], shorter_side=SIDE))
    except (ImageError, IndexError):
        return None
