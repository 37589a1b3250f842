from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from program import recap


def test_retrieve(pack: Path, new_pictures: dict[str, Path], web: tuple[Path, str]):
    done = recap("retrieve", "--pack", pack, "-k", 2, new_pictures["red"])
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == 2
    assert all("red" in caption for _, caption, _ in rows)
    plain = json.loads(recap("retrieve", "--pack", pack, "--json", new_pictures["red"]).stdout)
    assert len(plain["aligned"]) == 5
    assert "unaligned" not in plain
    shutil.copy(new_pictures["red"], web[0] / "red.png")
    assert recap("retrieve", "--pack", pack, "-k", 2, f"{web[1]}/red.png").stdout == done.stdout
    assert "gone.png: the answer was 404" in recap("retrieve", "--pack", pack, f"{web[1]}/gone.png", code=2).stderr
    for kind, start in (
        ("csv", "similarity,caption,source\n"),
        ("markdown", "| similarity | caption |"),
        ("latex", "\\begin"),
    ):
        assert recap("retrieve", "--pack", pack, "-k", 2, "--format", kind, new_pictures["red"]).stdout.startswith(
            start
        )
    assert "gone.jpg" in recap("retrieve", "--pack", pack, "gone.jpg", code=2).stderr


def test_retrieve_shows_both_where_both_exist(
    pairs_folder: Path, shared_encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    recap("fit", pairs_folder, "--out", tmp_path / "pack", "--encoder", f"onnx:{shared_encoder_folder}")
    shown = recap("retrieve", "--pack", tmp_path / "pack", "-k", 2, new_pictures["red"]).stdout.splitlines()
    assert shown[0] == "# aligned"
    assert shown[3] == "# unaligned"
    assert len(shown) == 6


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


def test_raw_files_are_mentioned(pack: Path, photos: Path):
    (photos / "a.NEF").write_bytes(b"raw")
    done = recap("search", "a wall", photos, "--pack", pack)
    assert "1 file left out: raw data" in done.stderr
    assert "NEF" not in done.stdout


def test_what_cannot_be_read_is_named(pack: Path, photos: Path):
    (photos / "torn.jpg").write_bytes(b"none")
    done = recap("search", "a red wall", photos, "--pack", pack, "-k", 1, code=1)
    assert "red.png" in done.stdout
    assert "torn.jpg" in done.stderr
    assert "no picture" in recap("search", "red", photos.parent / "pack", "--pack", pack, code=2).stderr
