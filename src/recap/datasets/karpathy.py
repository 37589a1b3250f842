"""MS-COCO and Flickr30k in Karpathy's splits: ``dataset_coco.json`` and ``dataset_flickr30k.json``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recap.datasets.captions import stem
from recap.datasets.pairs import KARPATHY_TRAIN, read_pairs
from recap.datasets.sources import require, require_split
from recap.types import Pair

_SPLITS = {"train": KARPATHY_TRAIN, "dev": ("val",), "test": ("test",)}


def read_karpathy_coco(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_coco.json``, with the pictures in ``train2014/`` and ``val2014/`` beside it.

    An id is the number COCO gave the picture. ``train`` is both of Karpathy's train and restval: 113,287 pictures.
    """
    return _read(Path(folder) / "dataset_coco.json", split, Path(folder), "MS-COCO")


def read_karpathy_flickr30k(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_flickr30k.json``, with the pictures in ``images/`` beside it."""
    return _read(Path(folder) / "dataset_flickr30k.json", split, Path(folder) / "images", "Flickr30k")


def _read(path: Path, split: str, images: Path, data: str) -> list[Pair]:
    require_split(split, data)
    pairs = read_pairs(require(path, data), images=images, splits=_SPLITS[split])
    return [replace(pair, id=stem(pair.id)) for pair in pairs]
