"""``recap fit`` with all its options, ``recap pack`` and ``recap datastore``."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from recap import ReCap
from recap.cli.main import cli
from recap.errors import RecapWarning


def recap(*arguments: object, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert code == 2, result.exception
        result.stderr_bytes = str(result.exception).encode()
        return result
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pack(pairs_folder: Path, encoder_folder: Path, tmp_path: Path) -> Path:
    options = (
        "--encoder",
        f"onnx:{encoder_folder}",
        "--lm",
        "none",
        "--method",
        "ols",
        "--keep-vectors",
        "--source",
        "walls",
    )
    card = ("--licence", "CC-BY-4.0", "--author", "Ada", "--description", "Walls of one colour.")
    recap("fit", pairs_folder, "--out", tmp_path / "pack", *options, *card)
    return tmp_path / "pack"


def part_of(pairs_folder: Path, folder: Path, *numbers: str) -> Path:
    folder.mkdir()
    for path in pairs_folder.iterdir():
        if path.stem[-1] in numbers:
            shutil.copy(path, folder / path.name)
    return folder


def facts(pack: Path) -> dict:
    return json.loads(recap("pack", "info", pack, "--json").stdout)


def test_info_shows_what_the_card_says(pack: Path):
    found = facts(pack)
    assert (found["licence"], found["author"], found["description"]) == ("CC-BY-4.0", "Ada", "Walls of one colour.")
    assert (found["captions"], found["pictures"], found["pairs"]) == (54, 18, 54)
    assert found["sources"] == {"walls": 54}
    assert found["image vectors kept"] is True
    shown = recap("pack", "info", pack).stdout
    assert "map: ols" in shown
    assert "  walls: 54" in shown


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


def test_verify_says_what_is_broken(pack: Path):
    assert "BROKEN" not in recap("pack", "verify", pack, "--encoder").stdout
    (pack / "statistics.safetensors").write_bytes(b"nothing")
    done = recap("pack", "verify", pack, code=1)
    assert "BROKEN  files: " in done.stdout
    records = [json.loads(line) for line in recap("pack", "verify", pack, "--json", code=1).stdout.splitlines()]
    assert {record["check"] for record in records if not record["ok"]} >= {"files", "statistics"}
    assert {record["check"] for record in records if record["ok"]} >= {"config", "map", "datastore"}


def test_merge(pack: Path, pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    for name in ("0", "12"):
        part = part_of(pairs_folder, tmp_path / f"part{name}", *name)
        recap(
            "fit",
            part,
            "--out",
            tmp_path / name,
            "--encoder",
            f"onnx:{encoder_folder}",
            "--lm",
            "none",
            "--method",
            "ols",
        )
    recap("pack", "merge", tmp_path / "0", tmp_path / "12", "--out", tmp_path / "both")
    one, other = ReCap.from_pretrained(tmp_path / "both"), ReCap.from_pretrained(pack)
    np.testing.assert_allclose(one.alignment.W_, other.alignment.W_, atol=1e-6)
    assert facts(tmp_path / "both")["sources"] == {"part0": 18, "part12": 36}
    assert "at least two" in recap("pack", "merge", pack, "--out", tmp_path / "x", code=2).stderr


def test_datastore_list_add_remove_dedupe(pack: Path, tmp_path: Path):
    rows = [
        line.split("\t") for line in recap("datastore", "list", pack, "--match", "painted.*red").stdout.splitlines()
    ]
    assert [row[1:] for row in rows] == [["walls", f"red{n}.png", "somebody painted this wall red"] for n in range(3)]
    (tmp_path / "new.txt").write_text("a red wall\nthis is a wall\n")
    assert "2 captions added, 0 were" in recap("datastore", "add", pack, tmp_path / "new.txt", "--synthetic").stderr
    assert "0 captions added, 2 were" in recap("datastore", "add", pack, tmp_path / "new.txt").stderr
    recap("datastore", "add", pack, "-", "--source", "typed", stdin="the wall\n")
    assert recap("datastore", "list", pack, "--sources").stdout.splitlines() == ["new\t2", "typed\t1", "walls\t54"]
    (record, _) = map(json.loads, recap("datastore", "list", pack, "--synthetic", "--json").stdout.splitlines())
    assert record == {"id": 54, "text": "a red wall", "source": "new", "synthetic": True, "image_id": ""}
    assert len(recap("datastore", "list", pack, "--human", "--limit", 5).stdout.splitlines()) == 5
    dry = recap("datastore", "remove", pack, "--source", "typed", "--source", "new", "--dry-run")
    assert len(dry.stdout.splitlines()) == 3
    assert facts(pack)["captions"] == 57
    recap("datastore", "remove", pack, "--source", "typed", "--source", "new", "--match", "^the")
    recap("datastore", "remove", pack, "--id", 0, "--id", 55, "--compact")
    assert facts(pack)["captions"] == 54
    # three pictures of a colour share their captions, and one of the new captions repeats them
    assert "36 captions removed" in recap("datastore", "dedupe", pack, "--near", "0.9999").stderr
    assert "BROKEN" not in recap("pack", "verify", pack).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove", "PACK"], "say which"),
        (["remove", "PACK", "--match", "["], "is no regular expression"),
        (["remove", "PACK", "--id", "999"], "no caption has the id 999"),
        (["remove", "PACK", "--source", "walls"], "no caption would be left"),
        (["add", "PACK", "none.txt"], "none.txt: no such file"),
        (["list", "EMPTY"], "is not a pack"),
    ],
)
def test_what_cannot_be_done_to_a_datastore(pack: Path, tmp_path: Path, arguments: list[str], message: str):
    (tmp_path / "empty").mkdir()
    places = {"PACK": pack, "EMPTY": tmp_path / "empty"}
    assert message in recap("datastore", *(places.get(a, a) for a in arguments), code=2).stderr
    assert facts(pack)["captions"] == 54


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
    recap("fit", pairs, "--out", tmp_path / "pack", *options)
    told = recap("caption", new_pictures["red"], "--pack", tmp_path / "pack", "--json").stdout
    assert 0 < json.loads(told)["confidence"] < 1
    recap("fit", pairs, "--out", tmp_path / "plain", *options, "--no-calibrate", "--keep-vectors")
    assert ReCap.from_pretrained(tmp_path / "plain").calibration is None
    with pytest.warns(RecapWarning, match="the confidence of captions was fitted on these pictures, too"):
        recap("fit", pairs, "--update", tmp_path / "pack", "--forget", "red0.png")
    assert ReCap.from_pretrained(tmp_path / "pack").calibration is None
    for folder, given in (("pack", (pairs,)), ("plain", ())):
        done = recap("pack", "calibrate", tmp_path / folder, *given)
        assert "confidence fitted on" in done.stderr
        assert ReCap.from_pretrained(tmp_path / folder).calibration is not None
