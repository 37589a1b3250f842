import json
from pathlib import Path

import pytest

from recap.datasets import read_pairs
from recap.datasets.captions import read_references
from recap.datasets.xray import read_xrays
from recap.errors import InputError

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<eCitation><MedlineCitation><Article><Abstract>
<AbstractText Label="COMPARISON">None.</AbstractText>
<AbstractText Label="FINDINGS">{findings}</AbstractText>
<AbstractText Label="IMPRESSION">Normal chest {number}.</AbstractText>
</Abstract></Article></MedlineCitation>{pictures}</eCitation>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ecgen-radiology").mkdir()
    for number in range(60):
        findings = "The lungs\n are clear." if number % 2 else ""
        views = () if number == 5 else (3001, 4001)
        pictures = "".join(f'<parentImage id="CXR{number}_IM-0001-{view}"><panel/></parentImage>' for view in views)
        text = REPORT.format(findings=findings, number=number, pictures=pictures)
        (tmp_path / "ecgen-radiology" / f"{number}.xml").write_text(text)
    return tmp_path


def test_findings_or_else_the_impression_for_every_picture(folder: Path) -> None:
    pairs = {pair.id: pair for split in ("train", "dev", "test") for pair in read_xrays(folder, split)}
    assert len(pairs) == 2 * 59
    assert pairs["CXR1_IM-0001-3001"].captions == ("The lungs are clear.",)
    assert pairs["CXR2_IM-0001-4001"].captions == ("Normal chest 2.",)
    assert pairs["CXR2_IM-0001-4001"].image == folder / "images" / "CXR2_IM-0001-4001.png"


def test_splits_share_no_report_and_do_not_change(folder: Path) -> None:
    reports = {s: {pair.id.partition("_")[0] for pair in read_xrays(folder, s)} for s in ("train", "dev", "test")}
    assert len(reports["train"]) > 5 * len(reports["test"]) > 0
    assert not reports["train"] & (reports["dev"] | reports["test"])
    assert not reports["dev"] & reports["test"]


def test_what_is_missing_or_wrong_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ecgen-radiology is missing"):
        read_xrays(tmp_path / "nowhere", "train")
    for path in (folder / "ecgen-radiology").iterdir():
        path.write_text("<eCitation>")
    with pytest.raises(InputError, match="not readable as xml"):
        read_xrays(folder, "train")


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
