from __future__ import annotations

import numpy as np
import pytest

from recap.datastore import CaptionStore, Datastore, DatastoreView
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
