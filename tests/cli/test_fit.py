"""``recap fit`` with all its options."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from program import facts, part_of, recap

from recap import ReCap

pytestmark = pytest.mark.usefixtures("own_cache")


def test_tuning_prints_a_table_and_the_numbers_reach_the_card(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    train = part_of(pairs_folder, tmp_path / "train", "0", "1")
    rest = part_of(pairs_folder, tmp_path / "rest", "2")
    done = recap(
        "fit",
        train,
        "--out",
        tmp_path / "pack",
        "--encoder",
        f"onnx:{encoder_folder}",
        "--lm",
        "none",
        "--validation",
        rest,
        "--tune",
    )
    table = [line for line in done.stderr.splitlines() if "CIDEr-D" in line]
    assert len([line for line in table if line.endswith("chosen")]) == 3
    tried = [line.split()[1] for line in table if line.startswith("selection")]
    assert "default" in tried
    assert "None" not in tried
    numbers = facts(tmp_path / "pack")["numbers"]
    assert numbers["pictures"] == 6
    best = max(float(line.split("CIDEr-D")[1].split()[0]) for line in table)
    assert numbers["cider_d"] == pytest.approx(best, abs=0.06)


def test_broken_and_repeated_pairs_are_counted_and_listed(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    folder = tmp_path / "pairs"
    shutil.copytree(pairs_folder, folder)
    for suffix in (".png", ".txt"):
        shutil.copy(folder / f"red0{suffix}", folder / f"twin{suffix}")
    (folder / "bad.png").write_bytes(b"")
    (folder / "bad.txt").write_text("a wall")
    report = tmp_path / "report.jsonl"
    done = recap(
        "fit",
        folder,
        "--out",
        tmp_path / "pack",
        "--encoder",
        f"onnx:{encoder_folder}",
        "--lm",
        "none",
        "--report",
        report,
        code=1,
    )
    assert "1 broken:" in done.stderr
    assert "bad.png: the file is empty" in done.stderr
    assert "3 repeated pairs, left out:" in done.stderr
    assert "54 pairs of 18 pictures" in done.stderr
    kinds = [json.loads(line)["kind"] for line in report.read_text().splitlines()]
    assert kinds == ["broken", "repeated picture", *["repeated pair"] * 3]


def test_update_and_forget_are_exact(pack: Path, pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    first = part_of(pairs_folder, tmp_path / "walls", "0")
    second = part_of(pairs_folder, tmp_path / "more", "1", "2")
    options = ("--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--method", "ols")
    recap("fit", first, "--out", tmp_path / "grown", *options)
    recap("fit", "--update", tmp_path / "grown", second, "--source", "walls")
    whole, grown = ReCap.from_pretrained(pack), ReCap.from_pretrained(tmp_path / "grown")
    np.testing.assert_allclose(grown.alignment.W_, whole.alignment.W_, atol=1e-6)
    assert "missing: red1.png" in recap("fit", "--update", tmp_path / "grown", "--forget", "red1.png", code=2).stderr
    recap("fit", "--update", tmp_path / "grown", "--forget", "red1.png,blue2.png", pairs_folder)
    names = tmp_path / "names.txt"
    names.write_text("red1.png\nblue2.png\n")
    recap("fit", "--update", pack, "--out", tmp_path / "less", "--forget", names)
    assert facts(pack)["pictures"] == 18, "--out leaves the pack alone"
    less, grown = ReCap.from_pretrained(tmp_path / "less"), ReCap.from_pretrained(tmp_path / "grown")
    np.testing.assert_allclose(grown.alignment.W_, less.alignment.W_, atol=1e-6)
    assert facts(tmp_path / "less")["captions"] == facts(tmp_path / "grown")["captions"] == 48
    assert not recap("datastore", "list", tmp_path / "less", "--image", "red1.png").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["PAIRS"], "Missing option '--out'"),
        (["--out", "o"], "Missing argument 'PAIRS'"),
        (["PAIRS", "--out", "o", "--forget", "x"], "--forget goes with --update"),
        (["PAIRS", "--update", "PACK", "--method", "ols"], "--method: not with --update"),
        (["PAIRS", "--out", "o", "--validation", "x"], "--validation x: neither a share"),
    ],
)
def test_options_that_do_not_go_together(pack: Path, pairs_folder: Path, arguments: list[str], message: str):
    places = {"PAIRS": pairs_folder, "PACK": pack}
    assert message in recap("fit", *(places.get(a, a) for a in arguments), code=2).stderr


def test_shards_fit_like_the_folder_they_came_from(
    pack: Path, pairs_folder: Path, encoder_folder: Path, tmp_path: Path
):
    with tarfile.open(tmp_path / "walls.tar", "w") as archive:
        for path in sorted(pairs_folder.iterdir()):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    options = ("--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--method", "ols")
    recap("fit", tmp_path / "walls.tar", "--out", tmp_path / "shards", *options)
    one, other = ReCap.from_pretrained(tmp_path / "shards"), ReCap.from_pretrained(pack)
    np.testing.assert_allclose(one.alignment.W_, other.alignment.W_, atol=1e-6)


def test_a_pack_of_enough_pictures_is_calibrated(
    pairs_folder: Path, encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    pairs = part_of(pairs_folder, tmp_path / "pairs", "0", "1", "2")
    for path in list(pairs.iterdir()):
        twin = pairs / f"more-{path.name}"
        shutil.copy(path, twin)
        if twin.suffix == ".png":
            pixels = np.asarray(Image.open(twin)).copy()
            pixels[0, 0] ^= 7
            Image.fromarray(pixels).save(twin)
    options = ("--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--method", "ols")
    done = recap("fit", pairs, "--out", tmp_path / "pack", *options)
    assert re.search(r"^seconds: encoding \d+\.\d, map \d+\.\d, confidence \d+\.\d$", done.stderr, re.MULTILINE)
    told = recap("caption", new_pictures["red"], "--pack", tmp_path / "pack", "--json").stdout
    assert 0 < json.loads(told)["confidence"] < 1
    recap("fit", pairs, "--out", tmp_path / "plain", *options, "--no-calibrate", "--keep-vectors")
    assert ReCap.from_pretrained(tmp_path / "plain").calibration is None
    forgot = recap("fit", pairs, "--update", tmp_path / "pack", "--forget", "red0.png")
    assert "the confidence of captions was fitted on these pictures, too" in forgot.stderr
    assert ReCap.from_pretrained(tmp_path / "pack").calibration is None
    for folder, given in (("pack", (pairs,)), ("plain", ())):
        done = recap("pack", "calibrate", tmp_path / folder, *given)
        assert "confidence fitted on" in done.stderr
        assert ReCap.from_pretrained(tmp_path / folder).calibration is not None
