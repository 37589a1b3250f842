from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.datastore import ApproximateArguments, Datastore, SearchResult, ranking
from recap.errors import EncoderMismatchError, InputError


def make(unit, count=60, dimension=16, **options):
    store = Datastore(dimension, **options)
    store.add(
        [f"caption {i}" for i in range(count)],
        unit(count, dimension),
        source=[("coco", "flickr", "mine")[i % 3] for i in range(count)],
        synthetic=[i % 4 == 0 for i in range(count)],
        image_ids=[f"image {i // 5}" for i in range(count)],
    )
    return store


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
    assert found.ids.dtype == np.int64
    assert found.similarities.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("queries", [1, 9])
def test_search_is_brute_force(arguments, dtype, centre, queries, unit, brute):
    mean = unit(60).mean(axis=0) + 0.1 if centre else None
    store = make(unit, index=arguments, dtype=dtype, center=mean)
    asked = unit(queries, seed=1)
    for k in (1, 7, 60):
        assert_same(store.search(asked, k), brute(store, asked, k))


@pytest.mark.parametrize("spare", [0, 8])
def test_images_are_left_out_query_by_query(arguments, spare, unit, brute, monkeypatch):
    monkeypatch.setattr(ranking, "SPARE", spare)
    store = make(unit, index=arguments)
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


def test_the_centre_can_change(unit, brute):
    store = make(unit)
    asked = unit(4, seed=1)
    store.search(asked, 5)
    store.set_center(unit(60).mean(axis=0) + 0.2)
    assert_same(store.search(asked, 5), brute(store, asked, 5))
    store.set_index("half")
    assert_same(store.search(asked, 5), brute(store, asked, 5))
    store.set_center(None)
    assert_same(store.search(asked, 5), brute(store, asked, 5))


def test_a_caption_on_the_centre_is_similar_to_nothing(unit):
    store = Datastore(16, center=unit(1)[0])
    store.add(["here", "there"], unit(2))
    found = store.search(unit(1, seed=5), 2)
    assert 0.0 in found.similarities
    assert np.isfinite(found.similarities).all()


@pytest.mark.parametrize("other", [Datastore(16, fingerprint="b"), Datastore(8, fingerprint="a")])
def test_merging_another_encoder_is_an_error(other):
    with pytest.raises(EncoderMismatchError, match="fingerprint a"):
        Datastore(16, fingerprint="a").merge(other)


def bad(rows, where, value):
    rows[where] = value
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: bad(rows, (1, 2), np.nan), "(caption vectors|queries): row 1 holds NaN or infinite"),
        (lambda rows: bad(rows, ([0, 5], 2), np.inf), "row 0, 5 holds NaN or infinite"),
        (lambda rows: bad(rows, 3, 0), "row 3 holds only zeros"),
        (lambda rows: rows[:, :8], r"shape \(n, 16\), not \(6, 8\)"),
        (lambda rows: rows[0], r"shape \(n, 16\), not \(16,\)"),
    ],
)
def test_bad_vectors_are_named(change, message, unit):
    store = make(unit)
    with pytest.raises(InputError, match=message):
        store.add(list("abcdef"), change(unit(6)))
    with pytest.raises(InputError, match=message):
        store.search(change(unit(6)), 3)
    assert len(store) == 60


def test_bad_arguments_are_named(unit):
    store = make(unit)
    with pytest.raises(InputError, match="2 captions were given with 3 vectors"):
        store.add(["a", "b"], unit(3))
    with pytest.raises(InputError, match="1 image ids"):
        store.add(["a", "b"], unit(2), image_ids=["x"])
    with pytest.raises(InputError, match="blank: rows 1"):
        store.add(["a", " "], unit(2))
    with pytest.raises(InputError, match="k must"):
        store.search(unit(1), 0)
    with pytest.raises(InputError, match="each of the 2 queries"):
        store.search(unit(2), 1, exclude_image_ids=["a"])
    with pytest.raises(InputError, match="each of the 2 queries"):
        store.search(unit(2), 1, exclude_image_ids="ab")
    with pytest.raises(InputError, match="centre"):
        store.set_center(np.zeros(3))
    with pytest.raises(InputError, match="float64"):
        Datastore(16, dtype="float64")


MODEL_KINDS = ["flat", "half", ApproximateArguments(minimum_rows=10, lists=3, probes=3)]


class Model:
    """The same store as a dictionary and a sort."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[np.ndarray, str]] = {}
        self.center: np.ndarray | None = None

    def add(self, ids, vectors, source):
        self.rows |= {int(id): (vector, source) for id, vector in zip(ids, vectors, strict=True)}

    def remove(self, ids):
        for id in ids:
            del self.rows[id]

    def check(self, found, queries, k, source):
        for query, ids, similarities in zip(queries, found.ids, found.similarities, strict=True):
            scores = {id: self.score(query, vector) for id, (vector, s) in self.rows.items() if source in (None, s)}
            present = ids[ids >= 0]
            assert len(present) == len(set(present)) == min(k, len(scores))
            best = sorted(scores.values(), reverse=True)[:k]
            np.testing.assert_allclose([scores[id] for id in present], best, atol=1e-6)
            np.testing.assert_allclose(similarities[: len(present)], best, atol=1e-6)
            assert (
                sorted(zip(-similarities, ids, strict=True))[: len(present)]
                == list(zip(-similarities, ids, strict=True))[: len(present)]
            )

    def score(self, query, vector):
        vector = vector.astype(np.float64) / np.linalg.norm(vector)
        moved = vector if self.center is None else vector - self.center
        return float(moved @ query / np.linalg.norm(moved) / np.linalg.norm(query))


POOL = np.random.default_rng(5).standard_normal((12, 6)).astype(np.float32)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 11), max_size=12), st.sampled_from("ab")),
        st.tuples(st.just("remove"), st.sets(st.integers(0, 60), max_size=8)),
        st.tuples(st.just("remove source"), st.sampled_from("ab")),
        st.tuples(st.just("center"), st.integers(0, 3)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("search"), st.integers(1, 15), st.sampled_from([None, "a"]), st.integers(1, 5)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, data=st.data())
def test_any_sequence_of_changes_agrees_with_a_plain_list(steps, data):
    store, model = Datastore(6, index=data.draw(st.sampled_from(MODEL_KINDS))), Model()
    for step, *values in steps:
        if step == "add":
            ids = store.add([f"text {n}" for n in values[0]], POOL[values[0]].reshape(-1, 6), source=values[1])
            model.add(ids, POOL[values[0]], values[1])
        elif step == "remove":
            gone = values[0] & set(model.rows)
            assert store.remove(sorted(gone)) == len(gone)
            model.remove(gone)
        elif step == "remove source":
            gone = {id for id, (_, source) in model.rows.items() if source == values[0]}
            assert store.remove_where(source=values[0]) == len(gone)
            model.remove(gone)
        elif step == "center":
            model.center = POOL[values[0]] * 0.1 if values[0] else None
            store.set_center(model.center)
        elif step == "compact":
            store.compact()
        else:
            found = store.search(POOL[: values[2]] + 0.3, values[0], sources=values[1])
            model.check(found, POOL[: values[2]] + 0.3, values[0], values[1])
    assert list(store.ids) == sorted(model.rows)
