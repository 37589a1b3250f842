from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from recap import ReCap, pack
from recap.cli.main import cli
from recap.datastore import Datastore, DiskStore
from recap.datastore.milvus import MilvusStore
from recap.errors import InputError, PackError
from recap.packs.captions import move, remove
from recap.packs.verify import verify


@pytest.fixture
def address(tmp_path: Path) -> str:
    pytest.importorskip("pymilvus", reason="a datastore in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="Milvus Lite is not installed, or not made for this system")
    return f"milvus:{tmp_path / 'captions.db'}"


def captions_of(folder: Path, pictures: dict[str, Path]) -> list[str]:
    captioner = ReCap.from_pretrained(folder)
    return [captioner.caption(path).text for path in pictures.values()]


def sound(folder: Path) -> bool:
    return not [check.problem for check in verify(folder) if check.problem]


def test_a_pack_says_the_same_wherever_its_captions_are(folder, address, new_pictures):
    before, rows = captions_of(folder, new_pictures), list(pack.read_datastore(folder))
    for where, kind in (("disk", DiskStore), (address, MilvusStore), ("half", Datastore), ("disk", DiskStore)):
        move(folder, where)
        store = pack.read_datastore(folder)
        assert isinstance(store, kind)
        assert list(store) == rows
        assert (folder / pack.DATASTORE).exists() == (where != address)
        assert captions_of(folder, new_pictures) == before
        assert sound(folder)


def test_a_pack_in_a_database_is_saved_and_changed_there(folder, address, new_pictures, tmp_path):
    move(folder, address)
    captioner = ReCap.from_pretrained(folder)
    captioner.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again" / pack.DATASTORE).exists()
    assert json.loads((tmp_path / "again" / pack.CONFIG).read_text())["datastore"].startswith(address)
    ids = pack.read_datastore(folder).ids
    assert remove(folder, ids[:3]) == 3
    assert list(pack.read_datastore(tmp_path / "again").ids) == list(ids[3:])
    assert f"walls ({len(ids) - 3})" in (folder / pack.CARD).read_text()
    with pytest.raises(PackError, match="no caption would be left"):
        remove(folder, ids[3:])
    assert len(pack.read_datastore(folder)) == len(ids) - 3
    with pytest.raises(InputError, match="recap datastore move"):
        captioner.forget(["some picture"])


def test_a_pack_on_disk_is_changed_in_place(folder, pairs):
    move(folder, "disk")
    captioner = ReCap.from_pretrained(folder)
    count = len(captioner.datastore)
    gone = captioner.forget([pairs[0].id], pairs)
    captioner.save_pretrained(folder)
    store = pack.read_datastore(folder)
    assert isinstance(store, DiskStore)
    assert len(store) == count - gone
    assert remove(folder, store.ids[:1]) == 1
    assert len(pack.read_datastore(folder)) == count - gone - 1
    assert sound(folder)


def test_a_place_that_is_none_changes_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    for where in ("nowhere", "milvus:./captions", "annoy"):
        with pytest.raises(InputError):
            move(folder, where)
    after = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_the_command_and_what_info_says(folder):
    done = CliRunner().invoke(cli, ["datastore", "move", str(folder), "disk"])
    assert done.exit_code == 0, done.output
    assert "search: disk" in done.stderr
    listed = CliRunner().invoke(cli, ["datastore", "list", str(folder), "--limit", "1"])
    assert listed.stdout.startswith("0\twalls\t")
    facts = json.loads(CliRunner().invoke(cli, ["pack", "info", str(folder), "--json"]).stdout)
    assert facts["datastore"]["search"] == "disk"


def test_fit_puts_captions_where_it_is_told(pairs_folder, encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    options = ["--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--out", str(tmp_path / "new"), "--no-calibrate"]
    done = CliRunner().invoke(cli, ["fit", str(pairs_folder), *options, "--datastore", "disk"])
    assert done.exit_code == 0, done.output
    assert isinstance(pack.read_datastore(tmp_path / "new"), DiskStore)
