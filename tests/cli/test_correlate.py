import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scipy.stats import kendalltau

from recap.cli.correlate import correlate
from recap.metrics import rouge_l

CAPTIONS = {
    "a": ["a red ball on the floor", "red toy"],
    "b": ["green grass", "a large green field"],
    "c": ["a wave in the blue sea", "blue water"],
    "d": ["a green ball on grass", "a toy on the field"],
}


@pytest.fixture(autouse=True)
def no_parser(monkeypatch) -> None:
    """Stand for an installation without what SPICE and METEOR run in."""
    for name in ("java", "scenegraph", "spice"):
        monkeypatch.setitem(sys.modules, f"recap.metrics.{name}", None)


@pytest.fixture
def expert(tmp_path: Path) -> Path:
    tokens = [f"{name}.jpg#{n}\t{text}\n" for name, texts in CAPTIONS.items() for n, text in enumerate(texts)]
    (tmp_path / "Flickr8k.token.txt").write_text("".join(tokens))
    rng = np.random.default_rng(0)
    rows = []
    for image in CAPTIONS:
        for other in CAPTIONS:
            for n in range(2):
                scores = "\t".join(map(str, rng.integers(1, 5, 3)))
                rows.append(f"{image}.jpg\t{other}.jpg#{n}\t{scores}\n")
    (tmp_path / "ExpertAnnotations.txt").write_text("".join(rows))
    return tmp_path / "ExpertAnnotations.txt"


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(correlate, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.stderr
    return result


def options(*more: object) -> tuple[object, ...]:
    return ("--input-format", "flickr8k-expert", "--replicates", 20, *more)


def test_taus_equal_scipy(expert: Path):
    values = json.loads(run(expert, *options("--metrics", "rouge-l", "--json")).stdout)
    scores, human = [], []
    for line in expert.read_text().splitlines():
        image, caption, *ratings = line.split("\t")
        name, other = image[0], caption[0]
        if name != other:
            score = rouge_l([CAPTIONS[other][int(caption[-1])]], [CAPTIONS[name]]).value
            scores += [score] * 3
            human += map(int, ratings)
    row = values["metrics"][0]
    assert row["judgements"] == len(human) == 72
    assert row["tau_b"] == pytest.approx(100 * kendalltau(scores, human, variant="b").statistic, abs=0.01)
    assert row["tau_c"] == pytest.approx(100 * kendalltau(scores, human, variant="c").statistic, abs=0.01)
    assert row["tau_c_low"] <= row["tau_c"] <= row["tau_c_high"]
    assert values["judged"] == 24
    assert set(values["between_raters"]) == {"tau_b", "tau_c"}


def test_table_csv_and_plot(expert: Path):
    pytest.importorskip("matplotlib")
    picture = expert.parent / "plot.png"
    table = run(expert, *options("--metrics", "bleu-1,rouge-l", "--plot", picture)).stdout
    for part in ("BLEU-1", "ROUGE-L", "tau-c", "between raters"):
        assert part in table
    with Image.open(picture) as drawn:
        assert drawn.format == "PNG"
    lines = list(csv.DictReader(io.StringIO(run(expert, *options("--metrics", "rouge-l", "--csv")).stdout)))
    assert lines[0]["metric"] == "ROUGE-L"
    assert lines[0]["judgements"] == "72"


def test_without_pictures_reference_metrics_remain(expert: Path):
    result = run(expert, *options())
    assert "CIDEr-D" in result.stdout
    assert "needs the pictures" in result.stdout
    asked = run(expert, *options("--metrics", "cider,aclip-s", "--csv"), code=1)
    assert "aCLIP-S: needs the pictures" in asked.stderr
    assert asked.stdout.count("\n") == 2


def test_references_for_thumb_come_from_any_file(tmp_path: Path):
    lines = [
        {"image": f"COCO_val2014_{number:012}.jpg", "hyp": text, "human_score": score}
        for number, text, score in ((7, "red toy", 5.0), (8, "a cat", 1.0), (8, "green grass", 4.5))
    ]
    file = tmp_path / "thumb.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "refs.json").write_text(json.dumps({"7": CAPTIONS["a"], "8": CAPTIONS["b"]}))
    chosen = ("--input-format", "thumb", "--metrics", "rouge-l", "--json", "--replicates", 20)
    values = json.loads(run(file, *chosen, "--references", tmp_path / "refs.json").stdout)
    assert values["metrics"][0]["tau_b"] == pytest.approx(100 * kendalltau([1, 0, 1], [5, 1, 4.5]).statistic, abs=0.01)
    assert "between_raters" not in values
    run(file, *chosen, code=1)


def test_usage_errors(expert: Path):
    assert run(expert, *options("--metrics", "bleu-1", "--format", "markdown")).stdout.startswith("| metric | tau_b |")
    assert r"\toprule" in run(expert, *options("--metrics", "bleu-1", "--format", "latex")).stdout
    assert "choose one format: csv, json" in run(expert, *options("--json", "--csv"), code=2).stderr
    assert "flickr8k-expert" in run(expert, "--input-format", "other", code=2).stderr
