from __future__ import annotations

import numpy as np
import pytest

from recap.datastore import Datastore, ImageTable
from recap.errors import InputError


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
