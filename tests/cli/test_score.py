import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from recap.cli.score import score
from recap.encoders.base import Encoder
from recap.encoders.images import decode
from recap.errors import ImageError, InputError
from recap.metrics import cider_d, rouge_l

CANDIDATES = {"1": "a red ball", "2": "a green field of grass", "3": "the blue sea"}
REFERENCES = {"1": ["a red ball on the floor", "red toy"], "2": ["green grass"], "3": ["a wave in the blue sea"]}


class Eyes:
    """Mean colours for pictures, letters for texts: two spaces."""

    truncated = 0

    def __init__(self, name: str, dimension: int) -> None:
        self.name, self.dimension, self.fingerprint = name, dimension, f"0{dimension}"

    def encode_each(self, images):
        for image in images:
            try:
                row = np.asarray(decode(image), np.float32).mean(axis=(0, 1)) + 1
            except ImageError as error:
                yield error
            else:
                yield row / np.linalg.norm(row)

    def encode_texts(self, texts, *, progress=False):
        rows = np.array([[1 + text.count(letter) for letter in "aerlbs"] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def no_parser(monkeypatch) -> None:
    """Stand for an installation without what SPICE and METEOR run in."""
    for name in ("java", "scenegraph", "spice"):
        monkeypatch.setitem(sys.modules, f"recap.metrics.{name}", None)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "candidates.json").write_text(json.dumps(CANDIDATES))
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    return tmp_path


@pytest.fixture
def encoder(monkeypatch) -> None:
    loaded = Encoder("eyes,letters", Eyes("eyes", 3), Eyes("letters", 6))
    monkeypatch.setattr("recap.encoders.load_encoder", lambda *_, **__: loaded)


def run(folder: Path, *arguments: str, code: int = 0):
    names = [str(folder / part) if (folder / part).exists() else part for part in arguments]
    result = CliRunner().invoke(score, names, catch_exceptions=False)
    assert result.exit_code == code, result.stderr
    return result


def basics(*more: str) -> tuple[str, ...]:
    return ("candidates.json", "--references", "references.json", *more)


def test_json_holds_what_the_library_computes(files: Path):
    values = json.loads(run(files, *basics("--metrics", "rouge-l,cider", "--json", "--per-image")).stdout)
    texts, references = list(CANDIDATES.values()), list(REFERENCES.values())
    expected = {row.name: row for row in (rouge_l(texts, references), cider_d(texts, references))}
    for row in values["metrics"]:
        assert row["value"] == 100 * expected[row["metric"]].value
        assert row["standard_error"] == 100 * expected[row["metric"]].standard_error
    assert [item["id"] for item in values["per_image"]] == ["1", "2", "3"]
    assert [item["CIDEr-D"] for item in values["per_image"]] == (100 * expected["CIDEr-D"].per_image).tolist()
    assert values["unit"].startswith("points")


def test_table_and_csv_and_markdown(files: Path):
    table = run(files, *basics()).stdout
    for part in ("BLEU-4", "CIDEr-D", "needs the pictures"):
        assert part in table
    lines = list(csv.DictReader(io.StringIO(run(files, *basics("--metrics", "bleu", "--csv")).stdout)))
    assert [line["metric"] for line in lines] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]
    images = run(files, *basics("--metrics", "rouge", "--csv", "--per-image")).stdout
    assert images.splitlines()[0] == "id,ROUGE-L"
    markdown = run(files, *basics("--metrics", "rouge", "--markdown")).stdout
    assert markdown.startswith("| metric | points (x 100) |")
    for flag, kind in (("--markdown", "markdown"), ("--csv", "csv"), ("--json", "json")):
        options = basics("--metrics", "rouge")
        assert run(files, *options, flag).stdout == run(files, *options, "--format", kind).stdout
    assert r"\toprule" in run(files, *basics("--metrics", "rouge", "--format", "latex")).stdout
    assert "points (x 100)" in table


def test_nothing_to_compute_is_an_error(files: Path):
    with pytest.raises(InputError, match=r"nothing can be computed: .*references"):
        run(files, "candidates.json")


def test_data_on_stdout_warnings_on_stderr(files: Path):
    (files / "references.json").write_text(json.dumps({**REFERENCES, "9": ["nobody"]}))
    (files / "candidates.json").write_text(json.dumps({**CANDIDATES, "2": ""}))
    result = run(files, *basics("--metrics", "rouge-l", "--json"))
    assert json.loads(result.stdout)["images"] == 3
    assert "1 images with references have no candidate, such as 9" in result.stderr
    assert "1 of 3 candidates hold no word" in result.stderr


def test_a_metric_asked_for_by_name_that_is_missing_is_exit_code_1(files: Path):
    result = run(files, *basics("--metrics", "rouge-l,aclip-s"), code=1)
    assert "aCLIP-S: needs the pictures" in result.stderr
    assert "ROUGE-L" in result.stdout


def test_pictures_and_a_map_fitted_in_the_same_call(files: Path, encoder):
    for name, colour in (("1", "red"), ("2", "green")):
        Image.new("RGB", (4, 4), colour).save(files / f"{name}.png")
    (files / "3.png").write_bytes(b"broken")
    pairs = files / "pairs.csv"
    pairs.write_text("image,caption\n1.png,a red ball\n2.png,green grass here\n1.png,red toy\n")
    options = ("--metrics", "aclip-s,refaclip-s", "--images", str(files), "--encoder", "x", "--fit", "pairs.csv")
    result = run(files, *basics(*options, "--json", "--per-image"), code=1)
    values = json.loads(result.stdout)
    assert values["alignment"] == "procrustes on 3 pairs"
    assert [row["metric"] for row in values["metrics"]] == ["aCLIP-S", "RefaCLIP-S"]
    assert [item["aCLIP-S"] is None for item in values["per_image"]] == [False, False, True]
    assert "3.png" in result.stderr
    assert "3.png" in values["problems"][0]
    without = run(files, *basics("--metrics", "clip-s", "--images", str(files), "--encoder", "x"), code=1)
    assert "CLIP-S: not available with this encoder" in without.stderr


def test_against_another_system(files: Path):
    other = {"3": "a blue wave in the sea", "1": "a cat", "4": "nobody"}
    (files / "other.json").write_text(json.dumps(other))
    result = run(files, *basics("--metrics", "rouge-l", "--against", "other.json", "--json"))
    values = json.loads(result.stdout)
    assert values["images"] == values["other"]["images"] == 2
    comparison = values["comparison"][0]
    difference = values["metrics"][0]["value"] - values["other"]["metrics"][0]["value"]
    assert comparison["difference"] == pytest.approx(difference)
    assert comparison["interval"][0] <= difference <= comparison["interval"][1]
    assert "are in one file of candidates only" in result.stderr
    table = run(files, *basics("--metrics", "rouge-l", "--against", "other.json")).stdout
    assert "paired" in table
    lines = run(files, *basics("--metrics", "rouge-l", "--against", "other.json", "--csv")).stdout.splitlines()
    assert lines[0] == "metric,points,other,difference,low,high,p_value"
    (files / "other.json").write_text('{"7": "x"}')
    with pytest.raises(InputError, match="no image in common"):
        run(files, *basics("--against", "other.json"))


def test_heatmap(files: Path):
    pytest.importorskip("matplotlib")
    run(files, *basics("--metrics", "rouge-l,cider", "--heatmap", str(files / "map.png")))
    with Image.open(files / "map.png") as picture:
        assert picture.format == "PNG"


@pytest.mark.parametrize(
    "options",
    [("--json", "--csv"), ("--format", "latex", "--json"), ("--per-image",), ("--pack", "a", "--encoder", "b")],
)
def test_usage_errors(files: Path, options):
    assert "Error" in run(files, *basics(*options), code=2).stderr


def test_a_metric_of_the_users_own(files: Path):
    (files / "mine.py").write_text(
        "def words(captions, references):\n    return [len(c.split()) / 100 for c in captions]\n"
    )
    values = json.loads(run(files, *basics("--metrics", f"rouge-l,{files}/mine.py:words", "--json")).stdout)
    assert [row["metric"] for row in values["metrics"]] == ["ROUGE-L", "words"]
    expected = sum(len(text.split()) for text in CANDIDATES.values()) / len(CANDIDATES)
    assert values["metrics"][1]["value"] == pytest.approx(expected)
    for name in (f"{files}/mine.py:other", "no_such_module:words", f"{files}/gone.py:words"):
        with pytest.raises(InputError, match="cannot be imported"):
            run(files, *basics("--metrics", name))
