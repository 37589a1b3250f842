from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.datastore import Datastore
from recap.datastore.base import Columns
from recap.packs import folder as pack
from recap.packs.verify import verify
from recap.types import Pair


def broken(folder: Path) -> dict[str, str]:
    return {check.name: check.problem for check in verify(folder) if check.problem}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 64
    path.write_bytes(content)


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / pack.CONFIG).read_text())
    (folder / pack.CONFIG).write_text(json.dumps({**config, **values}))


def test_a_sound_pack(folder: Path):
    checks = list(verify(folder, encoder=True))
    assert not [check.problem for check in checks if check.problem]
    details = {check.name: check.detail for check in checks}
    assert details["datastore"] == "54 captions of 1 sources"
    assert details["pictures"] == "18, with vectors"


@pytest.mark.parametrize(
    "name", ["alignment.safetensors", "statistics.safetensors", "pictures.parquet", "pictures.safetensors"]
)
def test_every_file_is_known_by_its_hash(folder: Path, name: str):
    flip(folder / name)
    assert name in broken(folder)["files"]
    (folder / name).unlink()
    assert f"{name} is missing" in broken(folder)["files"]


def test_damage_in_the_datastore_is_named(folder: Path):
    (segment,) = (folder / "datastore").glob("segment-*.safetensors")
    flip(segment)
    assert segment.name in broken(folder)["datastore"]
    assert "files" not in broken(folder), "one broken file does not hide what is sound"


def test_a_map_that_the_statistics_do_not_give(folder: Path, fit: Callable[..., ReCap], pairs: list[Pair]):
    fit(pairs[:9]).alignment.save(folder / pack.ALIGNMENT)
    assert "not the map that the statistics give" in broken(folder)["map agrees with statistics"]


def test_parts_of_another_encoder(folder: Path):
    change_config(folder, text_fingerprint="0" * 64)
    found = broken(folder)
    assert "another text encoder" in found["map"]
    assert "another text encoder" in found["statistics"]
    assert "another text encoder" in found["datastore"]


def test_an_empty_datastore_and_vectors_that_are_none(folder: Path):
    store = Datastore.load(folder / "datastore")
    nan = np.full((1, 12), np.nan, dtype=np.float32)
    store._segments.add(np.array([900]), nan, Columns(["x"], [""], [False], [""]))
    store.save(folder / "datastore")
    assert "caption 900" in broken(folder)["vectors"]
    store.remove(store.ids)
    store.save(folder / "datastore")
    assert "empty" in broken(folder)["datastore"]


def test_a_card_without_front_matter_and_a_damaged_config(folder: Path):
    (folder / pack.CARD).write_text("# my pack\n")
    assert "front matter" in broken(folder)["card"]
    (folder / pack.CONFIG).write_text("{")
    assert "config.json" in broken(folder)["config"]


@pytest.mark.parametrize(("name", "check"), [("config.json", "config"), ("datastore/manifest.json", "datastore")])
def test_a_changed_value_of_the_descriptions_shows(folder: Path, name: str, check: str):
    path = folder / name
    values = json.loads(path.read_text())
    changed = {"k": 12} if check == "config" else {"kind": "half"}
    values["settings" if check == "config" else "index"].update(changed)
    path.write_text(json.dumps(values))
    assert "checksum" in broken(folder)[check]


def test_damage_in_the_card_shows(folder: Path):
    card = (folder / pack.CARD).read_bytes()
    (folder / pack.CARD).write_bytes(card[:-20] + b"\x07" + card[-20:])
    assert "control characters" in broken(folder)["card"]
    (folder / pack.CARD).write_bytes(card[:-20] + b"\xff" + card[-20:])
    assert "card" in broken(folder)
