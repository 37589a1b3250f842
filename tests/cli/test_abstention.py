"""Captions that are probably wrong are marked; with ``--min-confidence`` they are withheld. Every output says so."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import click
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from recap.batch import FileFacts, Record
from recap.batch.metadata import read_description
from recap.captioner import ReCap
from recap.cli.main import cli
from recap.cli.terminal import Printer
from recap.confidence import FEATURES, Calibration
from recap.errors import InputError
from recap.types import Caption, Pair

COSINE_ONLY = (6.0, *(0.0 for _ in FEATURES[1:]))


@pytest.fixture(autouse=True)
def _limit_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what the command changes for its whole process."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


@pytest.fixture(scope="module")
def captioner(pairs: list[Pair], encoder_folder: Path) -> ReCap:
    fitted = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
    fitted.calibration = Calibration(-3.0, COSINE_ONLY, "ols", 20, "made up")
    return fitted


@pytest.fixture(scope="module")
def pack(captioner: ReCap, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated") / "pack"
    captioner.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(new_pictures: dict[str, Path], tmp_path: Path) -> Path:
    """Six pictures of the names 1 to 6."""
    place = tmp_path / "pictures"
    place.mkdir()
    for number, path in enumerate(new_pictures.values(), 1):
        shutil.copy(path, place / f"{number}.png")
    return place


@pytest.fixture
def said(captioner: ReCap, folder: Path) -> dict[str, Caption]:
    return {str(path): captioner.caption(path) for path in sorted(folder.glob("*.png"))}


@pytest.fixture
def minimum(said: dict[str, Caption]) -> float:
    """So much is reached by half of the captions."""
    return sorted(float(caption.confidence or 0) for caption in said.values())[3]


@pytest.fixture
def doubtful(said: dict[str, Caption], minimum: float) -> set[str]:
    found = {path for path, caption in said.items() if float(caption.confidence or 0) < minimum}
    assert len(found) == 3
    return found


@pytest.fixture
def unsure(monkeypatch: pytest.MonkeyPatch, minimum: float, doubtful: set[str]) -> set[str]:
    """The pictures whose caption is unsure: half of them."""
    monkeypatch.setattr("recap.types.UNSURE_BELOW", minimum)
    return doubtful


def caption(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["caption", *map(str, arguments)])
    if isinstance(done.exception, InputError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def test_jsonl_has_null_and_what_was_withheld(
    pack: Path, folder: Path, said: dict[str, Caption], minimum: float, doubtful: set[str], tmp_path: Path
):
    out = tmp_path / "captions.jsonl"
    done = caption(folder, "--pack", pack, "--out", out, "--min-confidence", minimum)
    assert "6 captioned" in done.stderr
    assert "3 withheld" in done.stderr
    records = {record["path"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert records.keys() == said.keys()
    for path, record in records.items():
        told, kept = (None, said[path].text) if path in doubtful else (said[path].text, None)
        assert (record["caption"], record["withheld"], record["abstained"]) == (told, kept, path in doubtful)
        assert record["confidence"] == said[path].confidence
        assert record["generated_by"]["min_confidence"] == str(minimum)


def test_resuming_knows_the_threshold(pack: Path, folder: Path, minimum: float, doubtful: set[str], tmp_path: Path):
    out = tmp_path / "captions.jsonl"
    options = (folder, "--pack", pack, "--out", out)
    caption(*options, "--min-confidence", minimum)
    before = out.read_bytes()
    shutil.copy(next(iter(doubtful)), folder / "copy.png")
    done = caption(*options, "--min-confidence", minimum)
    assert "0 captioned, 7 were there already; 4 withheld" in done.stderr
    assert json.loads(out.read_text().splitlines()[-1])["abstained"]
    for other in (["--min-confidence", "0.01"], []):
        with pytest.raises(InputError, match=f"min confidence {minimum}, now {other[-1] if other else 'none'}"):
            caption(*options, *other)
    assert out.read_bytes().startswith(before)
    caption(*options, "--restart")
    assert "abstained" not in out.read_text()
    with pytest.raises(InputError, match=f"min confidence none, now {minimum}"):
        caption(*options, "--min-confidence", minimum)


def test_tables_have_the_same_columns(pack: Path, folder: Path, minimum: float, doubtful: set[str], tmp_path: Path):
    for name in ("a.csv", "a.parquet"):
        caption(folder, "--pack", pack, "--out", tmp_path / name, "--min-confidence", minimum)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["path"] for row in table if row["abstained"]} == doubtful
    assert {row["path"] for row in rows if row["abstained"] == "True"} == doubtful
    for row, text in zip(table, rows, strict=True):
        assert (row["caption"] is None) == row["abstained"] == (text["caption"] == "")
        assert (row["withheld"] is None) != row["abstained"]
        assert text["withheld"] == (row["withheld"] or "")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert set(frame[frame["abstained"]]["path"]) == doubtful
    assert frame["caption"].isna().sum() == 3
    assert pandas.read_csv(tmp_path / "a.csv")["caption"].isna().sum() == 3


def test_coco_results_leave_the_picture_out(
    pack: Path, folder: Path, minimum: float, doubtful: set[str], tmp_path: Path
):
    out = tmp_path / "results.json"
    done = caption(folder, "--pack", pack, "--out", out, "--min-confidence", minimum)
    assert f"3 pictures are left out of {out}" in done.stderr
    told = {entry["image_id"] for entry in json.loads(out.read_text())}
    assert told == {1, 2, 3, 4, 5, 6} - {int(Path(path).stem) for path in doubtful}
    tools = pytest.importorskip("pycocotools.coco")
    truth = tools.COCO()
    truth.dataset = {"images": [{"id": n} for n in range(1, 7)], "annotations": []}
    truth.createIndex()
    assert set(truth.loadRes(str(out)).getImgIds()) == told
    nothing = caption(folder, "--pack", pack, "--out", tmp_path / "none.json", "--min-confidence", 1)
    assert "6 pictures are left out" in nothing.stderr
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_sidecars_and_metadata_are_not_written(
    pack: Path, folder: Path, said: dict[str, Caption], minimum: float, doubtful: set[str]
):
    done = caption(folder, "--pack", pack, "--sidecars", "--metadata", "--min-confidence", minimum)
    for path, told in said.items():
        described = read_description(path)
        assert Path(path).with_suffix(".txt").exists() == (path not in doubtful)
        assert (described.text if described else None) == (None if path in doubtful else told.text)
    lines = dict(line.split("\t") for line in done.stdout.splitlines())
    assert lines == {path: "" if path in doubtful else told.text for path, told in said.items()}
    for path in doubtful:
        assert f"recap: {path}: withheld, only {said[path].confidence:.0%} sure" in done.stderr
    assert "3 of 6 captions were withheld" in done.stderr


def test_explanations_and_pages_show_what_was_withheld(
    pack: Path, folder: Path, minimum: float, doubtful: set[str], tmp_path: Path
):
    page = tmp_path / "page.html"
    out = ("--out", tmp_path / "captions.jsonl")
    for options in (("--explain",), out, out):
        done = caption(folder, "--pack", pack, "--html", page, "--min-confidence", minimum, *options)
        assert page.read_text(encoding="utf-8").count('<span class="tag">Withheld</span>') == 3
        if options == ("--explain",):
            assert done.stdout.count("withheld: ") == 3
    printed = caption(folder, "--pack", pack, "--json", "--min-confidence", minimum)
    assert {r["path"] for r in map(json.loads, printed.stdout.splitlines()) if r["abstained"]} == doubtful


def test_a_video_is_withheld_too(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    av = pytest.importorskip("av")
    clip = tmp_path / "clip.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 64
        frame = av.VideoFrame.from_image(Image.open(new_pictures["green"]).convert("RGB").resize((64, 64)))
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    for minimum, empty in ((0.0, False), (1.0, True)):
        done = caption(clip, "--pack", pack, "--min-confidence", minimum)
        assert (done.stdout == f"{clip}\t\n") == empty


def test_a_pack_without_calibration_is_an_error_before_any_work(
    pack: Path, pairs: list[Pair], encoder_folder: Path, folder: Path, tmp_path: Path
):
    out = tmp_path / "out.jsonl"
    plain = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match="this pack has no calibration"):
        caption(folder, "--pack", tmp_path / "plain", "--out", out, "--min-confidence", 0.5)
    with pytest.raises(InputError, match="calibrated for the map ols, not for procrustes"):
        caption(folder, "--pack", pack, "--out", out, "--min-confidence", 0.5, "--method", "procrustes")
    assert not out.exists()
    done = CliRunner().invoke(cli, ["caption", str(folder), "--pack", str(pack), "--min-confidence", "50"])
    assert done.exit_code == 2
    assert "0<=x<=1" in done.output


def test_alternative_texts(
    pack: Path, folder: Path, said: dict[str, Caption], minimum: float, doubtful: set[str], tmp_path: Path
):
    page = tmp_path / "page.html"
    page.write_text("".join(f'<img src="{path}">\n' for path in said))
    options = ["--pack", str(pack), "--min-confidence", str(minimum), "--base", "/"]
    done = CliRunner().invoke(cli, ["alt", str(page), *options])
    assert done.exit_code == 0, done.output
    for path, line in zip(said, done.stdout.splitlines(), strict=True):
        assert ("alt=" in line) == (path not in doubtful)
    assert "3 filled, 0 had a text or are decoration, 3 left alone (3 not sure enough)" in done.stderr
    done = CliRunner().invoke(cli, ["alt", str(page), *options, "--in-place", "--json"])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    withheld = {finding["src"]: finding["text"] for finding in found if finding["status"] == "withheld"}
    assert withheld == {path: f"only {said[path].confidence:.0%} sure: {said[path].text}" for path in doubtful}


def test_unsure_captions_are_marked_for_people_and_lines_for_programs_stay_as_they_are(
    pack: Path, folder: Path, said: dict[str, Caption], unsure: set[str], tmp_path: Path
):
    done = caption(folder, "--pack", pack, "--html", tmp_path / "page.html")
    assert dict(line.split("\t") for line in done.stdout.splitlines()) == {p: c.text for p, c in said.items()}
    assert "recap: 3 of 6 captions are unsure" in done.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("Unsure</span>") == 3
    assert caption(folder, "--pack", pack, "--explain").stdout.count("? unsure: ") == 3
    printed = caption(folder, "--pack", pack, "--json")
    assert {r["path"] for r in map(json.loads, printed.stdout.splitlines()) if r["unsure"]} == unsure
    for name in ("a.csv", "a.parquet"):
        for _ in range(2):
            assert "were there already; 3 unsure" in caption(folder, "--pack", pack, "--out", tmp_path / name).stderr
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert {row["path"] for row in table if row["unsure"]} == unsure
    with (tmp_path / "a.csv").open(newline="") as file:
        assert {row["path"] for row in csv.DictReader(file) if row["unsure"] == "True"} == unsure


def test_what_is_withheld_is_not_called_unsure_too(pack: Path, folder: Path, minimum: float, unsure: set[str]):
    done = caption(folder, "--pack", pack, "--min-confidence", minimum)
    assert "unsure" not in done.stderr
    assert "? unsure" not in caption(folder, "--pack", pack, "--min-confidence", minimum, "--explain").stdout


@pytest.mark.parametrize(
    ("confidence", "mark"), [(0.31, "\t? unsure, 31%"), (0.5, ""), (None, "")], ids=["unsure", "sure", "unknown"]
)
def test_a_terminal_shows_the_mark(
    confidence: float | None, mark: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    made = Caption("a red wall", 0.4, (), (), "consensus", confidence)
    printer = Printer(as_json=False, explain=False)
    printer.add(Record("a.jpg", made.as_dict(), {}, FileFacts("ab" * 32, 1, 2)))
    printer.close()
    told = capsys.readouterr()
    assert click.unstyle(told.out) == f"a.jpg\ta red wall{mark}\n"
    assert told.err == ""


def test_a_terminal_is_not_told_twice(pack: Path, folder: Path, unsure: set[str]):
    assert unsure
    for options in ("--json", "--explain"):
        assert "unsure" not in caption(folder, "--pack", pack, options).stderr


def test_alternative_texts_leave_out_what_is_not_safe(
    pack: Path,
    said: dict[str, Caption],
    minimum: float,
    doubtful: set[str],
    pairs: list[Pair],
    encoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("recap.alt.fill.SAFE", minimum)
    page = tmp_path / "page.html"
    page.write_text("".join(f'<img src="{path}">\n' for path in said))
    plain = tmp_path / "plain"
    ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols").save_pretrained(plain)
    for folder, options, left in (
        (pack, [], doubtful),
        (pack, ["--min-confidence", "0"], set()),
        (plain, [], set()),
        (plain, ["--min-confidence", "0"], set()),
    ):
        done = CliRunner().invoke(cli, ["alt", str(page), "--pack", str(folder), "--base", "/", *options])
        assert done.exit_code == 0, done.output
        without = {path for path, line in zip(said, done.stdout.splitlines(), strict=True) if "alt=" not in line}
        assert without == left
        assert ("3 left alone (3 not sure enough)" in done.stderr) == bool(left)
