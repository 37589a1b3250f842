"""What every store promises, wherever it keeps its captions; run for each backend of ``conftest.BACKENDS``."""

from __future__ import annotations

import re

import numpy as np
import pytest

from recap.datastore import CaptionStore, Datastore, DatastoreView, MutableStore, SearchResult, open_store
from recap.datastore.milvus import MilvusStore
from recap.errors import EncoderMismatchError, InputError
from recap.types import Evidence


def fill(store: MutableStore, unit, count=60) -> MutableStore:
    store.add(
        [f"caption {i}" for i in range(count)],
        unit(count, store.dimension),
        source=[("coco", "flickr", "mine")[i % 3] for i in range(count)],
        synthetic=[i % 4 == 0 for i in range(count)],
        image_ids=[f"image {i // 5}" for i in range(count)],
    )
    return store


def rounding(store: MutableStore) -> float:
    """How far a number of a vector may be from the one that was added."""
    return 5e-4 if getattr(store, "dtype", "") == "float16" else 3e-7


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
    assert found.ids.dtype == np.int64
    assert found.similarities.dtype == np.float32


@pytest.mark.parametrize("centre", [False, True])
def test_search_is_brute_force(new_store, centre, unit, brute):
    store = fill(new_store(16, center=unit(60).mean(axis=0) + 0.1 if centre else None), unit)
    for queries in (1, 9):
        asked = unit(queries, seed=1)
        for k in (1, 7, 60):
            assert_same(store.search(asked, k), brute(store, asked, k))


def test_filters_give_the_best_of_those_allowed(new_store, unit, brute):
    store = fill(new_store(16), unit)
    asked = unit(8, seed=1)
    cases = [
        ({"sources": "coco"}, lambda q, row: row.source == "coco"),
        ({"sources": ["coco", "mine", "no such source"]}, lambda q, row: row.source in ("coco", "mine")),
        ({"exclude_sources": {"coco"}}, lambda q, row: row.source != "coco"),
        ({"exclude_sources": []}, lambda q, row: True),
        ({"synthetic": True}, lambda q, row: row.synthetic),
        ({"synthetic": False, "sources": "mine"}, lambda q, row: not row.synthetic and row.source == "mine"),
        ({"sources": []}, lambda q, row: False),
    ]
    for filters, allowed in cases:
        assert_same(store.search(asked, 15, **filters), brute(store, asked, 15, allowed))


def test_images_are_left_out_query_by_query(new_store, unit, brute):
    store = fill(new_store(16), unit)
    asked = unit(6, seed=1)
    excluded = ["image 1", {"image 1", "image 2"}, None, "", ["image 11", "no such image"], "image 0"]
    sets = [{"image 1"}, {"image 1", "image 2"}, set(), set(), {"image 11"}, {"image 0"}]
    assert_same(
        store.search(asked, 12, exclude_image_ids=excluded),
        brute(store, asked, 12, lambda q, row: row.image_id not in sets[q]),
    )
    assert_same(
        store.search(asked, 60, exclude_image_ids=excluded, sources="coco"),
        brute(store, asked, 60, lambda q, row: row.image_id not in sets[q] and row.source == "coco"),
    )


def test_an_image_with_most_of_the_captions_is_left_out(new_store, unit, brute):
    store = new_store(16)
    store.add([f"{i}" for i in range(90)], unit(90), image_ids=["big"] * 80 + ["small"] * 10)
    asked = unit(2, seed=1)
    found = store.search(asked, 5, exclude_image_ids=["big", None])
    assert_same(found, brute(store, asked, 5, lambda q, row: q == 1 or row.image_id == "small"))


def test_equal_captions_come_in_the_order_of_their_ids(new_store, unit):
    store, rows = new_store(16), unit(4)
    store.add([f"{i}" for i in range(400)], np.tile(rows, (100, 1)))
    for batch in (1, 20):
        found = store.search(np.tile(rows[:1], (batch, 1)), 30)
        assert (found.ids == np.arange(0, 120, 4)).all()
        assert len(np.unique(found.similarities)) == 1


def test_a_query_is_answered_alike_alone_and_in_a_batch(new_store, unit):
    store = fill(new_store(64), unit, 300)
    asked = unit(70, 64, seed=1)
    together = store.search(asked, 20)
    for number in range(0, 70, 7):
        alone = store.search(asked[number : number + 1], 20)
        np.testing.assert_array_equal(alone.ids[0], together.ids[number])
        np.testing.assert_array_equal(alone.similarities[0], together.similarities[number])


def test_empty_stores_and_no_queries(new_store, unit):
    store = new_store(16)
    found = store.search(unit(3), 4)
    assert (found.ids == -1).all()
    assert np.isneginf(found.similarities).all()
    assert store.evidence(found.ids[0], found.similarities[0]) == ()
    assert list(store.add([], np.empty((0, 16)))) == []
    assert len(store) == 0
    assert list(store) == []
    assert store.search(np.empty((0, 16)), 4).ids.shape == (0, 4)
    assert store.raw_vectors([]).shape == (0, 16)
    assert isinstance(store, CaptionStore)


def test_more_than_there_is(new_store, unit):
    store = fill(new_store(16), unit, 3)
    found = store.search(unit(5, seed=1), 10)
    assert ((found.ids >= 0).sum(axis=1) == 3).all()
    assert (found.ids[:, 3:] == -1).all()


def test_evidence_vectors_and_rows(new_store, unit):
    mean = unit(60).mean(axis=0)
    store = fill(new_store(16, center=mean), unit)
    found = store.search(unit(1, seed=1), 2)
    first = store.rows(found.ids[0])[0]
    assert store.evidence(found.ids[0], found.similarities[0])[0] == Evidence(
        first.text, float(found.similarities[0, 0]), first.source, first.synthetic, first.image_id
    )
    moved = unit(60)[[3, 1]] - mean
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(store.raw_vectors([3, 1]), unit(60)[[3, 1]], atol=rounding(store))
    np.testing.assert_allclose(store.vectors([3, 1]), moved, atol=4 * rounding(store))
    assert [row.id for row in store.rows([5, 3, 5])] == [5, 3, 5]
    assert store.sources() == {"coco": 20, "flickr": 20, "mine": 20}
    images = store.ids_of_images(["image 2", "none", "image 0"])
    assert [list(ids) for ids in images] == [[10, 11, 12, 13, 14], [], [0, 1, 2, 3, 4]]
    assert store.facts()["search"]


def test_finding_captions(new_store, unit):
    store = fill(new_store(16), unit)
    assert list(store.find(source="coco", synthetic=True)) == [0, 12, 24, 36, 48]
    assert list(store.find(image_ids=["image 1", "image 3"], source=["mine", "coco"])) == [5, 6, 8, 9, 15, 17, 18]
    assert list(store.find(matching=re.compile("5$"))) == [5, 15, 25, 35, 45, 55]
    assert list(store.find(matching=re.compile("5$"), source="mine")) == [5, 35]
    assert len(store.find()) == 60


def test_names_and_captions_may_be_any_text(new_store, unit):
    texts = ['a "quoted" dog', "back\\slash", "new\nline\tand tab", "Straße 猫 🐈", "it's", "{braces} [brackets] % $"]
    store = new_store(16)
    store.add(texts, unit(6), source=texts, image_ids=texts)
    assert [row.text for row in store] == texts
    assert store.sources() == dict.fromkeys(texts, 1)
    for number, text in enumerate(texts):
        assert list(store.find(source=text, image_ids=text)) == [number]
        assert list(store.search(unit(1, seed=1), 1, sources=text).ids[0]) == [number]
        assert number not in store.search(unit(1, seed=1), 6, exclude_image_ids=[text]).ids
    assert store.remove_where(image_ids=texts[:3]) == 3
    assert [row.text for row in store] == texts[3:]


def test_what_comes_and_goes_is_found_and_not_found(new_store, unit, brute):
    store, asked = fill(new_store(16, center=unit(1, seed=3)[0] * 0.2), unit), unit(5, seed=1)
    store.search(asked, 1)
    store.remove([0, 7, 59])
    store.add(["new", "newer"], unit(2, seed=5), source="late")
    assert_same(store.search(asked, 9), brute(store, asked, 9))
    store.remove([60])
    store.add([f"more {i}" for i in range(50)], unit(50, seed=6), source="late", image_ids=["late"] * 50)
    for filters, allowed in (({}, None), ({"sources": "late"}, lambda q, row: row.source == "late")):
        assert_same(store.search(asked, 40, **filters), brute(store, asked, 40, allowed))
    assert len(store) == 60 - 3 + 2 - 1 + 50
    assert store.sources()["late"] == 51
    store.compact()
    assert_same(store.search(asked, 9), brute(store, asked, 9))


def test_remove_where(new_store, unit):
    store = fill(new_store(16), unit)
    assert store.remove_where(source="coco", synthetic=True) == 5
    assert store.remove_where(image_ids=["image 0", "image 1", "nothing"]) == 9
    assert not any(row.image_id in ("image 0", "image 1") for row in store)
    assert len(store) == 60 - 14
    with pytest.raises(InputError, match="at least one"):
        store.remove_where()


def test_ids_are_never_used_again(new_store, unit):
    store = fill(new_store(16), unit, 40)
    store.search(unit(1), 1)
    assert store.remove([38, 39, 39]) == 2
    assert list(store.add(["new"], unit(1))) == [40]
    for unknown in (39, 41, -1):
        with pytest.raises(InputError, match=f"no caption has the id {unknown}"):
            store.remove([1, unknown])
        with pytest.raises(InputError, match=f"no caption has the id {unknown}"):
            store.rows([unknown])
    assert len(store) == 39


def test_other_captions_have_another_hash(new_store, unit):
    store = fill(new_store(16), unit, 40)
    seen = {store.content_hash()}
    store.remove([3])
    seen.add(store.content_hash())
    store.remove([4])
    seen.add(store.content_hash())
    store.add(["new"], unit(1))
    seen.add(store.content_hash())
    assert len(seen) == 4
    assert store.content_hash() == store.content_hash()
    assert DatastoreView([store]).content_hash() != DatastoreView([store, store]).content_hash()


def test_merge(new_store, unit, brute):
    one, other = fill(new_store(16), unit, 20), Datastore(16, dtype="float16")
    other.add(["x", "y", "z"], unit(3, seed=7), source="other", synthetic=True, image_ids=["a", "b", "c"])
    other.remove([1])
    one.search(unit(1), 1)
    assert list(one.merge(other)) == [20, 21]
    row = one.rows([21])[0]
    assert (row.text, row.source, row.synthetic, row.image_id) == ("z", "other", True, "c")
    assert_same(one.search(unit(5, seed=1), 22), brute(one, unit(5, seed=1), 22))
    assert list(one.merge(one)) == list(range(22, 44))
    with pytest.raises(EncoderMismatchError, match="fingerprint a"):
        one.merge(Datastore(16, fingerprint="a"))


def test_taking_over_keeps_the_ids(new_store, unit):
    first = fill(new_store(16, center=unit(1, seed=3)[0] * 0.2), unit, 40)
    first.remove([0, 5, 39])
    there = Datastore(16, center=first.center)
    there.take_over(first)
    assert list(there) == list(first)
    assert there.next_id == first.next_id == 40
    back = new_store(16, center=first.center)
    back.take_over(there)
    assert list(back) == list(first)
    np.testing.assert_allclose(back.raw_vectors(back.ids), first.raw_vectors(first.ids), atol=rounding(first))
    assert list(back.add(["next"], unit(1))) == [40]
    with pytest.raises(InputError, match="empty store"):
        back.take_over(first)


def test_a_copy_in_a_folder(new_store, unit, tmp_path):
    store = fill(new_store(16, encoder="toy", fingerprint="toy-1", center=unit(1, seed=3)[0] * 0.2), unit)
    store.remove([1, 2])
    store.copy_to(tmp_path / "copy")
    copied, asked = open_store(tmp_path / "copy", verify=True), unit(4, seed=1)
    assert (copied.dimension, copied.encoder, copied.fingerprint) == (16, "toy", "toy-1")
    assert list(copied) == list(store)
    assert copied.next_id == store.next_id
    np.testing.assert_array_equal(copied.center, store.center)
    assert_same(copied.search(asked, 9), store.search(asked, 9))


def test_another_centre(new_store, unit, brute):
    store, asked = fill(new_store(16, center=unit(1, seed=3)[0] * 0.2), unit), unit(4, seed=1)
    assert store.centred_by(store.center) is store
    if isinstance(store, MilvusStore):
        with pytest.raises(InputError, match="centred by another mean"):
            store.centred_by(None)
        return
    twin = store.centred_by(unit(60).mean(axis=0) + 0.2)
    assert twin.centred_by(twin.center) is twin
    changes = [
        lambda: None,
        lambda: store.add(["new"], unit(1, seed=5)),
        lambda: twin.add(["newer"], unit(1, seed=6)),
        lambda: store.remove([0, 60]),
        lambda: twin.remove([1, 61]),
        lambda: store.compact(),
    ]
    for change in changes:
        change()
        for one in (store, twin):
            assert_same(one.search(asked, 9), brute(one, asked, 9))
    assert list(store) == list(twin)
    for center in (None, unit(60).mean(axis=0) - 0.1):
        store.set_center(center)
        assert_same(store.search(asked, 9), brute(store, asked, 9))


def test_deduplicate_keeps_the_first(new_store, unit):
    texts = ["A dog.", "a  dog", "A DOG .", "a dog!", " a dog\n", "Straße", "STRASSE.", "a cat..", "a cat."]
    store = new_store(16)
    store.add(texts, unit(len(texts)))
    assert store.deduplicate() == 4
    assert [row.text for row in store] == ["A dog.", "a dog!", "Straße", "a cat..", "a cat."]
    assert store.deduplicate() == 0
    store.add(["a canine!"], store.raw_vectors([3]) + 0.001)
    assert store.deduplicate(0.99) == 1
    assert len(store) == 5


def test_near_duplicates_among_neighbours(new_store, unit, monkeypatch):
    monkeypatch.setattr("recap.datastore.ranking.EXACT_ROWS", 10)
    store = new_store(16, center=unit(1, seed=3)[0] * 0.2)
    store.add([f"{i}" for i in range(80)], np.concatenate([unit(40), unit(40) + 0.001]))
    assert store.deduplicate(0.999) == 40
    assert list(store.ids) == list(range(40))


def test_vectors_are_brought_to_unit_length_and_not_shared(new_store, unit):
    store = new_store(16)
    rows = unit(5) * 3
    store.add(list("abcde"), rows)
    rows[:] = 0
    np.testing.assert_allclose(store.raw_vectors(range(5)), unit(5), atol=rounding(store))


def test_bad_arguments_are_named(new_store, unit):
    store = fill(new_store(16), unit, 10)
    with pytest.raises(InputError, match="2 captions were given with 3 vectors"):
        store.add(["a", "b"], unit(3))
    with pytest.raises(InputError, match="1 image ids"):
        store.add(["a", "b"], unit(2), image_ids=["x"])
    with pytest.raises(InputError, match="blank: rows 1"):
        store.add(["a", " "], unit(2))
    with pytest.raises(InputError, match="k must"):
        store.search(unit(1), 0)
    for wrong in (["a"], "ab"):
        with pytest.raises(InputError, match="each of the 2 queries"):
            store.search(unit(2), 1, exclude_image_ids=wrong)
    with pytest.raises(InputError, match="centre"):
        store.set_center(np.zeros(3))
    with pytest.raises(InputError, match="caption vectors: row 1 holds NaN or infinite"):
        store.add(["a", "b"], np.array([[1.0] * 16, [np.nan] * 16]))
    assert len(store) == 10


def test_a_caption_on_the_centre_has_no_direction(new_store, unit):
    rows = unit(3)
    rows[1] = np.eye(16)[0]
    store = new_store(16, center=rows[1] * np.float32(1 - 3e-7))
    ids = store.add(["a", "b", "c"], rows)
    assert np.allclose(np.linalg.norm(store.vectors(ids), axis=1), [1, 0, 1], atol=1e-6)


def test_several_as_one(new_store, unit, tmp_path):
    stores = []
    for seed, count in ((1, 40), (2, 3), (3, 25)):
        store = new_store(16, fingerprint="toy", center=unit(1, seed=8)[0] * 0.3)
        texts = [f"{seed}/{i}" for i in range(count)]
        store.add(texts, unit(count, seed=seed), source=f"s{seed}", image_ids=["i"] * count)
        stores.append(store)
    stores[0].remove([0, 7])
    merged = Datastore(16, fingerprint="toy", center=stores[0].center)
    for store in stores:
        merged.merge(store)
    view, asked = DatastoreView(stores), unit(6, seed=9)
    for filters in ({}, {"sources": ["s1", "s3"]}, {"exclude_sources": "s1"}, {"exclude_image_ids": ["i"] * 6}):
        found, expected = view.search(asked, 30, **filters), merged.search(asked, 30, **filters)
        np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
        for row in range(6):
            ours = view.evidence(found.ids[row], found.similarities[row])
            theirs = merged.evidence(expected.ids[row], expected.similarities[row])
            assert [item.text for item in ours] == [item.text for item in theirs]
            present = found.ids[row] >= 0
            ids, same = found.ids[row][present], expected.ids[row][present]
            np.testing.assert_allclose(view.vectors(ids), merged.vectors(same), atol=1e-6)
            np.testing.assert_allclose(view.raw_vectors(ids), merged.raw_vectors(same), atol=1e-6)
    view.copy_to(tmp_path / "joined")
    joined = open_store(tmp_path / "joined")
    assert [row.text for row in joined] == [row.text for row in merged]
    np.testing.assert_allclose(joined.raw_vectors(joined.ids), view.raw_vectors(view.ids), atol=3e-7)
    assert len(view) == len(merged)
    assert view.sources() == merged.sources()
    assert isinstance(view, CaptionStore)
