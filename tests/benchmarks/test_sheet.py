"""``benchmarks/sheet.py``, run as it is used."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sheet.py"
COLOURS = ("red", "green", "blue", "yellow", "black")


def sheet(*arguments: object, code: int = 0) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout if code == 0 else done.stderr).split())


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for colour in COLOURS * 3:
        number = len(list(folder.iterdir()))
        Image.new("RGB", (40 + number, 30), colour).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture
def files(pictures: Path) -> tuple[Path, Path]:
    """What two captioners say; the same about the first picture, but for capital and full stop."""
    before, after = pictures.parent / "before.jsonl", pictures.parent / "after.json"
    paths = sorted(pictures.iterdir())
    lines = [{"path": str(path), "caption": f"old words on {path.stem}", "confidence": 0.9} for path in paths]
    lines[0]["caption"] = "The Same."
    lines[1] |= {"caption": None, "withheld": lines[1]["caption"], "confidence": 0.2}
    before.write_text("".join(json.dumps(line) + "\n" for line in lines))
    new = {path.stem: f"New words {'and more words ' * 6}on {path.stem}" for path in paths}
    after.write_text(json.dumps(new | {paths[0].stem: "the Same"}))
    return before, after


def test_sheets_are_blind_and_repeatable(pictures: Path, files: tuple[Path, Path], tmp_path: Path):
    options = ("make", pictures, "--before", files[0], "--after", files[1], "--seed", 4)
    for name in ("one", "two"):
        assert "15 pictures" in sheet(*options, "--out", tmp_path / name)
    for name in ("judged.csv", "key.json", "sheet-01.png", "sheet-02.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert not (tmp_path / "one/sheet-03.png").exists()
    assert Image.open(tmp_path / "one/sheet-01.png").width == 1280
    key = json.loads((tmp_path / "one/key.json").read_text())["pictures"]
    assert {item["a"]["system"] for item in key} == {item["b"]["system"] for item in key} == {"before", "after"}
    assert [item["path"] for item in key] != sorted(item["path"] for item in key)
    with (tmp_path / "one/judged.csv").open(newline="") as file:
        form = list(csv.DictReader(file))
    assert form[0].keys() == {"number", "caption a", "a", "caption b", "b"}
    for row, item in zip(form, key, strict=True):
        for side in "ab":
            assert row[f"caption {side}"].lower() == item[side]["caption"].lower().rstrip(".")
            assert row[f"caption {side}"][0].isupper()
            assert row[side] == ""
    assert "may be filled in" in sheet(*options, "--out", tmp_path / "one", code=1)
    few = sheet("make", pictures, "--before", files[0], "--count", 3, "--out", tmp_path / "few")
    assert "3 pictures" in few
    assert (tmp_path / "few/judged.csv").read_text().splitlines()[0] == "number,caption a,a"


def fill(folder: Path, name: str, verdict: dict[str, str], *, skip_second: bool = True) -> Path:
    """Fill the form in as a reader would who thinks the same of all captions of a captioner."""
    key = {str(item["number"]): item for item in json.loads((folder / "key.json").read_text())["pictures"]}
    with (folder / "judged.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        same = row["caption a"] == row["caption b"]
        row["a"] = "RIGHT " if same else verdict[key[row["number"]]["a"]["system"]]
        row["b"] = "" if same and skip_second else "right" if same else verdict[key[row["number"]]["b"]["system"]]
    with (folder / name).open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    return folder / name


def test_verdicts_are_counted_for_the_right_captioner(pictures: Path, files: tuple[Path, Path], tmp_path: Path):
    folder = tmp_path / "out"
    sheet("make", pictures, "--before", files[0], "--after", files[1], "--out", folder)
    one = fill(folder, "one.csv", {"before": "w", "after": "right"})
    told = sheet("tally", folder / "key.json", one)
    assert "one before 15 1 (7%) 0 (0%) 14 (93%)" in told
    assert "one after 15 15 (100%) 0 (0%) 0 (0%)" in told
    # 14 captions are 90 % sure and one of them is right, one is 20 % sure and wrong
    error = (14 * 0.9 + 0.2 - 1) / 15
    assert "before 15 0.85 0.07" in told
    assert f"{error:.3f}" in told
    assert "7% of 14" in told
    assert "before 0.5 93% 7% 0% 93%" in told
    other = fill(folder, "other.csv", {"before": "partly", "after": "right"}, skip_second=False)
    both = sheet("tally", folder / "key.json", one, other)
    assert "other before 15 1 (7%) 14 (93%) 0 (0%)" in both
    assert "all readers before 30 2 (7%) 14 (47%) 14 (47%)" in both
    assert "the same about 53% of the captions" in both
    (folder / "elsewhere").mkdir()
    namesake = other.rename(folder / "elsewhere" / one.name)
    assert "all readers before 30 2 (7%) 14 (47%) 14 (47%)" in sheet("tally", folder / "key.json", one, namesake)


def test_what_is_no_verdict_is_named_and_blanks_are_not_counted(
    pictures: Path, files: tuple[Path, Path], tmp_path: Path
):
    folder = tmp_path / "out"
    sheet("make", pictures, "--before", files[0], "--after", files[1], "--out", folder)
    assert "before 0 0 (0%)" in sheet("tally", folder / "key.json", folder / "judged.csv")
    wrong = fill(folder, "one.csv", {"before": "maybe", "after": "right"})
    assert "'maybe' is none of right, partly, wrong" in sheet("tally", folder / "key.json", wrong, code=1)


def test_a_pack_captions_a_list_of_pictures(
    pictures: Path, pairs_folder: Path, encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    from recap import ReCap

    ReCap.fit(pairs_folder, encoder=f"onnx:{encoder_folder}", language_model="none").save_pretrained(tmp_path / "pack")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "list.txt").write_text(f"{new_pictures['red']}\n{tmp_path / 'broken.png'}\n")
    told = sheet("make", tmp_path / "list.txt", "--before", tmp_path / "pack", "--out", tmp_path / "out")
    assert "1 pictures, 1 without captions left out" in told
    assert "red" in (tmp_path / "out/judged.csv").read_text().lower()
