from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from program import recap

from recap.batch.metadata import add_keywords, read_keywords


@pytest.fixture
def photo(new_pictures: dict[str, Path], tmp_path: Path) -> Path:
    Image.open(new_pictures["red"]).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def test_formats(pack: Path, photo: Path):
    def tags(kind: str) -> str:
        return recap("tags", photo, "--pack", pack, "--min-score", 0, "--format", kind).stdout

    path, names = tags("table").rstrip("\n").split("\t")
    assert path == str(photo)
    assert "wall" in names.split(", ")
    assert recap("tags", "-", "--pack", pack, "--min-score", 0, stdin=f"{photo}\n").stdout == tags("table")
    (plain,) = map(json.loads, tags("json").splitlines())
    assert [item["text"] for item in plain["tags"]] == names.split(", ")
    rows = list(csv.DictReader(io.StringIO(tags("csv"))))
    assert [row["keyword"] for row in rows] == names.split(", ")
    assert all(0 <= float(row["score"]) <= 1 for row in rows)


def test_sidecars_and_metadata(pack: Path, photo: Path):
    options = ("--pack", pack, "--min-score", 0, "--sidecars", "--metadata", "--keep-originals")
    names = recap("tags", photo, *options).stdout.rstrip("\n").split("\t")[1]
    assert photo.with_suffix(".txt").read_text() == f"{names}\n"
    assert read_keywords(photo) == names.split(", ")
    assert read_keywords(f"{photo}_original") == []
    photo.with_suffix(".txt").write_text("mine\n")
    assert "left as they are" in recap("tags", photo, *options).stderr
    assert photo.with_suffix(".txt").read_text() == "mine\n"


def test_keywords_go_into_an_xmp_file(pack: Path, photo: Path):
    before = photo.read_bytes()
    beside = photo.with_suffix(".xmp")
    add_keywords(beside, ["mine"])
    names = recap("tags", photo, "--pack", pack, "--min-score", 0, "--xmp").stdout.rstrip("\n").split("\t")[1]
    assert read_keywords(beside) == ["mine", *names.split(", ")]
    recap("tags", photo, "--pack", pack, "--min-score", 0, "--xmp", "--sidecars", "--sidecars-keep-suffix")
    assert read_keywords(f"{photo}.xmp") == names.split(", ")
    assert Path(f"{photo}.txt").read_text() == f"{names}\n"
    assert photo.read_bytes() == before


def test_what_cannot_be_read_is_named(pack: Path, photo: Path):
    shutil.copy(photo, photo.with_name("other.jpg"))
    photo.write_bytes(b"none")
    done = recap("tags", photo.parent / "*.jpg", "--pack", pack, code=1)
    assert "photo.jpg" in done.stderr
    assert "other.jpg\t" in done.stdout
    assert "goes with --metadata" in recap("tags", photo, "--keep-originals", code=2).stderr
