"""COCO's test captions from the file of references, by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recap.datasets.coco import read_coco_captions
from recap.errors import InputError


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
