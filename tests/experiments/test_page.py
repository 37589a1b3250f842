"""The page of all experiments, made from vectors alone: no picture is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from recap.cli.experiment import experiment
from recap.datasets.vectors import write_vectors
from recap.encoders import load_encoder
from recap.errors import InputError
from recap.experiments import EXPERIMENTS, Setup
from recap.experiments.base import Outcome
from recap.experiments.page import PAPER, Part, Shown, page_html, table_html, write_report
from recap.experiments.table import Cell, Column, Row, Section, Table, _tables
from recap.types import Pair


@pytest.fixture
def data(
    tmp_path: Path, own_cache: None, make_flickr8k: Callable[..., Path], pairs: list[Pair], encoder_folder: Path
) -> Path:
    home = tmp_path / "data" / "flickr8k"
    make_flickr8k(home, pairs)
    shutil.rmtree(home / "images")
    encoder = load_encoder(f"onnx:{encoder_folder}")
    known = pairs[:-1]  # one test picture has no vector
    vectors = encoder.encode_images([pair.image for pair in known])
    write_vectors(home.with_name("flickr8k-vectors"), [pair.id for pair in known], vectors, encoder.image)
    return home.parent


class Page(HTMLParser):
    """Collects ids, inner links and whether tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given["id"] or ""} if "id" in given else set()
        self.links += [given["href"] or ""] if "href" in given else []
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


CHEAP = {"metrics": "cider-d,aclip-s,refaclip-s"}
"""All that needs no parser."""
SOME = ("alignment", "modality-gap", "transfer", "examples")


def test_everything_the_data_allow_is_on_the_page_and_the_rest_is_named(data: Path, encoder_folder: Path) -> None:
    pytest.importorskip("matplotlib")
    setup, told = Setup(data, encoder=f"onnx:{encoder_folder}", options={"projection": "pca", **CHEAP}), []
    path = write_report(setup, data.parent / "report", experiments=SOME, tell=told.append)
    text = path.read_text()
    page = Page(text)
    assert not page.open
    assert {"flickr8k-alignment", "flickr8k-modality-gap", "flickr8k-examples", "missing", "paper"} <= page.ids
    assert "flickr8k-transfer" not in page.ids  # COCO, its source, is not there
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (path.parent / link).is_file(), link
    assert len(re.findall("data:image/png;base64,", text)) == 2
    missing = text[text.index('id="missing"') :]
    assert "dataset_flickr30k.json is missing" in missing
    assert "dataset_coco.json is missing" in missing
    paper = text[text.index('id="paper"') :]
    assert "Flickr30k, VizWiz, MSRVTT: not at hand; Flickr8k: " in paper.split("transfer from")[1].split("</tr>")[0]
    assert "not asked for" in paper.split("lightweight captioning")[1].split("</tr>")[0]
    assert "5 pictures" in text  # of six test pictures one has no vector
    assert any("not possible" in line for line in told)
    assert "still to come" not in text


def test_a_second_run_takes_what_is_there_and_another_setup_does_not(data: Path, encoder_folder: Path) -> None:
    setup, out = Setup(data, encoder=f"onnx:{encoder_folder}", options=CHEAP), data.parent / "report"
    one = write_report(setup, out, ["flickr8k"], experiments=["alignment"]).read_bytes()
    part = out / "flickr8k" / "alignment" / "part.json"
    content = json.loads(part.read_text())
    part.write_text(json.dumps({**content, "html": "<p>from the folder</p>"}))
    assert "from the folder" in write_report(setup, out, ["flickr8k"], experiments=["alignment"]).read_text()
    other = replace(setup, seed=1)
    assert "from the folder" not in write_report(other, out, ["flickr8k"], experiments=["alignment"]).read_text()
    part.write_text("torn")
    again = write_report(setup, out, ["flickr8k"], experiments=["alignment"]).read_bytes()
    without_times = [re.sub(rb"<details>.*?</details>", b"", page, flags=re.S) for page in (one, again)]
    assert without_times[0] == without_times[1]


def test_the_command_needs_a_folder_and_some_data(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    arguments = ["all", "--data", str(data), "--encoder", f"onnx:{encoder_folder}"]
    assert "name a folder with --out" in CliRunner().invoke(experiment, arguments).output
    given = [*arguments, "--out", str(tmp_path / "r"), "--option", "experiments=retrieval", "--on", "flickr8k"]
    assert CliRunner().invoke(experiment, given).stdout == f"{tmp_path / 'r' / 'index.html'}\n"
    with pytest.raises(InputError, match="unknown experiment 'magic'"):
        write_report(Setup(data), tmp_path / "r", experiments=["magic"])
    with pytest.raises(InputError, match="no experiment here has an option 'projection'"):
        write_report(Setup(data, options={"projection": "pca"}), tmp_path / "r", experiments=["alignment"])
    with pytest.raises(InputError, match=r"holds none of the data sets: .*imagenet"):
        write_report(Setup(data, encoder=f"onnx:{encoder_folder}"), tmp_path / "r", ["imagenet"])


def test_vectors_of_another_encoder_are_refused(data: Path, shared_encoder_folder: Path) -> None:
    with pytest.raises(InputError, match="holds vectors of"):
        write_report(Setup(data, encoder=f"onnx:{shared_encoder_folder}"), data.parent / "report", ["flickr8k"])


def test_what_comes_from_outside_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    table = Table("T", (Column(evil),), (Section(evil, (Row(evil, (Cell(evil),)),)),), (evil,), first=evil)
    parts = [Part("alignment", "flickr8k", table_html(table)), Part("retrieval", "flickr8k", reason=evil)]
    text = page_html(evil, evil, parts, {"coco": evil}, [Shown(evil, "retrieval", ("coco",))])
    assert "<script" not in text
    assert not Page(text).open


def test_the_best_is_bold() -> None:
    rows = (Row("one", (Cell(1.0, 0.1),)), Row("two", (Cell(2.0, 0.1),)))
    text = table_html(Table("T", (Column("x"),), (Section("", rows),)))
    assert "<b>2.0 ± 0.1</b>" in text
    assert "<td>1.0 ± 0.1</td>" in text


def test_every_table_of_the_paper_and_every_experiment_is_named() -> None:
    assert {name for shown in PAPER for name in shown.tables} == {*_tables()}
    assert {shown.experiment for shown in PAPER if shown.experiment} == {*EXPERIMENTS.names()}
    assert all(("table" in shown.what) == bool(shown.tables) for shown in PAPER)
    assert all(shown.experiment in EXPERIMENTS if shown.experiment else shown.elsewhere for shown in PAPER)


def test_what_one_encoder_cannot_repeat_is_made_elsewhere() -> None:
    others = [shown for shown in PAPER if "other encoders" in shown.what]
    assert others
    assert all("--encoder NAME" in shown.elsewhere for shown in others)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Setup]:
    """What experiments are asked for; none is run."""
    found: list[Setup] = []

    def note(_: str, setup: Setup) -> Outcome:
        found.append(setup)
        return Outcome()

    monkeypatch.setattr("recap.experiments.page.run_experiment", note)
    return found


def test_each_data_set_has_its_own_folder_of_finished_steps(
    data: Path, encoder_folder: Path, asked: list[Setup]
) -> None:
    (data / "flickr30k").mkdir()
    images = [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "a wall"}]}]
    (data / "flickr30k" / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    given = {"state": "S", "packs": "P", "checkpoints": "C", "captions": "W", "rounds": "2"}
    setup = Setup(data, encoder=f"onnx:{encoder_folder}", options=given)
    write_report(setup, data.parent / "report", ["flickr8k", "flickr30k"], experiments=["dal", "efficiency"])
    assert [dict(one.options) for one in asked] == [
        {"state": "S/flickr8k", "packs": "P/flickr8k", "rounds": "2"},
        {"checkpoints": "C/flickr8k", "captions": "W/flickr8k"},
        {"state": "S/flickr30k", "packs": "P/flickr30k", "rounds": "2"},
        {"checkpoints": "C/flickr30k", "captions": "W/flickr30k"},
    ]


def test_finished_steps_are_kept_with_the_report_apart_for_each_setup(
    data: Path, encoder_folder: Path, asked: list[Setup]
) -> None:
    setup, out = Setup(data, encoder=f"onnx:{encoder_folder}"), data.parent / "report"
    for one in (setup, setup, replace(setup, seed=1)):
        (out / "flickr8k" / "dal" / "part.json").unlink(missing_ok=True)
        write_report(one, out, ["flickr8k"], experiments=["dal"])
    first, again, other = (Path(one.options["state"]) for one in asked)
    assert first == again != other
    assert first.parent == other.parent == out / "flickr8k" / "dal" / "state"
    write_report(replace(setup, options={"state": "S"}), out, ["flickr8k"], experiments=["dal"])
    (out / "flickr8k" / "dal" / "part.json").write_text("torn")
    write_report(setup, out, ["flickr8k"], experiments=["dal"])
    assert len(asked) == 5
    write_report(replace(setup, options={"state": "T"}), out, ["flickr8k"], experiments=["dal"])
    assert len(asked) == 5, "where steps are kept changes nothing in what comes out"
