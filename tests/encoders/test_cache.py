from __future__ import annotations

import hashlib
import multiprocessing
import sqlite3
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from recap.encoders.cache import VectorCache
from recap.errors import InputError

ENCODER = hashlib.sha256(b"encoder").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


def key(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def vector(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(8).astype(np.float32)


def test_round_trip_over_many_keys(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "deep" / "vectors.db") as cache:
        cache.put(ENCODER, {key(i): vector(i) for i in range(1200)})
    with VectorCache(tmp_path / "deep" / "vectors.db") as cache:
        found = cache.get(ENCODER, [key(i) for i in range(0, 2400, 2)], 8)
        assert set(found) == {key(i) for i in range(0, 1200, 2)}
        assert all(np.array_equal(found[key(i)], vector(i)) for i in range(0, 1200, 2))
        assert cache.count() == 1200


def test_encoders_do_not_mix(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        cache.put(ENCODER, {key(1): vector(1)})
        cache.put(OTHER, {key(1): vector(2)})
        assert np.array_equal(cache.get(ENCODER, [key(1)], 8)[key(1)], vector(1))
        assert np.array_equal(cache.get(OTHER, [key(1)], 8)[key(1)], vector(2))
        assert cache.get(hashlib.sha256(b"third").hexdigest(), [key(1)], 8) == {}
        assert cache.get(ENCODER, [key(1)], 16) == {}
        assert cache.get(ENCODER, [], 8) == {}


def test_a_changed_entry_counts_as_absent(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        cache.put(ENCODER, {key(1): vector(1), key(2): vector(2)})
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE content = ?", (vector(3).tobytes(), key(1)))
    connection.close()
    with VectorCache(tmp_path / "v.db") as cache:
        assert set(cache.get(ENCODER, [key(1), key(2)], 8)) == {key(2)}
        cache.put(ENCODER, {key(1): vector(1)})
        assert np.array_equal(cache.get(ENCODER, [key(1)], 8)[key(1)], vector(1))


def test_a_file_that_is_no_cache_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.warns(UserWarning, match="damaged"):
        cache = VectorCache(path)
    cache.put(ENCODER, {key(1): vector(1)})
    assert set(cache.get(ENCODER, [key(1)], 8)) == {key(1)}
    cache.close()
    assert (tmp_path / "v.db.damaged").read_bytes().startswith(b"something else")


def test_pages_destroyed_behind_its_back(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with VectorCache(path) as cache:
        cache.put(ENCODER, {key(i): vector(i) for i in range(2000)})
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = VectorCache(path)
        found = cache.get(ENCODER, [key(i) for i in range(2000)], 8)
    assert "damaged" in str(caught[0].message)
    assert all(np.array_equal(found[key(i)], vector(i)) for i in range(2000) if key(i) in found)
    cache.put(ENCODER, {key(1): vector(1)})
    assert np.array_equal(cache.get(ENCODER, [key(1)], 8)[key(1)], vector(1))
    cache.close()


def test_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InputError, match="another version"):
        VectorCache(tmp_path / "v.db")
    assert (tmp_path / "v.db").exists()


def test_a_place_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be opened"):
        VectorCache(tmp_path / "file" / "v.db")
    with pytest.raises(InputError, match="cannot be opened"):
        VectorCache(tmp_path)


def test_a_full_disk_does_not_stop_the_work(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        cache._connection.execute("PRAGMA max_page_count = 6")
        with pytest.warns(UserWarning, match="nothing more is written"):
            cache.put(ENCODER, {key(i): vector(i) for i in range(5000)})
        cache.put(ENCODER, {key(1): vector(1)})
        assert cache.get(ENCODER, [key(1)], 8) == {}


def _write(path: Path, first: int) -> None:
    with VectorCache(path) as cache:
        for i in range(first, first + 60):
            cache.put(ENCODER, {key(i): vector(i)})


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_several_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(tmp_path / "v.db", 50 * i)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with VectorCache(tmp_path / "v.db") as cache:
        found = cache.get(ENCODER, [key(i) for i in range(200)], 8)
        assert set(found) == {key(i) for i in range(160)}
        assert all(np.array_equal(found[key(i)], vector(i)) for i in range(160))


def _read_inherited(cache: VectorCache) -> None:
    assert set(cache.get(ENCODER, [key(1)], 8)) == {key(1)}
    cache.put(ENCODER, {key(2): vector(2)})


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_cache_may_be_inherited_by_fork(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        cache.put(ENCODER, {key(1): vector(1)})
        child = multiprocessing.get_context("fork").Process(target=_read_inherited, args=(cache,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert set(cache.get(ENCODER, [key(1), key(2)], 8)) == {key(1), key(2)}


def test_a_closed_cache_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    with VectorCache(path) as cache:
        cache.put("ab", {b"key": np.ones(2, np.float32)})
    with pytest.raises(InputError, match="closed"):
        cache.get("ab", [b"key"], 2)
    assert VectorCache(path).count() == 1
