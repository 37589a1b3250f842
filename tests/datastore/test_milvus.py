from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from servers import START_SECONDS

from recap.datastore import DatastoreView, DiskStore, collection, open_store
from recap.datastore.base import Filters, centred
from recap.datastore.collection import Address, milvus_condition
from recap.datastore.milvus import MilvusStore, check_free, fill
from recap.datastore.ranking import uncentred
from recap.errors import InputError, MissingExtraError, PackError


def test_addresses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = Address.parse("milvus:./captions.db")
    assert (here.server, here.collections, here.embedded) == (str(tmp_path / "captions.db"), ("captions",), True)
    far = Address.parse("milvus:http://host:19530?collection=coco,flickr&index=hnsw")
    assert (far.server, far.collections, far.index) == ("http://host:19530", ("coco", "flickr"), "HNSW")
    assert not far.embedded
    assert far.one("flickr").url == "milvus:http://host:19530?collection=flickr"
    for address in (here, far):
        assert Address.parse(address.url).collections == address.collections


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("milvus:./captions", "ends in .db"),
        ("milvus:./captions.db?colection=a", "not an address"),
        ("milvus:./captions.db?collection=,", "not an address"),
        ("http://host", "not an address"),
        ("milvus:./captions.db?index=annoy", r"ANNOY; choose one of FLAT, .*DISKANN"),
    ],
)
def test_bad_addresses_are_named(url, message):
    with pytest.raises(InputError, match=message):
        Address.parse(url)


def test_filters_are_quoted():
    filters = Filters(frozenset(['a "b"', "c\\d"]), frozenset(["x\ny"]), False)
    assert milvus_condition(filters, "i\t1") == (
        'source in ["a \\"b\\"", "c\\\\d"] and image_id in ["i\\t1"] and source not in ["x\\ny"] and synthetic == false'
    )
    assert milvus_condition(Filters()) == ""
    assert milvus_condition(Filters(sources=frozenset())) is None


@pytest.mark.parametrize("length", [0.0, 0.3, 0.9, 0.999])
def test_vectors_are_found_again_from_what_was_centred(length, unit):
    rows, center = unit(500, 32), unit(1, 32, seed=1)[0] * np.float32(length)
    np.testing.assert_allclose(uncentred(centred(rows, center), center), rows, atol=3e-6 if length > 0.99 else 3e-7)
    assert uncentred(rows, None) is rows


def test_without_the_extra_it_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(collection, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[milvus\]"):
        MilvusStore("milvus:./captions.db")


def test_a_file_that_another_process_has_open_is_named(new_milvus, milvus_file):
    new_milvus(16)
    code = "import sys; from recap.datastore import open_store; open_store(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, f"milvus:{milvus_file}"], capture_output=True, text=True)
    assert re.search(r"PackError: .*captions\.db: cannot be opened.*one process at a time", done.stderr)


def test_a_name_with_a_slip_makes_no_file(tmp_path):
    pytest.importorskip("pymilvus", reason="a datastore in Milvus needs the extra milvus")
    with pytest.raises(PackError, match="no such file"):
        MilvusStore(f"milvus:{tmp_path / 'nowhere' / 'captions.db'}")
    assert not list(tmp_path.iterdir())


def test_what_another_handle_adds_is_seen_and_kept(new_milvus, unit):
    one = new_milvus(16)
    one.add(["a"], unit(1), source="x")
    two = MilvusStore(one.url)
    hashes = {two.content_hash()}
    assert list(one.add(["b"], unit(1, seed=1), source="y")) == [1]
    hashes.add(two.content_hash())
    assert two.sources() == {"x": 1, "y": 1}
    assert list(two.add(["c"], unit(1, seed=2), source="z")) == [2]
    assert list(two.merge(one)) == [3, 4, 5]
    assert len(hashes) == 2
    for store in (one, two):
        assert [row.text for row in store] == ["a", "b", "c", "a", "b", "c"]
        assert store.sources() == {"x": 2, "y": 2, "z": 2}


def test_a_collection_that_is_being_filled_cannot_be_opened_and_may_be_replaced(new_milvus, unit):
    half = new_milvus(16, unfinished=True)
    half.add(["a"], unit(1))
    with pytest.raises(PackError, match="not finished"):
        open_store(half.url)
    check_free(half.url)
    again = MilvusStore.create(half.url, 16, unfinished=True)
    again.add(["b"], unit(1))
    again.commit()
    assert [row.text for row in open_store(half.url)] == ["b"]
    for refused in (check_free, lambda url: MilvusStore.create(url, 16)):
        with pytest.raises(InputError, match="already"):
            refused(half.url)


def test_asking_for_another_centre_changes_nothing(new_milvus, unit):
    store = new_milvus(16, center=unit(1)[0] * 0.2)
    with pytest.raises(InputError, match="another mean"):
        store.centred_by(None)
    np.testing.assert_array_equal(MilvusStore(store.url).center, unit(1)[0] * np.float32(0.2))


def test_a_collection_is_opened_as_it_was_left(new_milvus, unit):
    center = unit(1, seed=3)[0] * 0.2
    store = new_milvus(16, encoder="toy", fingerprint="toy-1", center=center)
    store.add(["a", "b", "c"], unit(3), source=["x", "y", "x"])
    store.remove([2])
    store.commit()
    opened = open_store(store.url)
    assert isinstance(opened, MilvusStore)
    assert (opened.dimension, opened.encoder, opened.fingerprint) == (16, "toy", "toy-1")
    np.testing.assert_array_equal(opened.center, center)
    assert list(opened) == list(store)
    assert opened.sources() == {"x": 1, "y": 1}
    assert list(opened.add(["d"], unit(1))) == [3]
    assert opened.facts()["index"] == "FLAT"


def test_several_collections_by_one_address(new_milvus, unit):
    one, two = new_milvus(16), new_milvus(16)
    one.add(["a"], unit(1), source="s")
    two.add(["b", "c"], unit(2, seed=1), source="s")
    both = f"{one.url},{two.url.split('=')[1]}"
    view = open_store(both)
    assert isinstance(view, DatastoreView)
    assert view.url == both
    assert [row.text for row in view] == ["a", "b", "c"]
    assert [row.text for row in view.rows(view.ids[::-1])] == ["c", "b", "a"]
    assert view.sources() == {"s": 3}
    found = view.search(unit(1), 3)
    assert view.evidence(found.ids[0], found.similarities[0])[0].text == "a"
    for refused in (MilvusStore, lambda url: MilvusStore.create(url, 16)):
        with pytest.raises(InputError, match="as a view"):
            refused(both)


def test_a_server_killed_in_the_middle_of_an_insert_is_waited_for(milvus_server, new_on_server, unit, monkeypatch):
    monkeypatch.setattr(collection, "PATIENCE", START_SECONDS)
    store, size, batches = new_on_server(64), 4000, 12
    done = []

    def fill() -> None:
        for number in range(batches):
            texts = [f"{number}/{i}" for i in range(size)]
            done.append(store.add(texts, unit(size, 64, seed=number), source=f"source {number}"))

    with ThreadPoolExecutor(1) as pool:
        filled = pool.submit(fill)
        while len(done) < 3 and not filled.done():
            time.sleep(0.01)
        milvus_server.kill()
        milvus_server.start()
        filled.result()
    # every caption once, under an id of its own, for this handle and for one that knows nothing of it
    for one in (store, MilvusStore(store.url)):
        assert one.next_id == len(one) == size * batches
        np.testing.assert_array_equal(one.ids, np.concatenate(done))
        assert one.sources() == {f"source {number}": size for number in range(batches)}
        last = done[-1][-1:]
        assert one.rows(last)[0].text == f"{batches - 1}/{size - 1}"
        assert one.search(one.vectors(last), 1).ids.item() == last


def test_collections_are_filled_side_by_side_from_a_store_on_disk(milvus_server, unit, tmp_path):
    store = DiskStore.create(tmp_path / "store", 16, center=unit(1)[0] * 0.1, dtype="float32")
    store.add([f"{i}" for i in range(3000)], unit(3000), source="s")
    store.remove([7, 2999])
    store.commit()
    url = fill(milvus_server.address("one,two,three", "FLAT"), store, tmp_path / "store", center=store.center)
    view, asked = open_store(url), unit(5, seed=1)
    assert [len(one) for one in view.stores] == [1000, 999, 999]
    assert view.stores[0].facts()["index"] == "FLAT"
    assert [row.text for row in view] == [row.text for row in store]
    np.testing.assert_array_equal(view.search(asked, 9).ids & ((1 << 48) - 1), store.search(asked, 9).ids)
    for one in view.stores:
        assert one.next_id == 3000
        one._collection.call("drop_collection")


def test_what_was_announced_and_forgotten_is_counted_again(new_milvus, unit):
    store = new_milvus(16)
    store.add(["a", "b"], unit(2), source="x")
    before = store._collection.properties()
    store.add(["c", "d"], unit(2, seed=1), source="y")
    # a server that is killed may lose what was last set, but not the captions
    store._collection.set_properties(next_id=before["next_id"], sources=before["sources"])
    again = MilvusStore(store.url)
    assert list(again.add(["e"], unit(1, seed=2))) == [4]
    assert again.sources() == {"": 1, "x": 2, "y": 2}


def test_a_graph_may_be_asked_for(milvus_file, unit):
    store = MilvusStore.create(f"milvus:{milvus_file}?collection=graph&index=HNSW", 16, center=unit(1)[0] * 0.1)
    store.add([f"{i}" for i in range(300)], unit(300))
    store.commit()
    found = store.search(store.vectors(range(20)), 5)
    assert (found.ids[:, 0] == np.arange(20)).mean() > 0.9
    true = np.einsum("qd,qkd->qk", store.vectors(range(20)), store.vectors(found.ids.ravel()).reshape(20, 5, 16))
    np.testing.assert_allclose(found.similarities, true, atol=1e-6)


def test_what_cannot_be_is_named(new_milvus, milvus_file, unit):
    store = new_milvus(16)
    with pytest.raises(InputError, match="already"):
        MilvusStore.create(store.url, 16)
    with pytest.raises(PackError, match="no such collection"):
        MilvusStore(f"milvus:{milvus_file}?collection=nothing")
    with pytest.raises(InputError, match="shorter than 1"):
        store.set_center(unit(1)[0])
    with pytest.raises(InputError, match="65535 bytes"):
        store.add(["long " * 14_000], unit(1))
    assert len(MilvusStore.create(store.url, 8, replace=True)) == 0
