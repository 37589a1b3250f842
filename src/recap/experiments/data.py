"""The data sets in a folder, encoded: pictures and captions as vectors, with the captions themselves.

| name         | below the data folder                                                                          |
|--------------|------------------------------------------------------------------------------------------------|
| ``flickr8k`` | ``flickr8k/``: ``images/``, ``captions.token.txt``, ``train.txt``, ``dev.txt``, ``test.txt``     |
| ``flickr30k``| ``flickr30k/``: ``dataset_flickr30k.json``, ``images/``                                         |
| ``coco``     | ``coco/``: ``dataset_coco.json``, ``train2014/``, ``val2014/``; or, without pictures,            |
|              | ``coco-vectors/`` (``ids.npy``, ``test_ids.npy``, ``tinyvit.npy``) with                         |
|              | ``coco/karpathy_test_references.json``, for encoders whose image side is ``tinyvit``             |
| ``vizwiz``   | ``vizwiz/``: ``annotations/``, ``train/``, ``val/``, ``test/``                                   |
| ``msrvtt``   | ``msrvtt/``: ``train_val_videodatainfo.json``, ``test_videodatainfo.json``, ``frames/VIDEO/``    |
| ``xrays``    | ``xrays/``: ``ecgen-radiology/``, ``images/``                                                   |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from recap.alignment import LinearAlignment
from recap.alignment.rows import Indices
from recap.assets import cache_dir, fetch
from recap.datasets import read_flickr8k
from recap.datasets.captions import read_references, stem
from recap.datasets.karpathy import read_karpathy_coco, read_karpathy_flickr30k
from recap.datasets.msrvtt import read_msrvtt
from recap.datasets.vizwiz import read_vizwiz
from recap.datasets.xray import read_xrays
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.errors import InputError
from recap.experiments.base import Setup
from recap.types import Pair, Vectors

READERS: dict[str, Callable[[Path, str], list[Pair]]] = {
    "flickr8k": read_flickr8k,
    "flickr30k": read_karpathy_flickr30k,
    "coco": read_karpathy_coco,
    "vizwiz": read_vizwiz,
    "msrvtt": read_msrvtt,
    "xrays": read_xrays,
}
TITLES = {
    "flickr8k": "Flickr8k",
    "flickr30k": "Flickr30k",
    "coco": "MS-COCO",
    "vizwiz": "VizWiz",
    "msrvtt": "MSRVTT",
    "xrays": "chest x-rays",
}
"""As the paper writes them."""


@dataclass(frozen=True)
class Split:
    """One split of a data set, encoded."""

    name: str
    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    images: Vectors
    texts: Vectors
    """One row a caption, in the order of the pictures."""

    @cached_property
    def owners(self) -> Indices:
        """For each caption the row of its picture."""
        return np.repeat(np.arange(len(self.ids)), [len(texts) for texts in self.captions])

    def fit(self, method: str, *, beta: float = 0.85, seed: int = 0) -> LinearAlignment:
        """Return the map of one method, fitted to these pairs."""
        return LinearAlignment(method, beta=beta, seed=seed).fit(self.images, self.texts, self.owners)

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
        self.encoder = load_encoder(setup.encoder, cache=cache_dir() / "vectors.sqlite")
        self._known: dict[tuple[str, str], Split] = {}

    def load(self, name: str, split: str) -> Split:
        """Return a split of a data set by name, encoded."""
        if name not in READERS:
            raise InputError(f"there is no data set {name!r}; there are {', '.join(READERS)}")
        key = (name, split)
        if key not in self._known:
            if name == "coco" and not (self.setup.data / "coco" / "dataset_coco.json").exists():
                self._known[key] = self._coco_vectors(split)
            else:
                self._known[key] = self._pictures(name, split)
        return self._known[key]

    def _pictures(self, name: str, split: str) -> Split:
        pairs = READERS[name](self.setup.data / name, split)[: self.setup.limit]
        images = self.encoder.encode_images([pair.image for pair in pairs], progress=self.setup.progress)
        return self._split(name, [pair.id for pair in pairs], [pair.captions for pair in pairs], images)

    def _coco_vectors(self, split: str) -> Split:
        """Return COCO where only the vectors of its pictures are at hand."""
        folder = self.setup.data / "coco-vectors"
        if split == "dev" or not (folder / "ids.npy").exists():
            READERS["coco"](self.setup.data / "coco", split)  # says what is missing, and where it is found
        if self.encoder.image.name != "tinyvit":
            raise InputError(
                f"{folder} holds vectors of tinyvit, not of {self.encoder.image.name}: take --encoder builtin, "
                f"or put the pictures and dataset_coco.json into {self.setup.data / 'coco'}"
            )
        captions = _train_captions() if split == "train" else _test_captions(self.setup.data)
        ids, tested = np.load(folder / "ids.npy"), set(np.load(folder / "test_ids.npy").tolist())
        wanted = [
            row
            for row, image in enumerate(ids.tolist())
            if image in captions and (image in tested) == (split == "test")
        ][: self.setup.limit]
        rows = np.load(folder / "tinyvit.npy", mmap_mode="r")[wanted].astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        chosen = ids[wanted].tolist()
        return self._split("coco", [str(image) for image in chosen], [captions[image] for image in chosen], rows)

    def _split(self, name: str, ids: Sequence[str], captions: Sequence[Sequence[str]], images: Vectors) -> Split:
        flat = [caption for texts in captions for caption in texts]
        texts = self.encoder.encode_texts(flat, progress=self.setup.progress)
        return Split(name, tuple(ids), tuple(map(tuple, captions)), images, texts)


def _train_captions() -> dict[int, list[str]]:
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    return captions


def _test_captions(data: Path) -> dict[int, list[str]]:
    references = read_references(data / "coco" / "karpathy_test_references.json")
    return {int(stem(name)): [" ".join(text.split()) for text in texts] for name, texts in references.items()}
