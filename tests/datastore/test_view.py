from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recap.datastore import CaptionStore, Datastore, DatastoreView, ImageTable, view
from recap.errors import EncoderMismatchError, InputError


def make(unit, seed, count, **options):
    store = Datastore(16, fingerprint="toy", **options)
    store.add([f"{seed}/{i}" for i in range(count)], unit(count, seed=seed), source=f"s{seed}", image_ids=["i"] * count)
    return store


def test_a_view_finds_what_one_merged_store_finds(arguments, unit):
    stores = [make(unit, seed, count, index=arguments) for seed, count in ((1, 40), (2, 3), (3, 25))]
    stores[0].remove([0, 7])
    merged = Datastore(16, fingerprint="toy")
    for store in stores:
        merged.merge(store)
    view, asked = DatastoreView(stores), unit(6, seed=9)
    center = unit(1, seed=8)[0] * 0.3
    for mean in (None, center):
        view.set_center(mean)
        merged.set_center(mean)
        for filters in ({}, {"sources": ["s1", "s3"]}, {"exclude_sources": "s1"}, {"exclude_image_ids": ["i"] * 6}):
            found, expected = view.search(asked, 30, **filters), merged.search(asked, 30, **filters)
            np.testing.assert_array_equal(found.similarities, expected.similarities)
            for row in range(6):
                assert view.evidence(found.ids[row], found.similarities[row]) == merged.evidence(
                    expected.ids[row], expected.similarities[row]
                )
                present = found.ids[row] >= 0
                ids, same = found.ids[row][present], expected.ids[row][present]
                np.testing.assert_array_equal(view.vectors(ids), merged.vectors(same))
                np.testing.assert_array_equal(view.raw_vectors(ids), merged.raw_vectors(same))
    assert len(view) == len(merged)
    assert view.sources() == merged.sources()
    assert isinstance(view, CaptionStore)


def test_a_view_around_another_centre_is_at_the_same_address(unit):
    view = DatastoreView([make(unit, 1, 4), make(unit, 2, 4)], url="milvus:./captions.db?collection=a,b")
    assert view.centred_by(unit(1)[0] * 0.3).url == view.url


def test_ids_say_which_store(unit):
    stores = [make(unit, 1, 4), make(unit, 1, 4)]
    view = DatastoreView(stores)
    found = view.search(unit(1, seed=1), 2)
    assert [view.locate(id) for id in found.ids[0]] == [(stores[0], 0), (stores[1], 0)]
    with pytest.raises(InputError, match="no caption"):
        view.locate(1 << 60)


def test_stores_that_do_not_fit(unit):
    with pytest.raises(InputError, match="at least one"):
        DatastoreView([])
    with pytest.raises(EncoderMismatchError):
        DatastoreView([make(unit, 1, 4), Datastore(16, fingerprint="other")])
    view = DatastoreView([make(unit, 1, 4), make(unit, 2, 4, center=unit(1)[0])])
    with pytest.raises(InputError, match="centred alike"):
        view.search(unit(1), 2)


@pytest.fixture
def tables(unit):
    images = ImageTable(8, fingerprint="vision")
    images.add_images([f"p{i}" for i in range(10)], unit(10, 8))
    store = Datastore(16)
    store.add([f"{i}/{j}" for j in range(3) for i in range(9)], unit(27), image_ids=[f"p{i}" for i in range(9)] * 3)
    return images, store


def test_the_captions_of_the_nearest_images(tables, unit):
    images, store = tables
    asked = unit(4, 8, seed=1)
    found = images.search_captions(store, asked, 2)
    scores = asked @ unit(10, 8).T
    for row, ids, similarities in zip(scores, found.ids, found.similarities, strict=True):
        nearest = np.argsort(-row)[:2]
        texts = [item.text for item in store.evidence(ids, similarities)]
        assert texts == [f"{i}/{j}" for i in nearest if i < 9 for j in range(3)]
        np.testing.assert_allclose(
            similarities[: len(texts)], np.repeat(row[[i for i in nearest if i < 9]], 3), atol=1e-6
        )


def test_an_image_can_be_left_out(tables, unit):
    images, _ = tables
    found = images.search_images(unit(10, 8), 1, exclude_image_ids=[f"p{i}" for i in range(10)])
    scores = unit(10, 8) @ unit(10, 8).T - 9 * np.eye(10)
    assert [row[0][0] for row in found] == [f"p{i}" for i in scores.argmax(axis=1)]


def test_an_image_added_again_is_replaced(tables, unit):
    images, _ = tables
    images.add_images(["p3", "p99"], unit(2, 8, seed=4))
    assert len(images) == 11
    assert images.search_images(unit(1, 8, seed=4), 1)[0][0] == ("p3", pytest.approx(1, abs=1e-6))
    assert images.remove_images(["p3"]) == 1
    assert "p3" not in images
    assert "p99" in images
    with pytest.raises(InputError, match="twice"):
        images.add_images(["a", "a"], unit(2, 8))


def test_it_is_kept_on_disk(tables, unit, tmp_path):
    images, store = tables
    images.save(tmp_path)
    loaded = ImageTable.load(tmp_path)
    assert loaded.fingerprint == "vision"
    found, expected = (table.search_captions(store, unit(4, 8, seed=1), 3) for table in (loaded, images))
    np.testing.assert_array_equal(found.ids, expected.ids)


def test_nothing_to_find(unit):
    found = ImageTable(8).search_captions(Datastore(16), unit(2, 8), 3)
    assert found.ids.shape == (2, 0)


def test_another_database_is_a_line_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "walls_of_ada", SimpleNamespace(open_address=str.upper))
    monkeypatch.setitem(view.DATABASES, "walls:", "walls_of_ada")
    assert view.open_store("walls:here") == "WALLS:HERE"
    assert all(map(view.is_address, ("walls:", "milvus:x")))
    assert not any(map(view.is_address, ("disk", tmp_path, None)))
