from __future__ import annotations

from pathlib import Path

import pytest

from recap.batch import FileFacts, Record
from recap.batch.sidecars import Existing, Sidecars, find_collisions


def record(path: Path, text: str) -> Record:
    return Record(str(path), {"caption": text}, {"settings": ""}, FileFacts("", 0, 0))


def test_a_line_beside_each_picture(tmp_path: Path):
    sink = Sidecars(prefix="<b>", suffix=", photo")
    sink.add(record(tmp_path / "a.b.jpg", "a cat"))
    sink.add(record(tmp_path / "c.PNG", "größer"))
    sink.add(record(tmp_path / "none.png", ""))
    sink.close()
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "a.b.txt": "<b>a cat, photo\n",
        "c.txt": "<b>größer, photo\n",
    }


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("existing", "old", "new"),
    [
        ("keep", "human", "human"),
        ("append", "human", "human\nmachine\n"),
        ("append", "human\n", "human\nmachine\n"),
        ("append", "machine\nhuman\n", "machine\nhuman\n"),
        ("replace", "human\nmore\n", "machine\n"),
        ("replace", "machine\nmore\n", "machine\n"),
        ("keep", "", "machine\n"),
        ("append", "caf\xe9 in Latin 1", "caf\xe9 in Latin 1\nmachine\n"),
    ],
)
def test_what_becomes_of_a_file_that_is_there(tmp_path: Path, existing: Existing, old: str, new: str, times: int):
    path = tmp_path / "a.txt"
    path.write_bytes(old.encode("latin-1"))
    for _ in range(times):
        sink = Sidecars(existing)
        sink.add(record(tmp_path / "a.jpg", "machine"))
    assert path.read_bytes() == new.encode("latin-1")
    assert sink.kept == (old == new == "human")


def test_two_pictures_cannot_share_a_file():
    assert find_collisions(["a.jpg", "b.jpg", "sub/a.jpg", "a.jpg"]) == {}
    refused = find_collisions(["a.jpg", "a.png", "b.jpg", "notes.txt"])
    assert list(refused) == ["a.png", "notes.txt"]
    assert "a.jpg has a.txt already; --sidecars-keep-suffix" in refused["a.png"]
    assert "would be lost" in refused["notes.txt"]
    assert find_collisions(["a.jpg", "a.png", "notes.txt"], keep_suffix=True) == {}


def test_the_suffix_of_the_picture_can_be_kept(tmp_path: Path):
    sink = Sidecars(keep_suffix=True)
    sink.add(record(tmp_path / "a.jpg", "a cat"))
    sink.add(record(tmp_path / "a.png", "a dog"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.jpg.txt": "a cat\n",
        "a.png.txt": "a dog\n",
    }


@pytest.mark.parametrize("existing", ["keep", "append", "replace"])
def test_links_and_folders_of_that_name_are_left_alone(tmp_path: Path, existing: Existing):
    (tmp_path / "pictures" / "b.txt").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "pictures" / "a.txt").symlink_to(precious)
    sidecars = Sidecars(existing)
    for name in ("a.png", "b.png", "c.png"):
        sidecars.add(record(tmp_path / "pictures" / name, "a cat"))
    assert precious.read_text() == "precious"
    assert sidecars.kept == 2
    assert (tmp_path / "pictures" / "c.txt").read_text() == "a cat\n"
