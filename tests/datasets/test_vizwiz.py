import json
from pathlib import Path

import pytest

from recap.datasets.vizwiz import read_vizwiz, write_vizwiz_submission
from recap.errors import InputError

POOR = "Quality issues are too severe to recognize visual content."


def annotation(image: int, caption: str, *, rejected: bool = False) -> dict[str, object]:
    return {"image_id": image, "caption": caption, "is_rejected": rejected, "is_precanned": caption == POOR, "id": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "annotations").mkdir()
    for split, numbers in (("train", (0, 1, 2)), ("test", (31181, 31182))):
        images = [{"id": n, "file_name": f"VizWiz_{split}_{n:08d}.jpg", "text_detected": False} for n in numbers]
        content: dict[str, object] = {"info": {}, "images": images}
        if split == "train":
            content["annotations"] = [
                annotation(0, "ITS IS A BASIL  LEAVES CONTAINER"),
                annotation(0, "spam", rejected=True),
                annotation(0, POOR),
                annotation(1, POOR),
                annotation(1, POOR, rejected=True),
                annotation(1, "a black thing"),
                annotation(2, "spam again", rejected=True),
            ]
        (tmp_path / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return tmp_path


def test_rejected_captions_and_pictures_of_poor_quality_are_left_out(folder: Path) -> None:
    (pair,) = read_vizwiz(folder, "train")
    assert pair.id == "0"
    assert pair.captions == ("ITS IS A BASIL LEAVES CONTAINER",)
    assert pair.image == folder / "train" / "VizWiz_train_00000000.jpg"


def test_the_submission_holds_every_test_picture(folder: Path, tmp_path: Path) -> None:
    pairs = read_vizwiz(folder, "test")
    assert [(pair.id, pair.captions) for pair in pairs] == [("31181", ()), ("31182", ())]
    write_vizwiz_submission(
        tmp_path / "out.json", {"31182": "a cup", "31181": "a can", "7": "of another split"}, folder
    )
    wanted = [{"image_id": 31181, "caption": "a can"}, {"image_id": 31182, "caption": "a cup"}]
    assert json.loads((tmp_path / "out.json").read_text()) == wanted
    with pytest.raises(InputError, match="all 2 pictures of the test split; 1 have none, such as 31182"):
        write_vizwiz_submission(tmp_path / "never.json", {"31181": "a can", "31182": " "}, folder)
    assert not (tmp_path / "never.json").exists()


def test_what_is_missing_or_wrong_is_said(folder: Path) -> None:
    with pytest.raises(InputError, match=r"val.json is missing.*vizwiz.org"):
        read_vizwiz(folder, "dev")
    (folder / "annotations" / "val.json").write_text("[]")
    with pytest.raises(InputError, match="not an annotation file of VizWiz"):
        read_vizwiz(folder, "dev")
