"""The table of efficiency from the command line, on a tiny data set in the shape of Flickr8k."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from recap.cli.experiment import experiment
from recap.errors import InputError
from recap.types import Pair


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]) -> Path:
    """Two pictures of each colour to fit, one to judge with."""
    home = tmp_path_factory.mktemp("data") / "flickr8k"
    (home / "images").mkdir(parents=True)
    for pair in pairs:
        shutil.copy(str(pair.image), home / "images")
    lines = [f"{pair.id}#{number}\t{text}\n" for pair in pairs for number, text in enumerate(pair.captions)]
    (home / "captions.token.txt").write_text("".join(lines))
    for split, numbers in {"train": (0, 1), "dev": (2,), "test": (2,)}.items():
        names = [pair.id for pair in pairs if int(Path(pair.id).stem[-1]) in numbers]
        (home / f"{split}.txt").write_text("\n".join(names))
    return home.parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))


def run(data: Path, encoder: Path, *options: str, out: Path | None = None) -> Result:
    arguments = ["efficiency", "--data", str(data), "--encoder", f"onnx:{encoder}", "--json"]
    for option in ("decoder=scratch", *options):
        arguments += ["--option", option]
    if out:
        arguments += ["--out", str(out)]
    result = CliRunner().invoke(experiment, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: cell["value"] for name, cell in row["cells"].items()} for row in table["sections"][0]["rows"]]


def test_an_epoch_is_told_from_a_few_steps(torch: Any, data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    result = run(data, encoder_folder, "steps=2", "batch=4", out=tmp_path / "out")
    recap, clipcap, smallcap = rows(json.loads((tmp_path / "out" / "times.json").read_text()))
    assert recap["counted"] == "measured"
    assert recap["epoch / fit"] == 1
    # 36 captions are nine steps of four
    assert clipcap["counted"] == smallcap["counted"] == "extrapolated from 2 of 9 steps"
    for row in (clipcap, smallcap):
        assert row["epoch / fit"] == pytest.approx(row["Training"] / recap["Training"])
        assert row["to best dev"] is None
        assert row["1,000 pictures"] > 0
    table = json.loads(result.stdout)
    assert [row["label"] for row in table["sections"][1]["rows"]] == [
        *("ClipCap", "Prefix-Diffusion", "I-Tuning", "SmallCap", "ReCap")
    ]
    assert rows(table)[0]["|theta|"] == "0.00M"  # 4 x 12
    assert rows(table)[0]["dev CIDEr-D"] > 100
    assert rows(table)[1]["dev CIDEr-D"] is None


def test_trained_to_the_best_of_dev_and_again_from_checkpoints(
    torch: Any, data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    options = ("epochs=3", "batch=6", "rate=0.01", "systems=clipcap", f"checkpoints={tmp_path / 'kept'}")
    one = run(data, encoder_folder, *options, out=tmp_path / "out")
    assert {path.name for path in (tmp_path / "kept" / "clipcap").iterdir()} == {"last.pt", "best.pt"}
    times = rows(json.loads((tmp_path / "out" / "times.json").read_text()))[1]
    assert times["counted"] == "measured"
    assert times["to best dev"] >= times["Training"]
    assert "epoch 3, loss" in one.stderr
    other = run(data, encoder_folder, *options)
    assert other.stdout == one.stdout
    assert "epoch 3" not in other.stderr  # all epochs were there
    assert rows(json.loads(one.stdout))[1]["epochs"].endswith("of 3")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("systems=blip", "no baseline 'blip'"),
        ("tuned=maybe", "yes or no, not 'maybe'"),
        ("steps=few", "steps=few: expected a whole number"),
        ("pictures=0", "pictures=0: expected a whole number, at least 1"),
        ("rate=slow", "rate=slow: expected a number"),
    ],
)
def test_wrong_options_are_refused(torch: Any, data: Path, encoder_folder: Path, option: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(data, encoder_folder, option)
