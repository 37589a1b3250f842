from __future__ import annotations

import json
import os
from collections import Counter

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
from stores import grow

from recap.datastore import ApproximateArguments, Datastore, home
from recap.datastore.manifest import MANIFEST, read_manifest
from recap.errors import InputError, PackError


def make(unit, count=40, **options):
    store = Datastore(16, encoder="toy", fingerprint="toy-1", center=unit(1, seed=3)[0] * 0.2, **options)
    grow(store, unit, count)
    return store


def state(store):
    """Everything a user can see of a store."""
    ids = store.ids
    return {
        "rows": list(store),
        "raw": store.raw_vectors(ids).tobytes(),
        "vectors": store.vectors(ids).tobytes(),
        "named": (store.dimension, store.encoder, store.fingerprint, store.dtype, store.index),
    }


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != home.LOCK)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_saved_is_loaded(tmp_path, dtype, unit):
    store = make(unit, dtype=dtype, index=ApproximateArguments(probes=3))
    store.remove([3, 39])
    store.save(tmp_path / "store")
    loaded = Datastore.load(tmp_path / "store", verify=True)
    assert state(loaded) == state(store)
    asked = unit(5, seed=9)
    np.testing.assert_array_equal(loaded.search(asked, 7).ids, store.search(asked, 7).ids)
    assert list(loaded.add(["next"], unit(1))) == [40]
    assert Datastore.load(tmp_path / "store", index="half").index.kind == "half"


def test_the_files_are_what_others_can_read(tmp_path, unit):
    store = make(unit, dtype="float16")
    store.save(tmp_path)
    vectors = safetensors.numpy.load_file(tmp_path / "segment-00001.safetensors")["vectors"]
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, unit(40), atol=1e-3)
    table = pyarrow.parquet.read_table(tmp_path / "segment-00001.parquet")
    assert table.column_names == ["id", "text", "source", "synthetic", "image_id"]
    assert table["text"].to_pylist() == [row.text for row in store]
    assert safetensors.numpy.load_file(tmp_path / "center-00001.safetensors")["center"].shape == (16,)


def test_saving_again_writes_only_what_changed(tmp_path, unit):
    make(unit).save(tmp_path)
    before = {name: (tmp_path / name).stat().st_ino for name in files(tmp_path) if name.startswith("segment")}
    store = Datastore.load(tmp_path)
    store.remove_where(image_ids="image 2")
    ids = grow(store, unit, 6, seed=1)
    store.remove(ids[:1])
    store.save(tmp_path)
    assert {name: (tmp_path / name).stat().st_ino for name in before} == before
    assert files(tmp_path) == [
        "center-00002.safetensors",
        "manifest.json",
        "removed-00002.safetensors",
        "segment-00001.parquet",
        "segment-00001.safetensors",
        "segment-00002.parquet",
        "segment-00002.safetensors",
    ]
    assert pyarrow.parquet.read_metadata(tmp_path / "segment-00002.parquet").num_rows == 5
    assert state(Datastore.load(tmp_path, verify=True)) == state(store)


def test_many_small_changes_make_few_files(tmp_path, unit, monkeypatch):
    monkeypatch.setattr(home, "MANY_REMOVALS", 4)
    store = make(unit)
    store.save(tmp_path)
    for number in range(24):
        store.add([f"new {number}"], unit(1, seed=number))
        if number % 2:
            store.remove([number // 2, store.ids[-2]])
        store.commit()
    kinds = Counter(name.split("-")[0] for name in files(tmp_path))
    assert kinds["segment"] <= 2 * 6
    assert kinds["removed"] <= 4
    assert state(Datastore.load(tmp_path, verify=True)) == state(store)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_compacting_changes_files_but_not_the_store(tmp_path, dtype, unit):
    store = make(unit, dtype=dtype)
    store.save(tmp_path)
    for seed in (1, 2):
        grow(store, unit, 10, seed)
        store.remove([seed, 40 + seed])
        store.save(tmp_path)
    before, asked = state(store), unit(3, seed=9)
    found = store.search(asked, 5)
    store.compact()
    assert files(tmp_path) == [
        "center-00004.safetensors",
        "manifest.json",
        "segment-00004.parquet",
        "segment-00004.safetensors",
    ]
    np.testing.assert_array_equal(store.search(asked, 5).ids, found.ids)
    assert state(store) == before == state(Datastore.load(tmp_path))
    grow(store, unit, 3, 4)
    store.save(tmp_path)
    assert state(Datastore.load(tmp_path)) == state(store)


def test_compacting_in_memory(unit):
    store = make(unit)
    store.remove(range(0, 40, 2))
    before = state(store)
    store.compact()
    assert state(store) == before


def test_an_empty_store_and_one_that_became_empty(tmp_path, unit):
    Datastore(16).save(tmp_path / "a")
    assert len(Datastore.load(tmp_path / "a")) == 0
    store = make(unit)
    store.save(tmp_path / "b")
    store.remove(store.ids)
    store.save(tmp_path / "b")
    loaded = Datastore.load(tmp_path / "b")
    assert len(loaded) == 0
    assert list(loaded.add(["next"], unit(1))) == [40]
    loaded.compact()
    loaded.remove([40])
    loaded.compact()
    assert files(tmp_path / "b") == ["center-00004.safetensors", "manifest.json"]


def test_saving_over_another_store_replaces_it(tmp_path, unit):
    make(unit).save(tmp_path)
    other = make(unit, 5)
    other.save(tmp_path)
    assert state(Datastore.load(tmp_path)) == state(other)
    assert "segment-00001.parquet" not in files(tmp_path)


def test_a_copy_elsewhere_leaves_the_first_alone(tmp_path, unit):
    store = make(unit)
    store.save(tmp_path / "a")
    before = state(store)
    store.remove([0])
    store.save(tmp_path / "b")
    assert state(Datastore.load(tmp_path / "a")) == before
    assert state(Datastore.load(tmp_path / "b")) == state(store)


def test_copying_does_not_move_the_store(tmp_path, unit):
    store = make(unit)
    store.save(tmp_path / "home")
    store.remove([0])
    store.copy_to(tmp_path / "copy")
    assert state(Datastore.load(tmp_path / "copy")) == state(store)
    assert len(Datastore.load(tmp_path / "home")) == 40
    grow(store, unit, 2, 1)
    store.copy_to(tmp_path / "home")
    assert "segment-00002.parquet" in files(tmp_path / "home")
    assert state(Datastore.load(tmp_path / "home")) == state(store)


def test_what_a_twin_changes_is_saved_too(tmp_path, unit):
    store = make(unit)
    twin = store.centred_by(None)
    store.save(tmp_path)
    twin.remove([0, 1])
    grow(twin, unit, 2, 1)
    store.save(tmp_path)
    assert list(Datastore.load(tmp_path)) == list(store) == list(twin)


def test_a_second_writer_is_told_and_loses_nothing(tmp_path, unit):
    make(unit).save(tmp_path)
    one, two = Datastore.load(tmp_path), Datastore.load(tmp_path)
    grow(one, unit, 2, 1)
    one.save(tmp_path)
    grow(two, unit, 2, 2)
    with pytest.raises(PackError, match="changed by another process"):
        two.save(tmp_path)
    assert state(Datastore.load(tmp_path)) == state(one)


class Interrupted(Exception):
    pass


def stop_after(calls, monkeypatch):
    """Let that many writes reach the disk, then stop."""
    budget, original = iter(range(calls)), os.fsync

    def fsync(handle):
        if next(budget, None) is None:
            raise Interrupted
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("operation", ["save", "compact"])
def test_a_write_that_stops_anywhere_leaves_the_old_store_or_the_new(tmp_path, operation, unit, monkeypatch):
    ended = []
    for calls in range(12):
        folder = tmp_path / str(calls)
        make(unit).save(folder)
        store = Datastore.load(folder)
        before = state(store)
        grow(store, unit, 3, 1)
        store.remove([5])
        with monkeypatch.context() as patch:
            stop_after(calls, patch)
            try:
                store.save(folder) if operation == "save" else store.compact()
                ended.append("whole")
            except Interrupted:
                ended.append("stopped")
        loaded = Datastore.load(folder, verify=True)
        assert state(loaded) in (before, state(store))
        assert ended[-1] == "stopped" or state(loaded) == state(store)
        loaded.save(folder)
        listed = {file.name for file in read_manifest(folder).files}
        assert set(files(folder)) == listed | {MANIFEST}, "leftovers were not cleaned"
    assert ended.count("stopped") >= 6
    assert ended[-1] == "whole"


GROWING = """
import sys, numpy as np
from recap.datastore import Datastore
store = Datastore.load(sys.argv[1])
print("ready", flush=True)
while True:
    rows = np.random.default_rng(len(store)).standard_normal((20, 16))
    ids = store.add([f"new {i}" for i in range(20)], rows)
    store.remove(ids[:5])
    store.save(sys.argv[1])
    if len(ids) and ids[0] % 80 == 0:
        store.compact()
"""


def test_kill_minus_nine_at_any_moment(tmp_path, unit, kill_while):
    make(unit).save(tmp_path)
    for _ in range(4):
        kill_while(GROWING, tmp_path, 0.25)
        store = Datastore.load(tmp_path, verify=True)
        assert (len(store) - 40) % 15 == 0
        assert all(row.text.startswith(("new", "caption")) for row in store)
        np.testing.assert_allclose(np.linalg.norm(store.raw_vectors(store.ids), axis=1), 1, atol=1e-6)
    store.save(tmp_path)
    assert set(files(tmp_path)) == {file.name for file in read_manifest(tmp_path).files} | {MANIFEST}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["segment-00001.parquet", "segment-00001.safetensors", "center-00001.safetensors"])
@pytest.mark.parametrize(
    ("damage", "message"), [(lambda p: p.unlink(), "missing"), (truncate, "truncated"), (flip, "sha256")]
)
def test_damaged_files_are_named(tmp_path, name, damage, message, unit):
    make(unit).save(tmp_path)
    if name.startswith("center") and damage is flip:
        pytest.skip("shorter than the place that is flipped")
    damage(tmp_path / name)
    with pytest.raises(PackError, match=f"{name}.*{message}"):
        Datastore.load(tmp_path, verify=True)


def edit(folder, change):
    path = folder / MANIFEST
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=99), "version 99"),
        (lambda m: m.update(format="something"), "does not belong to a datastore"),
        (lambda m: m.pop("segments"), "damaged"),
        (lambda m: m.update(dimension=17), "shape"),
        (lambda m: m.update(dtype="float16"), "float16"),
        (lambda m: m.update(index={"kind": "unheard of"}), "unheard of"),
        (lambda m: m["segments"][0].update(rows=39), "39"),
    ],
)
def test_a_wrong_manifest_is_named(tmp_path, change, message, unit):
    make(unit).save(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(PackError, match=message) as error:
        Datastore.load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_torn_manifest_and_no_manifest(tmp_path):
    with pytest.raises(PackError, match="holds no datastore"):
        Datastore.load(tmp_path)
    (tmp_path / MANIFEST).write_text('{"format": "recap-dat')
    with pytest.raises(PackError, match=r"manifest\.json is damaged"):
        Datastore.load(tmp_path)


def test_bad_input_does_not_reach_the_disk(tmp_path, unit):
    store = make(unit)
    store.save(tmp_path)
    with pytest.raises(InputError):
        store.add(["x"], np.full((1, 16), np.nan))
    store.save(tmp_path)
    assert len(Datastore.load(tmp_path)) == 40
