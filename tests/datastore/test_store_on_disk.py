from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import grow

from recap.datastore import Datastore, DiskArguments, DiskStore, home, lists, manifest, open_store
from recap.datastore import store as stores
from recap.datastore.manifest import MANIFEST, read_manifest
from recap.errors import DiskFullError, InputError, PackError

SMALL = DiskArguments(minimum_rows=50, lists=5, probes=2)
ALL = DiskArguments(minimum_rows=30, lists=6, probes=6)


def make(folder, unit, count=200, index=SMALL, **options):
    options = {"center": unit(1, seed=3)[0] * 0.2, "dtype": "float32"} | options
    store = DiskStore.create(folder, 16, encoder="toy", fingerprint="toy-1", index=index, **options)
    grow(store, unit, count)
    return store


def state(store):
    ids = store.ids
    return list(store), store.raw_vectors(ids).tobytes(), store.vectors(ids).tobytes(), store.next_id, store.sources()


def listed(folder):
    return {file.name for file in read_manifest(folder).files} | {MANIFEST}


def files(folder):
    return {path.name for path in folder.iterdir() if path.name != home.LOCK}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_committed_is_opened(tmp_path, dtype, unit):
    store = make(tmp_path, unit, dtype=dtype)
    store.commit()
    store.remove([3, 39])
    grow(store, unit, 7, 1)
    store.commit()
    opened = DiskStore(tmp_path, verify=True)
    assert state(opened) == state(store)
    assert (opened.dimension, opened.encoder, opened.fingerprint, opened.index) == (16, "toy", "toy-1", SMALL)
    asked = unit(5, seed=9)
    np.testing.assert_array_equal(opened.search(asked, 7).ids, store.search(asked, 7).ids)
    assert opened.facts() == store.facts()
    assert files(tmp_path) == listed(tmp_path)
    assert isinstance(open_store(tmp_path), DiskStore)


def test_what_is_not_committed_goes(tmp_path, unit, monkeypatch):
    store = make(tmp_path, unit)
    store.commit()
    before = state(store)
    monkeypatch.setattr(stores, "SPILL_BYTES", 1)
    grow(store, unit, 50, 1)
    store.remove([0])
    store.search(unit(1), 3, sources="odd")
    assert any(name.startswith(home.PENDING) for name in files(tmp_path))
    assert state(DiskStore(tmp_path)) == before
    del store
    assert files(tmp_path) == listed(tmp_path), "and at once, not when the garbage is collected"


def test_what_a_killed_process_left_is_cleaned_up(tmp_path, unit):
    make(tmp_path, unit).commit()
    left = tmp_path / f"{home.PENDING}of-a-dead-process"
    left.mkdir()
    (left / "segment-00007.arrow").write_bytes(b"half")
    store = DiskStore(tmp_path)
    grow(store, unit, 3, 1)
    store.commit()
    assert files(tmp_path) == listed(tmp_path)


def test_what_waits_in_one_process_is_left_alone_by_another(tmp_path, unit, brute, monkeypatch):
    make(tmp_path, unit, 20).commit()
    other = DiskStore(tmp_path)
    monkeypatch.setattr(stores, "SPILL_BYTES", 1)
    waiting = DiskStore(tmp_path)
    waiting._searcher.arguments = ALL
    grow(waiting, unit, 30, 1)
    grow(other, unit, 3, 2)
    other.commit()
    assert any(name.startswith(home.PENDING) for name in files(tmp_path))
    asked = waiting.vectors(waiting.ids)
    np.testing.assert_array_equal(waiting.search(asked, 3).ids, brute(waiting, asked, 3).ids)
    assert waiting.recall is not None, "lists were built in the folder that waits"
    other.compact()
    waiting.set_center(None)
    np.testing.assert_array_equal(waiting.search(asked, 3).ids, brute(waiting, asked, 3).ids)


def test_a_reader_goes_on_with_what_it_opened(tmp_path, unit, brute):
    make(tmp_path / "s", unit, 40).commit()
    reader, writer = DiskStore(tmp_path / "s"), DiskStore(tmp_path / "s")
    before, asked = state(reader), reader.vectors(reader.ids)
    writer.remove(writer.ids[:30])
    grow(writer, unit, 30, 1)
    writer.commit()
    writer.compact()
    np.testing.assert_array_equal(reader.search(asked, 3).ids, brute(reader, asked, 3).ids)
    assert state(reader) == before
    with pytest.raises(PackError, match="changed by another process"):
        reader.copy_to(tmp_path / "copy")


def test_many_small_changes_make_few_segments(tmp_path, unit, monkeypatch):
    monkeypatch.setattr(home, "MANY_REMOVALS", 4)
    store = make(tmp_path, unit, 60)
    store.commit()
    plain = Datastore(16, fingerprint="toy-1", center=store.center)
    plain.take_over(store)
    for number in range(24):
        for one in (store, plain):
            one.add([f"new {number}"], unit(1, seed=number), source=f"{number % 3}", image_ids=[f"i{number}"])
            if number % 2:
                one.remove([number // 2, one.ids[-2]])
        store.commit()
    assert len(read_manifest(tmp_path).segments) <= 6
    assert len(read_manifest(tmp_path).removed) <= 4
    assert state(store) == state(plain) == state(DiskStore(tmp_path, verify=True))
    assert files(tmp_path) == listed(tmp_path)


def test_the_hash_is_that_of_the_captions_and_not_of_the_files(tmp_path, unit):
    store, hashes = make(tmp_path / "a", unit, 30), []

    def note():
        hashes.append(store.content_hash())
        plain = Datastore(16, fingerprint="toy-1")
        plain.take_over(store)
        assert hashes[-1] == plain.content_hash() == DiskStore(tmp_path / "a").content_hash()

    store.commit()
    note()
    store.remove([3, 29])
    grow(store, unit, 5, 1)
    store.commit()
    note()
    store.compact()
    note()
    assert hashes[0] != hashes[1] == hashes[2]


class Full:
    """Stands for the functions that write: there is no room, so many times."""

    def __init__(self, original, times=1):
        self.original, self.times = original, times

    def __call__(self, *values, **options):
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.original(*values, **options)


@pytest.mark.parametrize("another", ["try", "twin", "twin that waits"])
def test_the_lists_that_are_committed_are_those_of_the_centre(tmp_path, another, unit, monkeypatch):
    store = make(tmp_path, unit, 300, DiskArguments(minimum_rows=50, lists=30, probes=2))
    store.commit()
    if another == "try":
        store.set_center(unit(1, seed=8)[0] * 0.9)
        monkeypatch.setattr(manifest, "write_json", Full(manifest.write_json))
        with pytest.raises(OSError, match="No space"):
            store.commit()
    else:
        twin = store.centred_by(unit(1, seed=8)[0] * 0.9)
        grow(store, unit, 300, 1)
        for one in (store, twin):
            one.search(unit(1), 1)
        if another == "twin":
            twin.commit()
    store.commit()
    opened = DiskStore(tmp_path, verify=True)
    np.testing.assert_array_equal(opened.center, store.center)
    asked = opened.vectors(opened.ids)
    np.testing.assert_array_equal(opened.search(asked, 1).ids[:, 0], opened.ids)
    assert files(tmp_path) == listed(tmp_path) or another == "twin that waits"


def test_building_lists_shows_how_far_it_is(tmp_path, unit, monkeypatch, capsys):
    monkeypatch.setattr("recap.files.LOG_SECONDS", 0.0)
    store = make(tmp_path, unit)
    store.progress = True
    store.commit()
    assert "recap: index: 200 of 200 after " in capsys.readouterr().err


def test_lists_on_a_full_disk(tmp_path, unit, monkeypatch):
    builder = lists.ListBuilder(lists.train(unit(100), 100, DiskArguments(lists=3)), tmp_path)
    builder.add(np.arange(100), unit(100))
    monkeypatch.setattr(os, "fsync", Full(os.fsync))
    with pytest.raises(DiskFullError):
        builder.finish(tmp_path / "lists.bin")
    assert not (tmp_path / "lists.bin").exists()


def test_a_stream_goes_to_the_disk_in_segments_and_comes_back_the_same(tmp_path, unit, monkeypatch):
    monkeypatch.setattr(stores, "SPILL_BYTES", 16 * 4 * 60)
    monkeypatch.setattr(lists, "SHARD_BYTES", 16 * 40)
    store, plain = make(tmp_path, unit, 0), Datastore(16, center=unit(1, seed=3)[0] * 0.2)
    for seed in range(12):
        for one in (store, plain):
            grow(one, unit, 25, seed)
    assert len(store._segments.all) == 4
    assert all(isinstance(segment.matrix, np.memmap) for segment in store._segments.all)
    store.commit()
    for one in (store, DiskStore(tmp_path)):
        assert list(one) == list(plain)
        np.testing.assert_array_equal(one.raw_vectors(one.ids), plain.raw_vectors(plain.ids))
        found, expected = one.search(unit(9, seed=20), 300), plain.search(unit(9, seed=20), 300)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.similarities, expected.similarities)


def test_the_lists_are_those_that_faiss_would_make(tmp_path, unit, monkeypatch):
    monkeypatch.setattr(lists, "SHARD_BYTES", 24 * 100)
    rows, ids = unit(1000), np.arange(1000) * 3
    trained = lists.train(rows[:400], 1000, DiskArguments(lists=9))
    builder = lists.ListBuilder(trained, tmp_path)
    for start in range(0, 1000, 90):
        builder.add(ids[start : start + 90], rows[start : start + 90])
    sizes = builder.finish(tmp_path / "lists.bin")
    lists.save_trained(trained, tmp_path / "index.faiss")
    ours = lists.open_lists(tmp_path / "index.faiss", tmp_path / "lists.bin", sizes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.faiss", "lists.bin"]
    trained.add_with_ids(rows, ids)
    for number in range(9):
        size = trained.invlists.list_size(number)
        assert ours.invlists.list_size(number) == size == sizes[number]
        for method, width in (("get_ids", 1), ("get_codes", trained.code_size)):
            theirs = faiss.rev_swig_ptr(getattr(trained.invlists, method)(number), size * width)
            np.testing.assert_array_equal(
                faiss.rev_swig_ptr(getattr(ours.invlists, method)(number), size * width), theirs
            )


def test_the_recall_in_the_manifest_is_what_brute_force_says(tmp_path, unit):
    store = make(tmp_path, unit, 2000, DiskArguments(minimum_rows=500, lists=40, probes=4))
    store.commit()
    rows = store.vectors(store.ids).astype(np.float64)
    chosen = np.sort(np.random.default_rng(0).choice(2000, 100, replace=False))
    found = store.search(rows[chosen], 14)
    shares = []
    for row, ids in zip(chosen, found.ids, strict=True):
        nearest = np.argsort(-(rows @ rows[row]), kind="stable")
        shares.append(len(set(nearest[1:14]) & set(ids[1:])) / 13)
    built = read_manifest(tmp_path).built
    assert built.recall == pytest.approx(np.mean(shares), abs=1e-9)
    assert 0.3 < built.recall < 1, "with few probes some are missed: otherwise this says little"
    assert (built.recall_k, built.recall_queries, built.rows) == (13, 100, 2000)
    assert DiskStore(tmp_path).recall == store.recall == built.recall
    assert store.facts()["recall@13 in per cent"] == round(100 * built.recall, 2)


def test_a_committed_store_is_copied_as_it_is_and_others_are_made_anew(tmp_path, unit):
    store, asked = make(tmp_path / "one", unit), unit(5, seed=9)
    store.commit()
    store.copy_to(tmp_path / "same")
    same = DiskStore(tmp_path / "same", verify=True)
    assert files(tmp_path / "same") == files(tmp_path / "one")
    grow(same, unit, 9, 1)
    same.remove([4])
    same.commit()
    assert state(DiskStore(tmp_path / "one", verify=True)) == state(store)
    store.remove([7])
    store.commit()
    store.copy_to(tmp_path / "less")
    less = DiskStore(tmp_path / "less", verify=True)
    assert state(less) == state(store)
    assert not any(b"caption 0/7 " in path.read_bytes() for path in (tmp_path / "less").iterdir())
    store.centred_by(unit(1, seed=8)[0] * 0.3).copy_to(tmp_path / "moved")
    moved = DiskStore(tmp_path / "moved", verify=True)
    np.testing.assert_array_equal(moved.center, unit(1, seed=8)[0] * np.float32(0.3))
    expected = store.centred_by(moved.center).search(asked, 7)
    np.testing.assert_array_equal(moved.search(asked, 7).ids, expected.ids)
    with pytest.raises(InputError, match="holds a datastore already"):
        DiskStore(tmp_path / "same").copy_to(tmp_path / "less")


def test_lists_are_made_when_there_is_enough_and_again_when_there_is_much_more(tmp_path, unit):
    store = make(tmp_path, unit, 40)
    store.commit()
    assert read_manifest(tmp_path).built is None
    assert store.recall is None
    grow(store, unit, 160, 1)
    store.commit()
    first = read_manifest(tmp_path).built
    assert first.rows == 200
    grow(store, unit, 50, 2)
    store.commit()
    assert read_manifest(tmp_path).built == first
    grow(store, unit, 1, 3)
    store.commit()
    assert read_manifest(tmp_path).built.rows == 251
    assert files(tmp_path) == listed(tmp_path)


def test_a_folder_of_each_kind_is_opened_as_what_it_is(tmp_path, unit):
    plain = Datastore(16)
    plain.add(["a"], unit(1))
    plain.save(tmp_path / "plain")
    values = json.loads((tmp_path / "plain" / MANIFEST).read_text())
    assert values["version"] == 1
    assert "built" not in values
    assert isinstance(open_store(tmp_path / "plain"), Datastore)
    with pytest.raises(PackError, match=r"Datastore\.load"):
        DiskStore(tmp_path / "plain")
    make(tmp_path / "disk", unit).commit()
    assert json.loads((tmp_path / "disk" / MANIFEST).read_text())["version"] == 2
    with pytest.raises(PackError, match="open_store"):
        Datastore.load(tmp_path / "disk")
    with pytest.raises(InputError, match="already"):
        DiskStore.create(tmp_path / "disk", 16)
    with pytest.raises(InputError, match="DiskStore"):
        Datastore(16, index="disk").search(unit(1), 1)


def test_a_second_writer_is_told_and_loses_nothing(tmp_path, unit):
    make(tmp_path, unit).commit()
    one, two = DiskStore(tmp_path), DiskStore(tmp_path)
    grow(one, unit, 2, 1)
    one.commit()
    grow(two, unit, 2, 2)
    with pytest.raises(PackError, match="changed by another process"):
        two.commit()
    assert state(DiskStore(tmp_path)) == state(one)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("operation", ["commit", "compact"])
def test_a_write_that_stops_anywhere_leaves_the_old_store_or_the_new(tmp_path, operation, unit, monkeypatch):
    ended = []
    for calls in range(0, 64, 4):
        folder = tmp_path / str(calls)
        make(folder, unit, 60).commit()
        store = DiskStore(folder)
        before = state(store)
        grow(store, unit, 70, 1)
        store.remove([5])
        after = state(store)
        with monkeypatch.context() as patch:
            budget, original = iter(range(calls)), os.fsync

            def fsync(handle, budget=budget, original=original):
                if next(budget, None) is None:
                    raise Interrupted
                original(handle)

            patch.setattr(os, "fsync", fsync)
            try:
                getattr(store, operation)()
                ended.append("whole")
            except Interrupted:
                ended.append("stopped")
        loaded = DiskStore(folder, verify=True)
        assert state(loaded) in (before, after)
        assert ended[-1] == "stopped" or state(loaded) == after
        del store
        grow(loaded, unit, 1, 2)
        loaded.commit()
        assert files(folder) == listed(folder), "leftovers were not cleaned"
    assert ended.count("stopped") >= 5
    assert ended[-1] == "whole"


GROWING = """
import sys, numpy as np
from recap.datastore import DiskStore
store = DiskStore(sys.argv[1])
print("ready", flush=True)
while True:
    rows = np.random.default_rng(store.next_id).standard_normal((20, 16))
    ids = store.add([f"new {i}" for i in range(20)], rows)
    store.remove(ids[:5])
    store.commit()
    if ids[0] % 80 == 0:
        store.compact()
"""


def test_kill_minus_nine_at_any_moment(tmp_path, unit, kill_while):
    make(tmp_path, unit, 40).commit()
    for _ in range(3):
        kill_while(GROWING, tmp_path, 0.4)
        store = DiskStore(tmp_path, verify=True)
        assert (len(store) - 40) % 15 == 0
        assert all(row.text.startswith(("new", "caption")) for row in store)
        np.testing.assert_allclose(np.linalg.norm(store.raw_vectors(store.ids), axis=1), 1, atol=1e-6)
    store.commit()
    assert files(tmp_path) == listed(tmp_path)


@pytest.mark.parametrize("suffix", [".arrow", ".bin", ".faiss", "segment-00001.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "sha256"])
def test_damaged_files_are_named(tmp_path, suffix, damage, unit):
    make(tmp_path, unit).commit()
    (path,) = (path for path in tmp_path.iterdir() if path.name.endswith(suffix))
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-7])
    elif damage == "sha256":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(PackError, match=f"{path.name}.*{damage}"):
        DiskStore(tmp_path, verify=True)


POOL = np.random.default_rng(5).standard_normal((12, 6)).astype(np.float32)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 11), max_size=12), st.sampled_from("ab")),
        st.tuples(st.just("remove"), st.sets(st.integers(0, 60), max_size=8)),
        st.tuples(st.just("center"), st.integers(0, 3)),
        st.sampled_from([("commit",), ("compact",), ("reopen",)]),
        st.tuples(st.just("search"), st.integers(1, 15), st.sampled_from([None, "a"])),
    ),
    max_size=15,
)


@settings(max_examples=25, deadline=None)
@given(steps=steps, minimum=st.sampled_from([4, 10, 1000]))
def test_any_sequence_of_changes_agrees_with_a_store_in_memory(steps, minimum):
    with tempfile.TemporaryDirectory() as temporary:
        arguments = DiskArguments(minimum_rows=minimum, lists=3, probes=3)
        store = DiskStore.create(Path(temporary) / "s", 6, index=arguments, dtype="float32")
        plain = Datastore(6)
        for step, *values in steps:
            if step == "add":
                rows = POOL[values[0]].reshape(-1, 6)
                for one in (store, plain):
                    one.add([f"text {n}" for n in values[0]], rows, source=values[1])
            elif step == "remove":
                gone = sorted(values[0] & set(plain.ids.tolist()))
                assert store.remove(gone) == plain.remove(gone) == len(gone)
            elif step == "center":
                center = POOL[values[0]] * 0.1 if values[0] else None
                store.set_center(center)
                plain.set_center(center)
            elif step == "reopen":
                store.commit()
                store = DiskStore(Path(temporary) / "s")
            elif step == "search":
                found, expected = (one.search(POOL[:3] + 0.3, values[0], sources=values[1]) for one in (store, plain))
                np.testing.assert_array_equal(found.similarities, expected.similarities)
                np.testing.assert_array_equal(found.ids, expected.ids)
            else:
                getattr(store, step)()
        assert list(store) == list(plain)
        assert store.sources() == plain.sources()
