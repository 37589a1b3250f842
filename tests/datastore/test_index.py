from __future__ import annotations

import threading

import faiss
import numpy as np
import pytest

from recap.datastore import ApproximateArguments, Datastore, FlatArguments, HalfArguments
from recap.datastore import faiss as faiss_module
from recap.datastore import index as index_module
from recap.datastore.faiss import ExactIndex, _blas
from recap.datastore.index import KINDS, Scan, index_arguments
from recap.datastore.ranking import float32_rows
from recap.errors import InputError


def filled(arguments, rows, ids=None):
    index = arguments.build(rows.shape[1])
    index.prepare(len(rows), rows[: index.sample_size(len(rows))])
    index.add(np.arange(len(rows)) * 3 if ids is None else ids, rows)
    return index


def clustered(count, dimension, seed):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((60, dimension))
    rows = centres[rng.integers(60, size=count)] + 0.4 * rng.standard_normal((count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 3, 4, 40])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(("arguments", "tolerance"), [(FlatArguments(), 1e-6), (HalfArguments(), 1e-3)])
def test_exact_kinds_find_what_brute_force_finds(arguments, tolerance, batch, filtered, unit):
    rows, queries = unit(9000, 24), unit(batch, 24, seed=1)
    ids = np.arange(9000) * 3
    allowed = np.sort(np.random.default_rng(2).choice(ids, 4000, replace=False)) if filtered else None
    found, similarities = filled(arguments, rows).search(queries, 10, allowed)

    true = queries.astype(np.float64) @ rows.T
    if filtered:
        true[:, ~np.isin(ids, allowed)] = -9
    expected = -np.sort(-true, axis=1)[:, :10]
    np.testing.assert_allclose(similarities, expected, atol=tolerance)
    np.testing.assert_allclose(np.take_along_axis(true, found // 3, axis=1), expected, atol=tolerance)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("batch", [1, 12])
@pytest.mark.parametrize("half", [False, True])
def test_threads_do_not_change_what_is_found(half, batch, filtered, unit, monkeypatch):
    index = ExactIndex(16, half=half)
    index.add(np.arange(1000), unit(1000))
    allowed = np.array([1, 2, 3, 990]) if filtered else None
    alone = index.search(unit(batch, seed=1), 5, allowed)
    monkeypatch.setattr(faiss_module, "ROWS_PER_THREAD", 10)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    together = index.search(unit(batch, seed=1), 5, allowed)
    assert faiss.omp_get_max_threads() == 3
    faiss.omp_set_num_threads(threads)
    np.testing.assert_array_equal(together[0], alone[0])
    np.testing.assert_allclose(together[1], alone[1], atol=1e-6)


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("half", [False, True])
def test_similarities_stay_within_the_stated_error(half, batch):
    rng = np.random.default_rng(0)
    # very uneven rows: the small components are where float16 loses most
    rows = (rng.standard_normal((500, 200)) * 10.0 ** rng.uniform(-6, 0, (500, 200))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = ExactIndex(200, half=half)
    index.add(np.arange(500), rows)
    ids, similarities = index.search(rows[:batch], 500)
    true = np.take_along_axis(rows[:batch].astype(np.float64) @ rows.astype(np.float64).T, ids, axis=1)
    assert np.abs(similarities - true).max() <= index.error < 1e-3


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("length", [0.0, 0.3, 0.9])
def test_a_scan_finds_what_an_index_finds(length, dtype, unit, monkeypatch):
    center = length * unit(1, 24, seed=5)[0]
    rows = np.concatenate([unit(2900, 24), unit(100, 24, seed=6) * 0.05 + unit(1, 24, seed=5)])
    store = Datastore(24, center=center, dtype=dtype)
    numbers = range(3000)
    names, images = ["ab"[n % 2] for n in numbers], [f"image {n % 50}" for n in numbers]
    store.add([f"caption {n}" for n in numbers], rows, source=names, image_ids=images)
    store.remove(np.arange(0, 3000, 7))
    queries = unit(3, 24, seed=1)
    found = Scan(store._segments, store.center).search(queries, 3000)
    alive = np.setdiff1d(np.arange(3000), np.arange(0, 3000, 7))
    true = store.vectors(alive).astype(np.float64) @ queries.T
    assert all(set(ids) == {-1, *alive.tolist()} for ids in found[0])
    places = np.searchsorted(alive, found[0][:, : len(alive)])
    off = np.abs(np.take_along_axis(true.T, places, 1) - found[1][:, : len(alive)]).max()
    assert off <= Scan(store._segments, store.center).error < 1e-3

    asked = [{}, {"sources": ["a"]}, {"exclude_image_ids": ["image 3", None, "image 8"]}]
    scanned = [store.search(queries, 20, **options) for options in asked]
    monkeypatch.setattr(index_module, "SCANNED_QUERIES", 0)
    store.set_index("flat")
    for before, options in zip(scanned, asked, strict=True):
        after = store.search(queries, 20, **options)
        np.testing.assert_array_equal(before.ids, after.ids)
        np.testing.assert_array_equal(before.similarities, after.similarities)


def test_half_takes_half_the_memory(unit):
    rows = unit(100)
    assert 2 * filled(HalfArguments(), rows).nbytes == filled(FlatArguments(), rows).nbytes == rows.nbytes


def test_float16_is_decoded_to_the_bit():
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)].reshape(1, -1)
    np.testing.assert_array_equal(float32_rows(finite), finite.astype(np.float32))


def test_approximate_recall_on_clusters():
    rows, queries = clustered(20_000, 32, 0), clustered(100, 32, 1)
    index = filled(ApproximateArguments(minimum_rows=1000, probes=24), rows)
    found, similarities = index.search(queries, 10)
    true = queries @ rows.T
    nearest = np.argsort(-true, axis=1)[:, :10]
    recall = np.mean([len(set(a // 3) & set(b)) for a, b in zip(found, nearest, strict=True)]) / 10
    assert recall > 0.9
    assert index.nbytes == rows.nbytes // 2
    np.testing.assert_allclose(similarities, np.take_along_axis(true, found // 3, axis=1), atol=1e-3)


def test_approximate_gives_as_many_as_exist_however_thin_the_filter():
    rows = clustered(3000, 32, 0)
    index = filled(ApproximateArguments(minimum_rows=1000, probes=1), rows)
    allowed = np.array([30, 600, 6000])
    ids, _ = index.search(rows[:20], 5, allowed)
    assert all(set(row) == {30, 600, 6000, -1} for row in ids)


def test_approximate_forgets_and_learns_again():
    rows = clustered(2000, 32, 0)
    index = filled(ApproximateArguments(minimum_rows=1000, probes=50), rows)
    index.remove(np.array([0, 3, 6]))
    index.add(np.array([6000]), rows[:1])
    ids, _ = index.search(rows[:1], 1)
    assert ids.tolist() == [[6000]]
    assert len(index) == 1998
    assert not index.outgrown
    index.add(np.arange(6001, 13_001), clustered(7000, 32, 3))
    assert index.outgrown


def test_global_faiss_state_is_put_back_even_by_threads_that_overlap():
    before = faiss.cvar.distance_compute_blas_threshold
    inside, leave = threading.Event(), threading.Event()

    def long_search():
        with _blas():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=long_search)
    thread.start()
    inside.wait()
    with _blas():
        assert faiss.cvar.distance_compute_blas_threshold == 1
    assert faiss.cvar.distance_compute_blas_threshold == 1
    leave.set()
    thread.join()
    assert faiss.cvar.distance_compute_blas_threshold == before


def test_arguments_survive_json():
    for kind in KINDS:
        values = index_arguments(kind).as_dict()
        assert index_arguments(values.pop("kind"), values) == KINDS[kind]()


def test_unknown_kinds_and_arguments_are_named():
    with pytest.raises(InputError, match=r"'annoy'.*flat, half, approximate"):
        index_arguments("annoy")
    with pytest.raises(InputError, match="probs"):
        index_arguments("approximate", {"probs": 3})
    with pytest.raises(InputError, match="probes"):
        ApproximateArguments(probes=0)
