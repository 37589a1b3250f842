from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.datastore import ApproximateArguments, CaptionStore, Datastore, SearchResult
from recap.datastore import searcher as searcher_module
from recap.errors import EncoderMismatchError, InputError
from recap.types import Evidence


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


def test_filters_give_the_best_of_those_allowed(arguments, unit, brute):
    store = make(unit, index=arguments)
    asked = unit(8, seed=1)
    cases = [
        ({"sources": "coco"}, lambda q, row: row.source == "coco"),
        ({"sources": ["coco", "mine", "no such source"]}, lambda q, row: row.source in ("coco", "mine")),
        ({"exclude_sources": {"coco"}}, lambda q, row: row.source != "coco"),
        ({"synthetic": True}, lambda q, row: row.synthetic),
        ({"synthetic": False, "sources": "mine"}, lambda q, row: not row.synthetic and row.source == "mine"),
        ({"sources": []}, lambda q, row: False),
    ]
    for filters, allowed in cases:
        assert_same(store.search(asked, 15, **filters), brute(store, asked, 15, allowed))


@pytest.mark.parametrize("few", [0, 512])
def test_images_are_left_out_query_by_query(arguments, few, unit, brute, monkeypatch):
    monkeypatch.setattr(searcher_module, "FEW_EXCLUDED", few)
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


def test_equal_captions_come_in_the_order_of_their_ids(arguments, unit):
    store = Datastore(16, index=arguments)
    rows = unit(4)
    store.add([f"{i}" for i in range(400)], np.tile(rows, (100, 1)))
    for batch in (1, 20):
        found = store.search(np.tile(rows[:1], (batch, 1)), 30)
        assert (found.ids == np.arange(0, 120, 4)).all()
        assert len(np.unique(found.similarities)) == 1


def test_a_query_is_answered_alike_alone_and_in_a_batch(arguments, unit):
    store = make(unit, 300, 64, index=arguments)
    asked = unit(50, 64, seed=1)
    together = store.search(asked, 20)
    for number in range(0, 50, 7):
        alone = store.search(asked[number : number + 1], 20)
        np.testing.assert_array_equal(alone.ids[0], together.ids[number])
        np.testing.assert_array_equal(alone.similarities[0], together.similarities[number])


def test_empty_stores_and_no_queries(arguments, unit):
    store = Datastore(16, index=arguments)
    found = store.search(unit(3), 4)
    assert (found.ids == -1).all()
    assert np.isneginf(found.similarities).all()
    assert store.evidence(found.ids[0], found.similarities[0]) == ()
    store.add([], np.empty((0, 16)))
    assert len(store) == 0
    assert store.search(np.empty((0, 16)), 4).ids.shape == (0, 4)
    assert isinstance(store, CaptionStore)


def test_more_than_there_is(arguments, unit):
    store = make(unit, 3, index=arguments)
    found = store.search(unit(5, seed=1), 10)
    assert ((found.ids >= 0).sum(axis=1) == 3).all()
    assert (found.ids[:, 3:] == -1).all()


def test_evidence_vectors_and_rows(unit):
    mean = unit(60).mean(axis=0)
    store = make(unit, center=mean)
    found = store.search(unit(1, seed=1), 2)
    first = store.rows(found.ids[0])[0]
    assert store.evidence(found.ids[0], found.similarities[0])[0] == Evidence(
        first.text, float(found.similarities[0, 0]), first.source, first.synthetic, first.image_id
    )
    moved = unit(60)[[3, 1]] - mean
    np.testing.assert_allclose(store.raw_vectors([3, 1]), unit(60)[[3, 1]], atol=1e-7)
    np.testing.assert_allclose(store.vectors([3, 1]), moved / np.linalg.norm(moved, axis=1, keepdims=True), atol=1e-6)
    assert store.sources() == {"coco": 20, "flickr": 20, "mine": 20}
    assert [list(ids) for ids in store.ids_of_images(["image 2", "none", "image 0"])] == [
        [10, 11, 12, 13, 14],
        [],
        [0, 1, 2, 3, 4],
    ]


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


def test_a_twin_around_another_centre_shares_the_captions(arguments, unit, brute):
    store = make(unit, index=arguments)
    twin, asked = store.centred_by(unit(60).mean(axis=0) + 0.2), unit(4, seed=1)
    assert store.centred_by(None) is store
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


def test_a_caption_on_the_centre_is_similar_to_nothing(unit):
    store = Datastore(16, center=unit(1)[0])
    store.add(["here", "there"], unit(2))
    found = store.search(unit(1, seed=5), 2)
    assert 0.0 in found.similarities
    assert np.isfinite(found.similarities).all()


def test_remove_where(unit):
    store = make(unit)
    assert store.remove_where(source="coco", synthetic=True) == 5
    assert store.remove_where(image_ids=["image 0", "image 1", "nothing"]) == 9
    assert not any(row.image_id in ("image 0", "image 1") for row in store)
    assert len(store) == 60 - 14
    with pytest.raises(InputError, match="at least one"):
        store.remove_where()


def test_ids_are_never_used_again(unit):
    store = make(unit, 10)
    store.remove([8, 9, 9])
    assert list(store.add(["new"], unit(1))) == [10]
    with pytest.raises(InputError, match="no caption has the id 9"):
        store.remove([1, 9])
    assert len(store) == 9


def test_merge(arguments, unit, brute):
    one, other = make(unit, 20, index=arguments), Datastore(16, dtype="float16")
    other.add(["x", "y", "z"], unit(3, seed=7), source="other", synthetic=True, image_ids=["a", "b", "c"])
    other.remove([1])
    one.search(unit(1), 1)
    assert list(one.merge(other)) == [20, 21]
    row = one.rows([21])[0]
    assert (row.text, row.source, row.synthetic, row.image_id) == ("z", "other", True, "c")
    assert_same(one.search(unit(5, seed=1), 22), brute(one, unit(5, seed=1), 22))
    assert list(one.merge(one)) == list(range(22, 44))


@pytest.mark.parametrize("other", [Datastore(16, fingerprint="b"), Datastore(8, fingerprint="a")])
def test_merging_another_encoder_is_an_error(other):
    with pytest.raises(EncoderMismatchError, match="fingerprint a"):
        Datastore(16, fingerprint="a").merge(other)


def test_deduplicate_keeps_the_first(unit):
    texts = ["A dog.", "a  dog", "A DOG .", "a dog!", " a dog\n", "Straße", "STRASSE.", "a cat..", "a cat."]
    store = Datastore(16)
    store.add(texts, unit(len(texts)))
    assert store.deduplicate() == 4
    assert [row.text for row in store] == ["A dog.", "a dog!", "Straße", "a cat..", "a cat."]
    assert store.deduplicate() == 0


def test_vectors_are_brought_to_unit_length_and_not_shared(unit):
    store = Datastore(16)
    rows = unit(5) * 3
    store.add(list("abcde"), rows)
    rows[:] = 0
    np.testing.assert_allclose(store.raw_vectors(range(5)), unit(5), atol=1e-6)


def bad(rows, where, value):
    rows[where] = value
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: bad(rows, (1, 2), np.nan), r"NaN or infinite.*1 of 6 rows \(1\)"),
        (lambda rows: bad(rows, ([0, 5], 2), np.inf), r"NaN or infinite.*2 of 6 rows \(0, 5\)"),
        (lambda rows: bad(rows, 3, 0), r"zero.*1 of 6 rows \(3\)"),
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
