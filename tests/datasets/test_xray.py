from pathlib import Path

import pytest

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
