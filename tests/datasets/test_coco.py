"""COCO's test captions from the file of references, by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recap.datasets.coco import read_coco_captions, read_karpathy_coco, read_karpathy_flickr30k
from recap.errors import InputError


def entry(name: str, split: str, *sentences: str, **more: object) -> dict[str, object]:
    return {"filename": name, "split": split, "sentences": [{"raw": text, "tokens": []} for text in sentences], **more}


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    images = [
        entry("COCO_train2014_000000000009.jpg", "train", "food on a  tray", filepath="train2014", cocoid=9),
        entry("COCO_val2014_000000000042.jpg", "restval", "a shoe", "a dog's bed", filepath="val2014", cocoid=42),
        entry("COCO_val2014_000000000073.jpg", "val", "a motorcycle", filepath="val2014", cocoid=73),
        entry("COCO_val2014_000000000074.jpg", "test", "a dog", filepath="val2014", cocoid=74),
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return tmp_path


def test_train_is_train_and_restval_with_the_numbers_of_coco(coco: Path) -> None:
    pairs = read_karpathy_coco(coco, "train")
    assert [pair.id for pair in pairs] == ["9", "42"]
    assert pairs[0].captions == ("food on a tray",)
    assert pairs[1].captions == ("a shoe", "a dog's bed")
    assert pairs[1].image == coco / "val2014" / "COCO_val2014_000000000042.jpg"
    assert [pair.id for pair in read_karpathy_coco(coco, "dev")] == ["73"]
    assert [pair.id for pair in read_karpathy_coco(coco, "test")] == ["74"]


def test_flickr30k(tmp_path: Path) -> None:
    images = [entry("1000092795.jpg", "train", "two men"), entry("10002456.jpg", "test", "a crane")]
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    (pair,) = read_karpathy_flickr30k(tmp_path, "test")
    assert (pair.id, pair.image, pair.captions) == ("10002456", tmp_path / "images" / "10002456.jpg", ("a crane",))


def test_what_is_missing_is_said_with_where_to_get_it(tmp_path: Path, coco: Path) -> None:
    with pytest.raises(InputError, match=r"dataset_flickr30k.json is missing.*karpathy/deepimagesent"):
        read_karpathy_flickr30k(tmp_path, "test")
    with pytest.raises(InputError, match="no split 'val'; there are train, dev, test"):
        read_karpathy_coco(coco, "val")


def test_test_captions_are_sorted_by_number_and_know_where_the_picture_would_be(tmp_path: Path) -> None:
    references = [
        {"image": "val2014/COCO_val2014_000000000042.jpg", "caption": ["A dog on  shoes. ", "a dog"]},
        {"image": "val2014/COCO_val2014_000000000007.jpg", "caption": ["a bus"]},
    ]
    (tmp_path / "karpathy_test_references.json").write_text(json.dumps(references))
    bus, dog = read_coco_captions(tmp_path, "test")
    assert (bus.id, bus.captions) == ("7", ("a bus",))
    assert dog.captions == ("A dog on shoes.", "a dog")
    assert dog.image == tmp_path / "val2014" / "COCO_val2014_000000000042.jpg"


@pytest.mark.parametrize("split", ["dev", "test"])
def test_what_cannot_be_told_without_karpathys_file_is_said(tmp_path: Path, split: str) -> None:
    with pytest.raises(InputError, match=r"dataset_coco.json is missing.*karpathy"):
        read_coco_captions(tmp_path, split)
