from __future__ import annotations

from pathlib import Path

import pytest

from recap import ReCap
from recap.batch.tags import find_keywords, rank_keywords, tag, tag_each
from recap.errors import ImageError
from recap.types import Evidence

SOFA = [
    Evidence("A small dog sitting on a sofa.", 0.60),
    Evidence("a dog is lying on a couch next to a teddy bear", 0.58),
    Evidence("Two dogs and a teddy bear on a sofa", 0.57),
    Evidence("a building in the background", 0.45),
]


def test_things_are_told_from_other_words():
    found = find_keywords(SOFA, ["A dog sitting on a sofa.", "a dog on a sofa near a teddy bear"])
    assert set(found) == {"dog", "sofa", "couch", "teddy bear", "building"}
    assert found["dog"] > found["sofa"] > found["couch"] > found["building"]
    assert "dogs" not in found
    assert found["dog"] > 0.9, "dog and dogs are one thing"


def test_without_a_language_model_the_captions_decide_alone():
    found = find_keywords(SOFA, [])
    assert found["dog"] > 0.85
    assert found["building"] < 0.1


def test_a_keyword_must_fit_the_picture_and_have_support():
    tags = rank_keywords({"dog": 1.0, "sofa": 0.5, "vase": 1.0, "cloud": 0.02}, [0.5, 0.5, 0.1, 0.6], 0.4)
    assert [(item.text, round(item.score, 2)) for item in tags] == [("dog", 1.0), ("sofa", 0.71)]


def test_keywords_of_a_pack_in_another_language_are_its_words():
    evidence = [Evidence("ein Hund auf dem Sofa", 0.6), Evidence("ein Hund schläft", 0.6)]
    assert find_keywords(evidence, [], "de")["hund"] == 1


def test_pictures_are_tagged_in_order_and_a_broken_one_stops_nothing(
    pack_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    captioner = ReCap.from_pretrained(pack_folder).configured(language="de")
    (tmp_path / "torn.png").write_bytes(b"none")
    paths = [new_pictures["red"], tmp_path / "torn.png", new_pictures["blue"]]
    first, broken, last = tag_each(captioner, paths, min_score=0)
    assert isinstance(broken, ImageError)
    assert first == tag(captioner, paths[0], min_score=0)
    assert first != last
    with pytest.raises(ImageError, match=r"torn\.png"):
        tag(captioner, paths[1])
