"""COCO's test captions from the file of references, by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recap.datasets import read_flickr8k, read_pairs
from recap.datasets.captions import read_references
from recap.datasets.published import (
    read_coco_captions,
    read_karpathy_coco,
    read_karpathy_flickr30k,
    read_msrvtt,
    read_narratives,
    read_vizwiz,
    read_xrays,
    write_vizwiz_submission,
)
from recap.errors import InputError
from recap.experiments.searches import narratives


def test_pairs_of_a_split_in_its_order(tmp_path: Path):
    (tmp_path / "captions.token.txt").write_text("a.jpg#0\tA dog .\nb.jpg#0\tA  cat .\na.jpg#1\tDog\nc.jpg#0\tA cow\n")
    (tmp_path / "train.txt").write_text("b.jpg\na.jpg\nnone.jpg\n")
    pairs = read_flickr8k(tmp_path, "train")
    assert [(pair.id, pair.captions) for pair in pairs] == [("b.jpg", ("A cat .",)), ("a.jpg", ("A dog .", "Dog"))]
    assert pairs[0].image == tmp_path / "images" / "b.jpg"
    with pytest.raises(InputError, match=r"Flickr_8k\.devImages\.txt is missing.*hockenmaier"):
        read_flickr8k(tmp_path, "dev")
    with pytest.raises(InputError, match="Flickr8k has no split 'val'; there are train, dev, test"):
        read_flickr8k(tmp_path, "val")


def test_the_names_of_the_published_archives_are_known(tmp_path: Path):
    (tmp_path / "Flicker8k_Dataset").mkdir()
    (tmp_path / "Flickr8k.token.txt").write_text("a.jpg#0\tA dog .\na.jpg.1#0\tNobody's\nb.jpg#0\tA cat\n")
    (tmp_path / "Flickr_8k.testImages.txt").write_text("a.jpg\n")
    (pair,) = read_flickr8k(tmp_path, "test")
    assert (pair.image, pair.captions) == (tmp_path / "Flicker8k_Dataset" / "a.jpg", ("A dog .",))
    with pytest.raises(
        InputError, match=r"Flickr8k\.token\.txt is missing: it belongs to Flickr8k, which is found here"
    ):
        read_flickr8k(tmp_path / "nowhere", "train")


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


POOR = "Quality issues are too severe to recognize visual content."


def annotation(image: int, caption: str, *, rejected: bool = False) -> dict[str, object]:
    return {"image_id": image, "caption": caption, "is_rejected": rejected, "is_precanned": caption == POOR, "id": 0}


@pytest.fixture
def vizwiz(tmp_path: Path) -> Path:
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


def test_rejected_captions_and_pictures_of_poor_quality_are_left_out(vizwiz: Path) -> None:
    (pair,) = read_vizwiz(vizwiz, "train")
    assert pair.id == "0"
    assert pair.captions == ("ITS IS A BASIL LEAVES CONTAINER",)
    assert pair.image == vizwiz / "train" / "VizWiz_train_00000000.jpg"


def test_the_submission_holds_every_test_picture(vizwiz: Path, tmp_path: Path) -> None:
    pairs = read_vizwiz(vizwiz, "test")
    assert [(pair.id, pair.captions) for pair in pairs] == [("31181", ()), ("31182", ())]
    write_vizwiz_submission(
        tmp_path / "out.json", {"31182": "a cup", "31181": "a can", "7": "of another split"}, vizwiz
    )
    wanted = [{"image_id": 31181, "caption": "a can"}, {"image_id": 31182, "caption": "a cup"}]
    assert json.loads((tmp_path / "out.json").read_text()) == wanted
    with pytest.raises(InputError, match="all 2 pictures of the test split; 1 have none, such as 31182"):
        write_vizwiz_submission(tmp_path / "never.json", {"31181": "a can", "31182": " "}, vizwiz)
    assert not (tmp_path / "never.json").exists()


def test_files_that_are_not_vizwiz_are_refused(vizwiz: Path) -> None:
    with pytest.raises(InputError, match=r"val.json is missing.*vizwiz.org"):
        read_vizwiz(vizwiz, "dev")
    (vizwiz / "annotations" / "val.json").write_text("[]")
    with pytest.raises(InputError, match="not an annotation file of VizWiz"):
        read_vizwiz(vizwiz, "dev")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    splits = {"video0": "train", "video1": "validate", "video2": "train"}
    videos = [{"video_id": name, "split": split, "category": 9, "id": 0} for name, split in splits.items()]
    sentences = [
        {"video_id": name, "caption": f"{text} {name}", "sen_id": 0} for name in splits for text in ("a", "the  ")
    ]
    (tmp_path / "train_val_videodatainfo.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))
    for name, count in (("video0", 8), ("video1", 4), ("video2", 2)):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "frames" / name / f"{number:04d}.jpg").touch()
    return tmp_path


def test_four_frames_evenly_apart_each_with_all_captions(videos: Path) -> None:
    pairs = read_msrvtt(videos, "train")
    assert [pair.id for pair in pairs] == [f"{video}#{n}" for video in ("video0", "video2") for n in range(4)]
    assert [Path(pair.image).stem for pair in pairs[:4]] == ["0001", "0003", "0005", "0007"]
    assert [Path(pair.image).stem for pair in pairs[4:]] == ["0000", "0000", "0001", "0001"]
    assert {pair.captions for pair in pairs[:4]} == {("a video0", "the video0")}


def test_the_official_splits_are_kept_apart(videos: Path) -> None:
    assert {pair.id.partition("#")[0] for pair in read_msrvtt(videos, "dev")} == {"video1"}
    with pytest.raises(InputError, match=r"test_videodatainfo.json is missing"):
        read_msrvtt(videos, "test")


def test_a_video_without_frames_is_named(videos: Path) -> None:
    for frame in (videos / "frames" / "video1").iterdir():
        frame.unlink()
    with pytest.raises(InputError, match="video1: no frames; make them with ffmpeg"):
        read_msrvtt(videos, "dev")


REPORT = """<?xml version="1.0" encoding="utf-8"?>
<eCitation><MedlineCitation><Article><Abstract>
<AbstractText Label="COMPARISON">None.</AbstractText>
<AbstractText Label="FINDINGS">{findings}</AbstractText>
<AbstractText Label="IMPRESSION">Normal chest {number}.</AbstractText>
</Abstract></Article></MedlineCitation>{pictures}</eCitation>
"""


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    (tmp_path / "ecgen-radiology").mkdir()
    for number in range(60):
        findings = "The lungs\n are clear." if number % 2 else ""
        views = () if number == 5 else (3001, 4001)
        pictures = "".join(f'<parentImage id="CXR{number}_IM-0001-{view}"><panel/></parentImage>' for view in views)
        text = REPORT.format(findings=findings, number=number, pictures=pictures)
        (tmp_path / "ecgen-radiology" / f"{number}.xml").write_text(text)
    return tmp_path


def test_findings_or_else_the_impression_for_every_picture(reports: Path) -> None:
    pairs = {pair.id: pair for split in ("train", "dev", "test") for pair in read_xrays(reports, split)}
    assert len(pairs) == 2 * 59
    assert pairs["CXR1_IM-0001-3001"].captions == ("The lungs are clear.",)
    assert pairs["CXR2_IM-0001-4001"].captions == ("Normal chest 2.",)
    assert pairs["CXR2_IM-0001-4001"].image == reports / "images" / "CXR2_IM-0001-4001.png"


def test_splits_share_no_report_and_do_not_change(reports: Path) -> None:
    reports = {s: {pair.id.partition("_")[0] for pair in read_xrays(reports, s)} for s in ("train", "dev", "test")}
    assert len(reports["train"]) > 5 * len(reports["test"]) > 0
    assert not reports["train"] & (reports["dev"] | reports["test"])
    assert not reports["dev"] & reports["test"]


def test_reports_that_are_missing_or_wrong_are_named(reports: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ecgen-radiology is missing"):
        read_xrays(tmp_path / "nowhere", "train")
    for path in (reports / "ecgen-radiology").iterdir():
        path.write_text("<eCitation>")
    with pytest.raises(InputError, match="not readable as xml"):
        read_xrays(reports, "train")


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """Studies with two pictures each, in the file that most publications share."""

    def study(number: int, split: str) -> dict[str, object]:
        pictures = [f"CXR{number}/0.png", f"CXR{number}/1.png"]
        return {
            "id": f"CXR{number}",
            "report": f"Heart  {number}.\nNo fracture.",
            "image_path": pictures,
            "split": split,
        }

    content = {
        name: [study(10 * place + i, name) for i in range(3)] for place, name in enumerate(("train", "val", "test"))
    }
    (tmp_path / "annotation.json").write_text(json.dumps(content))
    return tmp_path


def test_front_and_side_of_a_study_share_its_report(studies: Path) -> None:
    pairs = read_xrays(studies, "dev")
    assert [pair.id for pair in pairs] == ["CXR10#0", "CXR10#1", "CXR11#0", "CXR11#1", "CXR12#0", "CXR12#1"]
    assert pairs[3].image == studies / "images" / "CXR11" / "1.png"
    assert pairs[3].captions == ("Heart 11. No fracture.",)
    assert [pair.id.partition("#")[0] for pair in read_xrays(studies, "test")[::2]] == ["CXR20", "CXR21", "CXR22"]


def test_the_same_file_is_read_as_pairs(studies: Path) -> None:
    """By ``recap fit``: the training studies unless a split is named, a pair for each picture."""
    pairs = read_pairs(studies / "annotation.json", images=studies / "images")
    assert [pair.id for pair in pairs[:2]] == ["CXR0/0.png", "CXR0/1.png"]
    assert pairs[1].captions == ("Heart 0. No fracture.",)
    assert len(pairs) == 6
    test = read_pairs(studies / "annotation.json", images=studies / "images", splits=["test"])
    assert {pair.id[:5] for pair in test} == {"CXR20", "CXR21", "CXR22"}
    with pytest.raises(InputError, match="no split dev; there are test, train, val"):
        read_pairs(studies / "annotation.json", splits=["dev"])


def test_the_same_file_gives_references_by_picture(studies: Path) -> None:
    references = read_references(studies / "annotation.json", split="val")
    assert references["CXR10/1.png"] == ["Heart  10.\nNo fracture."]
    assert len(references) == 6


def test_a_study_without_a_report_is_named(studies: Path) -> None:
    (studies / "annotation.json").write_text(json.dumps({"train": [{"id": "CXR0", "image_path": ["a.png"]}]}))
    with pytest.raises(InputError, match=r"annotation\.json: train 0: expected id, report and image_path"):
        read_xrays(studies, "train")


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


def test_narratives_that_are_missing_or_wrong_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is missing.*localized-narratives"):
        read_narratives(tmp_path / "nowhere.jsonl", tmp_path)
    with pytest.raises(InputError, match=r"no \*localized_narratives"):
        read_narratives(tmp_path, tmp_path)
    (tmp_path / "x.jsonl").write_text('{"image_id": 3}\n')
    with pytest.raises(InputError, match=r"x.jsonl:1: expected dataset_id"):
        read_narratives(tmp_path / "x.jsonl", tmp_path)
