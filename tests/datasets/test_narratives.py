import json
from pathlib import Path

import pytest

from recap.datasets.narratives import read_narratives
from recap.errors import InputError
from recap.experiments.searches import narratives


def line(data: str, image: str, caption: str) -> str:
    return json.dumps({"dataset_id": data, "image_id": image, "annotator_id": 93, "caption": caption}) + "\n"


def test_shards_are_read_together_and_pictures_grouped(tmp_path: Path) -> None:
    first = line("mscoco_train2017", "9", "In this image\n there is food.") + line(
        "mscoco_train2017", "25", "Two giraffes."
    )
    (tmp_path / "coco_train_localized_narratives-00000-of-00002.jsonl").write_text(first)
    (tmp_path / "coco_train_localized_narratives-00001-of-00002.jsonl").write_text(
        line("mscoco_train2017", "9", "Food.")
    )
    pairs = read_narratives(tmp_path, "pictures")
    assert [(pair.id, pair.captions) for pair in pairs] == [
        ("9", ("In this image there is food.", "Food.")),
        ("25", ("Two giraffes.",)),
    ]
    assert pairs[0].image == Path("pictures/000000000009.jpg")


@pytest.mark.parametrize("data", ["Flickr30k_test", "Flick30k_test"])
@pytest.mark.parametrize("written", ["0010002456", "10002456"])
def test_ids_of_flickr30k_are_those_of_its_pictures(tmp_path: Path, data: str, written: str) -> None:
    path = tmp_path / "flickr30k_test_localized_narratives.jsonl"
    path.write_text(line(data, written, "A man."))
    (pair,) = read_narratives(path, tmp_path)
    assert (pair.id, pair.image) == ("10002456", tmp_path / "10002456.jpg")
    assert narratives(tmp_path, ["10002456", "36979"]) == [("A man.",), ()]


def test_other_data_sets_name_pictures_by_their_id(tmp_path: Path) -> None:
    path = tmp_path / "open_images_test_localized_narratives.jsonl"
    path.write_text(line("open_images_test", "000b0b0b", "A man."))
    (pair,) = read_narratives(path, tmp_path)
    assert (pair.id, pair.image) == ("000b0b0b", tmp_path / "000b0b0b.jpg")


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is missing.*localized-narratives"):
        read_narratives(tmp_path / "nowhere.jsonl", tmp_path)
    with pytest.raises(InputError, match=r"no \*localized_narratives"):
        read_narratives(tmp_path, tmp_path)
    (tmp_path / "x.jsonl").write_text('{"image_id": 3}\n')
    with pytest.raises(InputError, match=r"x.jsonl:1: expected dataset_id"):
        read_narratives(tmp_path / "x.jsonl", tmp_path)
