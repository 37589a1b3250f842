"""One list of backends for all tests of this folder, and the brute force they are measured against."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import QUICK, MilvusServer

from recap.datastore import (
    ApproximateArguments,
    Datastore,
    DiskArguments,
    DiskStore,
    FlatArguments,
    HalfArguments,
    IndexArguments,
    MutableStore,
    SearchResult,
)

EXACT: dict[str, IndexArguments] = {
    "flat": FlatArguments(),
    "half": HalfArguments(),
    "approximate, still small": ApproximateArguments(),
    "approximate, all lists": ApproximateArguments(minimum_rows=30, lists=6, probes=6),
}
"""Kinds of index in memory whose answers must be those of brute force."""

ALL_LISTS = DiskArguments(minimum_rows=30, lists=6, probes=6)
ON_DISK: dict[str, dict[str, Any]] = {
    "disk, still small": {"dtype": "float32"},
    "disk, all lists": {"dtype": "float32", "index": ALL_LISTS},
    "disk, float16": {"index": ALL_LISTS},
}
MILVUS, SERVER = "milvus lite", "milvus server"
BACKENDS = [*EXACT, *ON_DISK, MILVUS, SERVER]
"""Every way to keep captions. Another one is one more name here and one more case in ``new_store``."""

NewStore = Callable[..., MutableStore]


@pytest.fixture(params=list(EXACT))
def arguments(request: pytest.FixtureRequest) -> IndexArguments:
    return EXACT[request.param]


@pytest.fixture(scope="session")
def milvus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of Milvus Lite for all tests: to start it takes seconds."""
    pytest.importorskip("pymilvus", reason="a datastore in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="Milvus Lite is not installed, or not made for this system")
    return tmp_path_factory.mktemp("milvus") / "captions.db"


numbers = itertools.count()


@pytest.fixture
def new_milvus(milvus_file: Path) -> NewStore:
    """Makes empty collections."""
    from recap.datastore.milvus import MilvusStore

    def make(dimension: int, **options: Any) -> MutableStore:
        return MilvusStore.create(f"milvus:{milvus_file}?collection=test{next(numbers)}", dimension, **options)

    return make


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """A server of Milvus, started once."""
    pytest.importorskip("pymilvus", reason="a datastore in Milvus needs the extra milvus")
    folder = tmp_path_factory.mktemp("milvus-server")
    try:
        server = MilvusServer(folder, QUICK)
        server.start()
    except (OSError, RuntimeError) as error:
        pytest.skip(str(error))
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def new_on_server(milvus_server: MilvusServer) -> Iterator[NewStore]:
    """Makes empty collections on a server, which are exact and go after the test."""
    from recap.datastore.milvus import MilvusStore

    made: list[MilvusStore] = []

    def make(dimension: int, **options: Any) -> MutableStore:
        url = milvus_server.address(f"test{next(numbers)}", "FLAT")
        made.append(MilvusStore.create(url, dimension, **options))
        return made[-1]

    yield make
    for store in made:
        store._collection.call("drop_collection")


@pytest.fixture(params=BACKENDS)
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Makes empty stores of one backend: ``new_store(dimension, encoder=, fingerprint=, center=)``."""
    if request.param in (MILVUS, SERVER):
        make: NewStore = request.getfixturevalue("new_milvus" if request.param == MILVUS else "new_on_server")
        return make

    def make_store(dimension: int, **options: Any) -> MutableStore:
        if request.param in EXACT:
            return Datastore(dimension, index=EXACT[request.param], **options)
        folder = tmp_path / f"store {next(numbers)}"
        return DiskStore.create(folder, dimension, **ON_DISK[request.param], **options)

    return make_store


@pytest.fixture
def unit() -> Callable[..., np.ndarray]:
    """Random unit rows; equal seeds give equal rows."""

    def rows(count: int, dimension: int = 16, seed: int = 0) -> np.ndarray:
        values = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    return rows


@pytest.fixture
def brute() -> Callable[..., SearchResult]:
    """The definition: all similarities in float64, rounded, best first, then by id."""

    def search(
        store: MutableStore, queries: np.ndarray, k: int, allowed: Callable[[int, object], bool] | None = None
    ) -> SearchResult:
        everything = list(store)
        raw = store.raw_vectors([row.id for row in everything])
        moved = raw if store.center is None else raw - store.center
        moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        ids = np.full((len(queries), k), -1)
        similarities = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for number, query in enumerate(queries):
            scores = (moved.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
            rows = [(-scores[i], row.id) for i, row in enumerate(everything) if allowed is None or allowed(number, row)]
            best = sorted(rows)[:k]
            ids[number, : len(best)] = [id for _, id in best]
            similarities[number, : len(best)] = [-score for score, _ in best]
        return SearchResult(ids, similarities)

    return search


@pytest.fixture
def kill_while():
    """Return a function that runs a script on a folder and kills it by SIGKILL at some moment after it is ready."""
    rng = np.random.default_rng()

    def run(script, folder, longest):
        process = subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    return run
