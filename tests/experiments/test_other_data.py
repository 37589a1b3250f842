"""Data sets that are not pictures with captions in every split: videos, x-rays, and a test split without captions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from recap.experiments import Setup, run_experiment, write_outcome
from recap.experiments.data import Bench
from recap.types import Pair

pytestmark = pytest.mark.usefixtures("own_cache")
EACH = ("0", "1", "2")


def of_split(pairs: Sequence[Pair], number: str) -> list[Pair]:
    return [pair for pair in pairs if Path(pair.id).stem.endswith(number)]


@pytest.fixture
def vizwiz(tmp_path: Path, pairs: list[Pair]) -> Path:
    """One picture of each colour in each split, in the official form; nobody tells the captions of test."""
    home = tmp_path / "data" / "vizwiz"
    (home / "annotations").mkdir(parents=True)
    for number, name in zip(EACH, ("train", "val", "test"), strict=True):
        (home / name).mkdir()
        images, annotations = [], []
        for place, pair in enumerate(of_split(pairs, number)):
            shutil.copy(str(pair.image), home / name)
            images.append({"id": place, "file_name": pair.id})
            told = [] if name == "test" else pair.captions
            annotations += [
                {"image_id": place, "caption": text, "is_precanned": False, "is_rejected": False} for text in told
            ]
        content = {"images": images, **({} if name == "test" else {"annotations": annotations})}
        (home / "annotations" / f"{name}.json").write_text(json.dumps(content))
    return home.parent


@pytest.fixture
def msrvtt(tmp_path: Path, pairs: list[Pair]) -> Path:
    """A video of five equal frames for each colour in each split."""
    home = tmp_path / "data" / "msrvtt"
    content: dict[str, dict[str, list[dict[str, str]]]] = {}
    for number, split in zip(EACH, ("train", "validate", "test"), strict=True):
        file = "test_videodatainfo.json" if split == "test" else "train_val_videodatainfo.json"
        known = content.setdefault(file, {"videos": [], "sentences": []})
        for pair in of_split(pairs, number):
            video = Path(pair.id).stem
            (home / "frames" / video).mkdir(parents=True)
            for frame in range(5):
                shutil.copy(str(pair.image), home / "frames" / video / f"{frame}.png")
            known["videos"].append({"video_id": video, "split": split})
            known["sentences"] += [{"video_id": video, "caption": text} for text in pair.captions]
    for name, written in content.items():
        (home / name).write_text(json.dumps(written))
    return home.parent


def test_a_test_split_without_captions_is_captioned_for_its_server(
    vizwiz: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    setup = Setup(vizwiz, "vizwiz", f"onnx:{encoder_folder}", "none", options={"metrics": "cider-d,aclip-s,refaclip-s"})
    outcome = run_experiment("captioning", setup)
    table = outcome.tables["captioning"]
    assert table.sections[0].title.startswith("VizWiz test")
    cells = dict(zip([column.name for column in table.columns], table.sections[0].rows[-1].cells, strict=True))
    assert cells["aCLIP-S"].value is not None
    assert cells["CIDEr-D"].value is None
    assert any("CIDEr-D" in note and "reference" in note for note in table.notes)
    written = {path.name: path for path in write_outcome(outcome, tmp_path / "out")}
    sent = json.loads(written["submission-nearest-pr.json"].read_text())
    assert [record["image_id"] for record in sent] == list(range(6))
    assert all(record["caption"] for record in sent)


@pytest.mark.parametrize("name", ["retrieval", "alignment", "examples", "metric-correlation"])
def test_where_references_are_needed_those_of_validation_are_taken(
    name: str, vizwiz: Path, encoder_folder: Path
) -> None:
    pytest.importorskip("matplotlib")
    options = {} if name in ("retrieval", "examples") else {"metrics": "cider-d,aclip-s"}
    setup = Setup(vizwiz, "vizwiz", f"onnx:{encoder_folder}", "none", options=options)
    (table,) = run_experiment(name, setup).tables.values()
    assert table.sections[0].title.startswith("VizWiz dev")


def test_a_video_is_one_thing_and_its_captions_are_there_once(
    msrvtt: Path, encoder_folder: Path, pairs: list[Pair]
) -> None:
    bench = Bench(Setup(msrvtt, "msrvtt", f"onnx:{encoder_folder}"))
    train, test = bench.load("msrvtt", "train"), bench.load("msrvtt", "test")
    own = of_split(pairs, "2")
    assert list(test.ids) == [Path(pair.id).stem for pair in own]
    np.testing.assert_allclose(test.images, bench.encoder.encode_images([pair.image for pair in own]), atol=1e-6)
    assert [row.text for row in train.store(bench.encoder)] == [t for p in of_split(pairs, "0") for t in p.captions]
    limited = Bench(Setup(msrvtt, "msrvtt", f"onnx:{encoder_folder}", limit=2))
    assert limited.load("msrvtt", "test").ids == test.ids[:2]


def test_videos_and_captions_find_each_other(msrvtt: Path, encoder_folder: Path) -> None:
    setup = Setup(msrvtt, "msrvtt", f"onnx:{encoder_folder}", options={"maps": "PR"})
    (row,) = run_experiment("retrieval", setup).tables["retrieval"].sections[0].rows
    to_text, to_image = row.cells[0].value, row.cells[4].value
    # four frames that count as four pictures would leave a quarter of each
    assert (to_text, to_image) == (100, pytest.approx(100, abs=15))


@pytest.fixture
def xrays(tmp_path: Path, pairs: list[Pair]) -> Path:
    """A study of two equal pictures for each colour in each split, with one report."""
    home = tmp_path / "data" / "xrays"
    content: dict[str, list[dict[str, object]]] = {}
    for number, split in zip(EACH, ("train", "val", "test"), strict=True):
        for pair in of_split(pairs, number):
            study = Path(pair.id).stem
            (home / "images" / study).mkdir(parents=True)
            names = [f"{study}/{view}.png" for view in range(2)]
            for name in names:
                shutil.copy(str(pair.image), home / "images" / name)
            content.setdefault(split, []).append({"id": study, "report": pair.captions[0], "image_path": names})
    (home / "annotation.json").write_text(json.dumps(content))
    return home.parent


def test_xrays_are_captioned_by_study_beside_the_papers_best_on_validation(xrays: Path, encoder_folder: Path) -> None:
    options = {"maps": "OLS", "metrics": "bleu-1,cider-d", "pool": "1"}
    setup = Setup(xrays, "xrays", f"onnx:{encoder_folder}", "none", options=options)
    table = run_experiment("captioning", setup).tables["captioning"]
    ours, paper = table.sections
    assert ours.title.endswith("6 pictures")
    nearest, consensus = (row for row in ours.rows if row.label.endswith("OLS"))
    assert nearest.cells == consensus.cells, "of one voter both are the nearest report"
    assert nearest.cells[-1].value > 100
    assert paper.title == "the paper: chest x-rays validation, RN50x64, FLAN-T5-Large"
    found = {row.label: [cell.value for cell in row.cells] for row in paper.rows}
    assert found == {"k = 5, greedily": [30.7, 16.4], "k = 5, 0.5 x 20": [33.8, 18.2]}
    limited = Bench(Setup(xrays, "xrays", f"onnx:{encoder_folder}", limit=2)).load("xrays", "test")
    assert len(limited.ids) == 2
