from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from program import recap


@pytest.fixture
def photos(new_pictures: dict[str, Path], tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in new_pictures.values():
        shutil.copy(path, folder)
    return folder


def test_formats(pack: Path, photos: Path):
    def search(kind: str) -> str:
        return recap("search", "a red wall", photos, "--pack", pack, "-k", 2, "--format", kind).stdout

    rows = [line.split("\t") for line in search("table").splitlines()]
    assert Path(rows[0][1]).name == "red.png"
    plain = [json.loads(line) for line in search("json").splitlines()]
    assert [item["path"] for item in plain] == [path for _, path in rows]
    assert plain[0]["similarity"] == pytest.approx(float(rows[0][0]), abs=1e-3)
    assert [row["path"] for row in csv.DictReader(io.StringIO(search("csv")))] == [path for _, path in rows]
    page = search("html")
    assert page.index("red.png") < page.index("</ol>")
    assert page.count("data:image/jpeg;base64,") == 2
    assert "<title>a red wall</title>" in page


def test_paths_are_as_they_were_given(pack: Path, photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photos.parent)
    shown = recap("search", "a red wall", "photos", "--pack", pack, "-k", 1).stdout
    assert shown.split("\t")[1] == "photos/red.png\n"
    page = recap("search", "a red wall", "photos", "--pack", pack, "-k", 1, "--format", "html").stdout
    assert f'href="{(photos / "red.png").as_uri()}"' in page
    table = recap("search", "a red wall", "photos", "--pack", pack, "-k", 1, "--format", "markdown").stdout
    assert "photos/red.png" in table.splitlines()[2]


def test_a_page_runs_nothing_of_what_it_shows(pack: Path, photos: Path):
    (photos / "red.png").rename(photos / "<img src=x>&.png")
    page = recap("search", "<script>a red wall", photos, "--pack", pack, "--format", "html").stdout
    assert "<script>" not in page
    assert "<img src=x>" not in page
    assert "&lt;img src=x&gt;" in page


def test_what_cannot_be_read_is_named(pack: Path, photos: Path):
    (photos / "torn.jpg").write_bytes(b"none")
    done = recap("search", "a red wall", photos, "--pack", pack, "-k", 1, code=1)
    assert "red.png" in done.stdout
    assert "torn.jpg" in done.stderr
    assert "no picture" in recap("search", "red", photos.parent / "pack", "--pack", pack, code=2).stderr
