"""COCO and Flickr30k in Karpathy's splits, and their captions where neither the pictures nor his json are at hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

from recap.assets import fetch
from recap.datasets.captions import read_references, stem
from recap.datasets.pairs import read_pairs
from recap.datasets.records import KARPATHY_TRAIN, require, require_split
from recap.errors import InputError
from recap.types import Pair

_SPLITS = {"train": KARPATHY_TRAIN, "dev": ("val",), "test": ("test",)}


def read_karpathy_coco(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_coco.json``, with the pictures in ``train2014/`` and ``val2014/`` beside it.

    An id is the number COCO gave the picture. ``train`` is both of Karpathy's train and restval: 113,287 pictures.
    """
    return _read(Path(folder) / "dataset_coco.json", split, Path(folder), "MS-COCO")


def read_karpathy_flickr30k(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_flickr30k.json``, with the pictures in ``images/`` beside it.

    Without that file, and with the folder ``data/task2`` of Multi30k instead (``raw/``, ``image_splits/``), captions
    are those: of 29,000 pictures in ``train``, 1,014 in ``dev`` and 1,000 in ``test``, which are not Karpathy's.
    """
    if not (Path(folder) / "dataset_flickr30k.json").exists() and (Path(folder) / "image_splits").is_dir():
        return _read_multi30k(Path(folder), split)
    return _read(Path(folder) / "dataset_flickr30k.json", split, Path(folder) / "images", "Flickr30k")


def _read(path: Path, split: str, images: Path, data: str) -> list[Pair]:
    require_split(split, data)
    pairs = read_pairs(require(path, data), images=images, splits=_SPLITS[split])
    return [replace(pair, id=stem(pair.id)) for pair in pairs]


def _read_multi30k(folder: Path, split: str) -> list[Pair]:
    """Return the five English captions of each picture, which stand in a file each, a line a picture."""
    require_split(split, "Flickr30k")
    part = {"dev": "val", "test": "test_2016"}.get(split, split)
    names = require(folder / "image_splits" / f"{part}_images.txt", "Flickr30k").read_text(encoding="utf-8").split()
    columns = []
    for number in range(1, 6):
        path = require(folder / "raw" / f"{part}.{number}.en.gz", "Flickr30k")
        columns.append(gzip.decompress(path.read_bytes()).decode().rstrip("\n").split("\n"))
        if len(columns[-1]) != len(names):
            raise InputError(f"{path}: {len(columns[-1]):,} captions for {len(names):,} pictures")
    captions = (tuple(" ".join(text.split()) for text in row) for row in zip(*columns, strict=True))
    return [Pair(folder / "images" / name, texts, stem(name)) for name, texts in zip(names, captions, strict=True)]


TEST_REFERENCES = "karpathy_test_references.json"


def read_coco_captions(folder: str | Path, split: str) -> list[Pair]:
    """Return captions by COCO's numbers: train2014 from an asset, Karpathy's test from ``TEST_REFERENCES``.

    Sorted by number; the picture of a pair is the path it would have below the folder. Karpathy's train split also has
    a part of val2014, and his dev split is another part of it: neither can be told without his json.
    """
    folder = Path(folder)
    if split == "train":
        return _pairs(coco_train_captions(), folder / "train2014")
    if split == "test" and (folder / TEST_REFERENCES).exists():
        references = read_references(folder / TEST_REFERENCES)
        return _pairs({int(stem(name)): texts for name, texts in references.items()}, folder / "val2014")
    return read_karpathy_coco(folder, split)


def coco_train_captions() -> dict[int, list[str]]:
    """Return the captions of COCO train2014 by the number of the picture."""
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    return captions


def _pairs(captions: dict[int, list[str]], folder: Path) -> list[Pair]:
    return [
        Pair(
            folder / f"COCO_{folder.name}_{number:012}.jpg",
            tuple(" ".join(text.split()) for text in captions[number]),
            str(number),
        )
        for number in sorted(captions)
    ]
