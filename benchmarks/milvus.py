"""A Milvus server beside FAISS on disk: captions moved there and back, and queries of many clients at once.

    pip install 'recap-captioner[milvus-server]'
    python benchmarks/milvus.py --rows 1000000 --index HNSW --work FOLDER

A store on disk is filled with the generated captions of ``datastore.py``, a server of Milvus is started in FOLDER, and
the captions are moved there and back again by ``take_over``, as ``recap datastore move`` does. Both are then asked the
same queries: by one client, and by ``--clients`` threads at once, each with its own connection. Recall@10 is against
exact search over all vectors. The server ends with the script, and everything in FOLDER goes.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore import DiskStore, MutableStore
from recap.datastore.faiss import faiss
from recap.datastore.milvus import MilvusStore

sys.path.append(str(Path(__file__).parents[1] / "tests"))
SERVERS: Any = importlib.import_module("servers")
CAPTIONS: Any = importlib.import_module("datastore")
Rows = npt.NDArray[np.float32]
K = 10
CONNECTED = 300
"""Seconds in which all clients have to be there."""


def main() -> None:
    """Fill, move, ask, and move back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--index", default="HNSW", help="of the collection: FLAT, HNSW, IVF_FLAT, IVF_SQ8, AUTOINDEX")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--work", type=Path, help="a new folder, which is deleted at the end")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="milvus"))
    (work / "server").mkdir(parents=True)
    try:
        server = SERVERS.MilvusServer(work / "server")
        server.start()
        try:
            measure(server, work, arguments)
        finally:
            server.kill()
    finally:
        shutil.rmtree(work)


def measure(server: Any, work: Path, options: argparse.Namespace) -> None:
    """Print a line for each step."""
    faiss.omp_set_num_threads(1)
    generator = CAPTIONS.Generator(options.dimension)
    queries = generator.rows(options.queries, (2, 0), spread=0.8)
    print(f"{options.rows:,} captions, d = {options.dimension}, {options.index}, {options.clients} clients")
    disk = DiskStore.create(work / "disk", options.dimension, center=generator.center, dtype="float32")
    timed("fill a store on disk", lambda: fill(disk, generator, options.rows))
    asked_of("disk", lambda: disk, disk, queries, options.clients)

    url = server.address("captions", options.index)
    there = MilvusStore.create(url, options.dimension, center=disk.center, unfinished=True)
    timed("move to Milvus", lambda: take_over(there, disk))
    timed("Milvus builds its index", lambda: wait_for_index(there))
    print(f"memory of the server: {server.memory() / 1e6:,.0f} MB; its files: {size(work / 'server' / 'data'):,.0f} MB")
    asked_of("Milvus", lambda: MilvusStore(there.url), disk, queries, options.clients)

    back = DiskStore.create(work / "back", options.dimension, center=there.center, dtype="float32")
    timed("move back to disk", lambda: take_over(back, there))
    print(f"equal after the way there and back: {is_equal(disk, back)}", flush=True)


def fill(store: DiskStore, generator: Any, count: int) -> None:
    """Add generated captions in a stream."""
    for texts, rows, images in CAPTIONS.stream(generator, count):
        store.add(texts, rows, source="generated", image_ids=images)
    store.commit()


def take_over(store: MutableStore, other: MutableStore) -> None:
    """Fill a store with the captions of another, to last."""
    store.take_over(other)
    store.commit()


def timed(what: str, work: Callable[[], object]) -> None:
    """Do something and print how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    print(
        f"{what}: {time.perf_counter() - wall:,.1f} s, CPU of this process {time.process_time() - cpu:,.1f} s",
        flush=True,
    )


def wait_for_index(store: MilvusStore) -> None:
    """Wait until all captions are in the index, and searched there."""
    client, name = store._collection.client, store._collection.address.collections[0]
    while client.describe_index(name, "vector")["pending_index_rows"]:
        time.sleep(1)
    store._collection.call("load_collection")


def asked_of(name: str, connect: Callable[[], MutableStore], stored: MutableStore, queries: Rows, clients: int) -> None:
    """Print recall and latencies, of one client and of several at once."""
    one = connect()
    one.search(queries[:1], K)
    found = np.concatenate(
        [one.search(queries[start : start + 64], K).similarities for start in range(0, len(queries), 64)]
    )
    recall = float((found >= nearest(stored, queries) - 1e-6).mean())
    alone, rate = latencies(connect, queries[:200], 1)
    many, rates = latencies(connect, queries, clients)
    print(f"{name}: recall@{K} {recall:.4f}")
    print(
        f"  1 client: p50 {np.percentile(alone, 50):.1f} ms, p99 {np.percentile(alone, 99):.1f} ms, {rate:.0f} a second"
    )
    both = f"p50 {np.percentile(many, 50):.1f} ms, p99 {np.percentile(many, 99):.1f} ms, {rates:.0f} a second"
    print(f"  {clients} clients: {both}", flush=True)


def latencies(connect: Callable[[], MutableStore], queries: Rows, clients: int) -> tuple[list[float], float]:
    """Return the milliseconds of single queries, and how many were answered a second."""
    stores: dict[int, MutableStore] = {}
    # a client that cannot connect must not leave the others waiting
    ready, numbers = threading.Barrier(clients, timeout=CONNECTED), itertools.count()

    def prepare() -> None:
        stores[threading.get_ident()] = store = connect()
        store.search(queries[:1], K)
        ready.wait()
        if next(numbers) == 0:
            started.append(time.perf_counter())

    def ask(query: Rows) -> float:
        begun = time.perf_counter()
        stores[threading.get_ident()].search(query[None], K)
        return 1000 * (time.perf_counter() - begun)

    started: list[float] = []
    with ThreadPoolExecutor(clients, initializer=prepare) as pool:
        # a thread is made for each of the first calls, and all wait for the last of them
        times = list(pool.map(ask, queries))
    return times, len(times) / (time.perf_counter() - started[0])


def nearest(store: MutableStore, queries: Rows) -> Rows:
    """Return for each query the similarity of the last of the true nearest."""
    ids, best = store.ids, faiss.ResultHeap(len(queries), K, keep_max=True)
    for start in range(0, len(ids), 20_000):
        part = ids[start : start + 20_000]
        rows = np.ascontiguousarray(store.vectors(part))
        similarities, found = faiss.knn(queries, rows, min(K, len(part)), faiss.METRIC_INNER_PRODUCT)
        best.add_result(similarities, part[found])
    best.finalize()
    last: Rows = best.D[:, -1:]
    return last


def is_equal(one: MutableStore, other: MutableStore) -> bool:
    """Tell whether both have the same captions under the same ids, with the same vectors."""
    if not np.array_equal(one.ids, other.ids) or one.next_id != other.next_id:
        return False
    for start in range(0, len(one.ids), 20_000):
        part = one.ids[start : start + 20_000]
        if one.rows(part) != other.rows(part) or not np.allclose(
            one.raw_vectors(part), other.raw_vectors(part), atol=1e-6
        ):
            return False
    return True


def size(folder: Path) -> float:
    """Return the megabytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
