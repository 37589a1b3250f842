"""``recap datastore``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import recap

pytestmark = pytest.mark.usefixtures("own_cache")


def facts(pack: Path) -> dict:
    return json.loads(recap("pack", "info", pack, "--json").stdout)


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
