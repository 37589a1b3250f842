from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from recap import ReCap
from recap.alignment import LinearAlignment
from recap.cli.main import cli
from recap.datasets import Sentence
from recap.datastore import Datastore, DatastoreView, DiskStore
from recap.datastore import store as stores
from recap.datastore.milvus import MilvusStore
from recap.encoders import Encoder
from recap.errors import EncoderMismatchError, InputError, PackError
from recap.packs import folder as pack
from recap.packs.captions import add, changing, dedupe, move, remove
from recap.packs.config import PackConfig
from recap.packs.sharing import push
from recap.packs.verify import verify


def sound(folder: Path) -> bool:
    return not [check.problem for check in verify(folder) if check.problem]


def test_added_captions_are_found_and_the_rest_is_left_alone(folder: Path, encoder: Encoder, new_pictures):
    before = {path: path.stat().st_ino for path in folder.rglob("segment-*")}
    new = [Sentence("this painted red wall", image_id="x"), Sentence("a red red wall", source="other")]
    assert add(folder, new, encoder.text, source="mine", synthetic=True) == 2
    assert {path: path.stat().st_ino for path in before} == before, "only a segment was added"
    assert sound(folder)
    loaded = ReCap.from_pretrained(folder)
    assert len(loaded.datastore) == 56
    rows = {row.text: row for row in loaded.datastore}
    assert (rows["this painted red wall"].source, rows["this painted red wall"].image_id) == ("mine", "x")
    assert rows["a red red wall"].source == "other"
    assert rows["a red red wall"].synthetic
    assert "56 captions to retrieve from" in (folder / "README.md").read_text()
    texts = [item.text for item in loaded.retrieve(new_pictures["red"], k=20)]
    assert "a red red wall" in texts
    assert len(loaded.datastore) == 56


def test_adding_again_adds_nothing(folder: Path, encoder: Encoder):
    new = [Sentence("a wall"), Sentence("a wall"), Sentence("a wall", image_id="y")]
    assert add(folder, new, encoder.text, source="mine") == 2
    before = (folder / "datastore/manifest.json").read_text()
    assert add(folder, new, encoder.text, source="mine") == 0
    assert (folder / "datastore/manifest.json").read_text() == before


def test_captions_of_another_encoder_are_refused(folder: Path, make_world, tmp_path: Path):
    from recap.encoders import load_encoder

    other = load_encoder(f"onnx:{make_world(tmp_path, ['a wall'])}")
    with pytest.raises(EncoderMismatchError):
        add(folder, [Sentence("a wall")], other.text)


def test_removed_captions_leave_the_disk_when_asked(folder: Path):
    store = Datastore.load(folder / "datastore")
    ids = store.find(image_ids="red0.png")
    assert remove(folder, ids, compact=True) == 3
    (parquet,) = (folder / "datastore").glob("segment-*.parquet")
    import pyarrow.parquet

    assert "red0.png" not in pyarrow.parquet.read_table(parquet)["image_id"].to_pylist()
    assert sound(folder)
    with pytest.raises(InputError, match="no caption has the id"):
        remove(folder, ids)


def test_the_last_caption_is_never_removed(folder: Path):
    store = Datastore.load(folder / "datastore")
    with pytest.raises(PackError, match="no caption would be left"):
        remove(folder, store.ids)
    assert sound(folder)


def test_a_block_that_fails_changes_nothing(folder: Path):
    def stop_halfway() -> None:
        with changing(folder) as store:
            store.remove(store.ids[:5])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_halfway()
    assert len(Datastore.load(folder / "datastore")) == 54


def test_dedupe(folder: Path, encoder: Encoder):
    assert dedupe(folder) == 36, "three pictures of each colour have the same captions"
    add(folder, [Sentence("A RED wall ."), Sentence("wall a red")], encoder.text, source="mine")
    assert dedupe(folder) == 1
    assert dedupe(folder, cosine=0.999) == 1, "the toy encoder does not know the order of words"
    assert sound(folder)
    with pytest.raises(InputError, match="cosine"):
        dedupe(folder, cosine=1.5)


ADDING = """
import sys
from pathlib import Path
from recap.packs import folder as pack
from recap.packs.config import PackConfig
from recap.datasets import Sentence
from recap.packs.captions import add, remove
from recap.datastore import Datastore
folder = Path(sys.argv[1])
encoder = PackConfig.read(folder).load_encoder().text
print("ready", flush=True)
number = len(Datastore.load(folder / "datastore"))
while True:
    add(folder, [Sentence(f"wall {number} {i}") for i in range(10)], encoder, source="new")
    remove(folder, Datastore.load(folder / "datastore").ids[-5:])
    number += 1
"""


def test_kill_minus_nine_never_leaves_a_broken_pack(folder: Path, new_pictures: dict[str, Path]):
    rng = np.random.default_rng()
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", ADDING, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert sound(folder)
        loaded = ReCap.from_pretrained(folder)
        assert (len(loaded.datastore) - 54) % 5 == 0
        loaded.caption(new_pictures["red"])


@pytest.fixture
def address(tmp_path: Path) -> str:
    pytest.importorskip("pymilvus", reason="a datastore in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="Milvus Lite is not installed, or not made for this system")
    return f"milvus:{tmp_path / 'captions.db'}"


def captions_of(folder: Path, pictures: dict[str, Path]) -> list[str]:
    captioner = ReCap.from_pretrained(folder)
    return [captioner.caption(path).text for path in pictures.values()]


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


def test_captions_are_divided_among_collections_and_come_back(folder, address, new_pictures):
    before, rows = captions_of(folder, new_pictures), list(pack.read_datastore(folder))
    store, came_from = move(folder, f"{address}?collection=a,b,c")
    assert came_from is None
    assert isinstance(store, DatastoreView)
    assert [len(one) for one in store.stores] == [len(part) for part in np.array_split(rows, 3)]
    assert [row.text for row in store] == [row.text for row in rows]
    assert captions_of(folder, new_pictures) == before
    with pytest.raises(PackError, match="to disk first"):
        move(folder, f"{address}?collection=d")
    back, came_from = move(folder, "disk")
    assert came_from.endswith("?collection=a,b,c")
    assert list(back) == rows
    assert back.next_id == len(rows)
    with pytest.raises(InputError, match="already"):
        move(folder, f"{address}?collection=new,c")
    assert sound(folder)


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


@pytest.mark.parametrize("where", ["disk", "half", "milvus"])
def test_what_another_process_changes_meanwhile_is_not_lost(folder, where, request, monkeypatch):
    where = request.getfixturevalue("address") if where == "milvus" else where
    original = LinearAlignment.load

    def load(path):
        monkeypatch.undo()
        store = pack.read_datastore(folder)
        store.remove(store.ids[:1])
        store.commit()
        return original(path)

    monkeypatch.setattr(LinearAlignment, "load", load)
    with pytest.raises(PackError, match="changed by another process"):
        move(folder, where)
    assert len(pack.read_datastore(folder)) == 53
    move(folder, where)
    assert len(pack.read_datastore(folder)) == 53
    assert sound(folder)


def test_a_move_that_stops_halfway_is_made_again(folder, address, monkeypatch):
    rows = list(pack.read_datastore(folder))

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(MilvusStore, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        move(folder, address)
    monkeypatch.undo()
    assert isinstance(pack.read_datastore(folder), Datastore)
    with pytest.raises(PackError, match="not finished"):
        MilvusStore(address)
    move(folder, address)
    assert list(MilvusStore(address)) == rows
    with pytest.raises(InputError, match="already"):
        move(folder, address)


def test_a_database_centred_otherwise_is_no_sound_pack(folder, address):
    old = pack.read_datastore(folder)
    store = MilvusStore.create(address, old.dimension, encoder=old.encoder, fingerprint=old.fingerprint)
    store.take_over(old)
    PackConfig.read(folder).but(datastore=address).write()
    (problem,) = (check.problem for check in verify(folder) if check.problem)
    assert "another mean" in problem
    assert address in problem


def test_the_command_and_what_info_says(folder):
    done = CliRunner().invoke(cli, ["datastore", "move", str(folder), "disk"])
    assert done.exit_code == 0, done.output
    assert "captions moved to disk\nsearch: disk" in done.stderr
    listed = CliRunner().invoke(cli, ["datastore", "list", str(folder), "--limit", "1"])
    assert listed.stdout.startswith("0\twalls\t")
    facts = json.loads(CliRunner().invoke(cli, ["pack", "info", str(folder), "--json"]).stdout)
    assert facts["datastore"]["search"] == "disk"


def test_fit_puts_captions_where_it_is_told(pairs_folder, encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    options = ["--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--out", str(tmp_path / "new"), "--no-calibrate"]
    monkeypatch.setattr(stores, "SPILL_BYTES", 500)
    done = CliRunner().invoke(cli, ["fit", str(pairs_folder), *options, "--datastore", "disk"])
    assert done.exit_code == 0, done.output
    store = pack.read_datastore(tmp_path / "new")
    assert isinstance(store, DiskStore)
    assert store.dtype == "float32"
    assert {path.name for path in tmp_path.iterdir()} <= {"new", ".new.lock", "cache", pairs_folder.name}
    assert sound(tmp_path / "new")


def test_a_fit_is_the_same_wherever_captions_go(pairs_folder, encoder_folder, address, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    options = ["--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--no-calibrate"]
    done = CliRunner().invoke(cli, ["embed", str(pairs_folder), *options[:2], "--out", str(tmp_path / "v")])
    assert done.exit_code == 0, done.output
    packs = []
    for number, (pairs, where) in enumerate(
        [(pairs_folder, "flat"), (pairs_folder, "disk"), (tmp_path / "v", "disk"), (tmp_path / "v", address)]
    ):
        out = tmp_path / f"pack{number}"
        more = ["--source", "walls", "--datastore", where, "--out", str(out)]
        done = CliRunner().invoke(cli, ["fit", str(pairs), *options, *more])
        assert done.exit_code == 0, done.output
        packs.append(ReCap.from_pretrained(out))
    for one in packs[1:]:
        np.testing.assert_allclose(one.alignment.W_, packs[0].alignment.W_, atol=1e-9)
        assert list(one.datastore) == list(packs[0].datastore)
        assert one.settings == packs[0].settings
    assert not [path for path in tmp_path.glob(".*") if path.suffix != ".lock"]


def test_a_fit_is_refused_before_the_work_where_captions_are(pairs_folder, tmp_path, address):
    MilvusStore.create(address, 3)
    done = CliRunner().invoke(cli, ["fit", str(pairs_folder), "--out", str(tmp_path / "new"), "--datastore", address])
    assert isinstance(done.exception, InputError), done.output
    assert not (tmp_path / "new").exists()


def test_a_fit_is_refused_before_the_work_where_captions_cannot_go(pairs_folder, tmp_path):
    for where in ("nowhere", "milvus:./captions"):
        done = CliRunner().invoke(cli, ["fit", str(pairs_folder), "--out", str(tmp_path / "new"), "--datastore", where])
        assert isinstance(done.exception, InputError), done.output
    assert not (tmp_path / "new").exists()


def test_an_update_to_another_folder_leaves_the_old_pack_alone(folder, new_pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    move(folder, "disk")
    new = tmp_path / "new.jsonl"
    lines = ({"image": str(path), "caption": f"a new {name}"} for name, path in new_pictures.items())
    new.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = (folder / pack.DATASTORE / "manifest.json").read_bytes()
    more = ["--source", "again", "--out", str(tmp_path / "more"), "--datastore", "disk", "--no-calibrate"]
    done = CliRunner().invoke(cli, ["fit", str(new), "--update", str(folder), *more])
    assert done.exit_code == 0, done.output
    assert len(pack.read_datastore(tmp_path / "more")) == len(pack.read_datastore(folder)) + len(new_pictures)
    assert (folder / pack.DATASTORE / "manifest.json").read_bytes() == before


def test_a_pack_in_a_database_cannot_be_shared(folder, address):
    move(folder, address)
    with pytest.raises(PackError, match="others cannot reach"):
        push(folder, "ada/walls")
