"""What a store of N captions costs: build in a stream, memory, disk, one query, and recall beside exact search.

    python benchmarks/datastore.py --rows 10000 100000 1000000 --stores disk half flat --out /tmp/stores
    python benchmarks/datastore.py --rows 100000 --stores milvus:/tmp/stores/captions.db

The vectors are generated, seeded, and clustered as captions are: 64 hidden numbers, those of one of 5,000 topics (which
are chosen by Zipf's law) plus noise, mapped to ``--dimension`` by a fixed random matrix, plus a little noise in all
directions. Queries are drawn in the same way with more noise, and are not in the store. Building and asking
happen in processes of their own, so that the memory of each is known. Recall is against exact search over the vectors
as the store keeps them; of captions that are equally near any counts. ``exact`` is the time of FAISS's float16 scan
over the same vectors in memory, with the same number of threads. With three sizes or more the power law through them is
printed for each kind of store.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.datastore import Datastore, DiskStore, MutableStore, open_store
from recap.datastore.faiss import ExactIndex, faiss

BLOCK = 20_000
HIDDEN, TOPICS = 64, 5_000
CAPTIONS_AN_IMAGE = 5
K = 13
EXACT_QUERIES = 9
LAWS = ("cpu", "peak_mb", "disk_mb", "cpu_ms")
"""What grows with the number of captions: CPU seconds, memory and disk of building, CPU milliseconds of a query."""

Rows = npt.NDArray[np.float32]


class Generator:
    """Vectors that come in topics; the same for the same seed and dimension."""

    def __init__(self, dimension: int) -> None:
        rng = np.random.default_rng(0)
        self.dimension = dimension
        self._topics = rng.standard_normal((TOPICS, HIDDEN), dtype=np.float32)
        self._map = rng.standard_normal((HIDDEN, dimension), dtype=np.float32) / np.float32(HIDDEN**0.5)
        weights = 1 / np.arange(1, TOPICS + 1)
        self._edges = np.cumsum(weights / weights.sum())
        self.center = 0.1 * rng.standard_normal(dimension) / dimension**0.5

    def rows(self, count: int, seed: tuple[int, int], spread: float = 0.5) -> Rows:
        """Return unit rows."""
        rng = np.random.default_rng(seed)
        topics = self._topics[np.searchsorted(self._edges, rng.random(count) * self._edges[-1])]
        hidden = topics + np.float32(spread) * rng.standard_normal((count, HIDDEN), dtype=np.float32)
        rows = hidden @ self._map + np.float32(0.1) * rng.standard_normal((count, self.dimension), dtype=np.float32)
        unit: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit


def main() -> None:
    """Run the steps, each in a process of its own, and print a line a store."""
    options = arguments()
    if options.step:
        print(json.dumps({"build": build, "ask": ask}[options.step](options)))
        return
    print(f"{'captions':>12} {'store':>12} {'build s':>9} {'CPU s':>8} {'peak MB':>8} {'disk MB':>8} ", end="")
    print(f"{'ask p50 ms':>11} {'CPU ms':>8} {'ask MB':>7} {'recall@13':>9} {'exact p50 ms':>12} {'CPU ms':>8}")
    costs: dict[str, list[dict[str, float]]] = {store: [] for store in options.stores}
    for rows in sorted(options.rows):
        for store in options.stores:
            built, asked = step("build", rows, store, options), step("ask", rows, store, options)
            print(f"{rows:>12,} {store.split(':')[0]:>12} {built['wall']:>9.1f} {built['cpu']:>8.1f} ", end="")
            print(f"{built['peak_mb']:>8.0f} {built['disk_mb']:>8.0f} {asked['wall_ms']:>11.2f} ", end="")
            print(f"{asked['cpu_ms']:>8.2f} {asked['peak_mb']:>7.0f} {asked['recall']:>9.4f} ", end="")
            print(f"{asked['exact_wall_ms']:>12.2f} {asked['exact_cpu_ms']:>8.2f}", flush=True)
            costs[store].append({"captions": rows, **{name: built[name] for name in LAWS[:3]}, LAWS[3]: asked[LAWS[3]]})
    for store, measured in costs.items():
        if len(measured) > 2:
            print_laws(store, measured)


def print_laws(store: str, measured: list[dict[str, float]]) -> None:
    """Print the power of the number of captions with which each cost grows."""
    captions = np.log([cost["captions"] for cost in measured])
    for name in LAWS:
        exponent, constant = np.polyfit(captions, np.log([cost[name] for cost in measured]), 1)
        at_million = float(np.exp(constant + exponent * np.log(1e6)))
        print(f"{store.split(':')[0]}, {name}: {at_million:.3g} at a million captions, exponent {exponent:.2f}")


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument(
        "--stores", nargs="+", default=["disk", "half"], help="disk, flat, half, approximate or milvus:…"
    )
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("stores"))
    parser.add_argument("--step", choices=["build", "ask"], help=argparse.SUPPRESS)
    return parser.parse_args()


def step(name: str, rows: int, store: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one step in a process of its own, and return what it found."""
    numbers = ["--dimension", options.dimension, "--queries", options.queries, "--threads", options.threads]
    command = [
        sys.executable,
        __file__,
        "--step",
        name,
        "--rows",
        rows,
        "--stores",
        store,
        *numbers,
        "--out",
        options.out,
    ]
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE)
    print(f"{name} {rows:,} {store}: {done.stdout.decode().strip()}", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def place(options: argparse.Namespace) -> str:
    """Return where the store is to be, as ``open_store`` takes it."""
    kind = options.stores[0]
    if kind.startswith("milvus:"):
        return f"{kind}?collection=captions_{options.rows[0]}"
    return str(options.out / f"{kind}-{options.rows[0]}-{options.dimension}")


def empty(options: argparse.Namespace, generator: Generator) -> MutableStore:
    """Return a new store, in the place of one of an earlier run."""
    kind, center = options.stores[0], generator.center
    if kind.startswith("milvus:"):
        from recap.datastore.milvus import MilvusStore

        return MilvusStore.create(place(options), options.dimension, center=center, replace=True)
    shutil.rmtree(place(options), ignore_errors=True)
    if kind == "disk":
        return DiskStore.create(place(options), options.dimension, center=center)
    return Datastore(options.dimension, center=center, index=kind, dtype="float16")


def build(options: argparse.Namespace) -> dict[str, float]:
    """Fill a store in a stream."""
    faiss.omp_set_num_threads(options.threads)
    generator = Generator(options.dimension)
    wall, cpu = time.perf_counter(), time.process_time()
    store = empty(options, generator)
    for texts, rows, images in stream(generator, options.rows[0]):
        store.add(texts, rows, source="generated", image_ids=images)
    if isinstance(store, Datastore):
        store.save(place(options))
    else:
        store.commit()
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disk_mb": on_disk(options) / 1e6,
    }


def stream(generator: Generator, count: int) -> Iterator[tuple[list[str], Rows, list[str]]]:
    """Yield captions, vectors and images in blocks."""
    for start in range(0, count, BLOCK):
        numbers = range(start, min(start + BLOCK, count))
        texts = [f"a generated caption with the number {number} and some words more" for number in numbers]
        images = [f"{number // CAPTIONS_AN_IMAGE}.jpg" for number in numbers]
        yield texts, generator.rows(len(numbers), (1, start)), images


def on_disk(options: argparse.Namespace) -> int:
    """Return the bytes of the files of a store."""
    kind = options.stores[0]
    folder = Path(kind.removeprefix("milvus:")) if kind.startswith("milvus:") else Path(place(options))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def ask(options: argparse.Namespace) -> dict[str, float]:
    """Search for queries one by one, then exactly."""
    faiss.omp_set_num_threads(options.threads)
    queries = Generator(options.dimension).rows(options.queries, (2, 0), spread=0.8)
    store = open_store(place(options))
    assert isinstance(store, MutableStore)
    store.search(queries[:1], K)
    wall, cpu = median_ms(lambda query: store.search(query, K), queries)
    found = store.search(queries, K).similarities
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    true, index = exact(store, queries)
    exact_wall, exact_cpu = median_ms(lambda query: index.search(query, K), queries[:EXACT_QUERIES])
    return {
        "wall_ms": wall,
        "cpu_ms": cpu,
        "peak_mb": peak,
        "recall": float((found >= true[:, -1:] - 1e-6).mean()),
        "exact_wall_ms": exact_wall,
        "exact_cpu_ms": exact_cpu,
    }


def median_ms(search: Callable[[Rows], object], queries: Rows) -> tuple[float, float]:
    """Return the median wall and CPU milliseconds of single queries."""
    times = []
    for query in queries:
        wall, cpu = time.perf_counter(), time.process_time()
        search(query[None])
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = np.median(times, axis=0)
    return 1000 * float(walls), 1000 * float(cpus)


def exact(store: MutableStore, queries: Rows) -> tuple[Rows, ExactIndex]:
    """Return the similarities of the true nearest, and an index of all vectors in memory."""
    index, ids = ExactIndex(store.dimension, half=True), store.ids
    index.prepare(len(ids), queries)
    best = faiss.ResultHeap(len(queries), K, keep_max=True)
    for start in range(0, len(ids), BLOCK):
        part = ids[start : start + BLOCK]
        rows = np.ascontiguousarray(store.vectors(part))
        similarities, found = faiss.knn(queries, rows, min(K, len(part)), faiss.METRIC_INNER_PRODUCT)
        best.add_result(similarities, part[found])
        index.add(part, rows)
    best.finalize()
    return best.D, index


if __name__ == "__main__":
    main()
