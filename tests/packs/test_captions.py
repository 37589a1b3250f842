from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.datasets import Sentence
from recap.datastore import Datastore
from recap.encoders import Encoder
from recap.errors import EncoderMismatchError, InputError, PackError
from recap.packs.captions import add, changing, dedupe, remove
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
