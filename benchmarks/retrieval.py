"""Search of the datastore against FAISS's flat index with its default settings, over the same memory, in turns.

    python benchmarks/retrieval.py --rows 567000 --dimension 1024 --batch 64

Ours is ``Datastore.search``: the index, and the second scoring that makes answers exact and independent of the batch.
Theirs is ``faiss.IndexFlatIP.search``. The vectors are random; 567,000 x 1024 take 3.5 GB. Each time is the
best of several. Recall is against float64 products in numpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from recap.datastore import Datastore

BLOCK = 8192


def main() -> None:
    """Build, measure, print."""
    options = arguments()
    if options.threads:
        faiss.omp_set_num_threads(options.threads)
    store = build(options.rows, options.dimension, options.index)
    queries = random_rows(np.random.default_rng(1), options.batch, options.dimension)
    flat = their_index(store)
    print(f"{options.rows:,} x {options.dimension}, k = {options.k}, {faiss.omp_get_max_threads()} threads, ", end="")
    print(f"FAISS {faiss.__version__}, index {store.index.kind}")
    print(f"{'batch':>6} {'':>8} {'wall ms/query':>14} {'CPU ms/query':>14}")
    for batch in (options.batch, 1):
        asked = queries[:batch]
        searches = [partial(flat.search, asked, options.k), partial(store.search, asked, options.k)]
        theirs, ours = in_turns(searches, options.repeats)
        for name, (wall, cpu) in (("faiss", theirs), ("recap", ours)):
            print(f"{batch:>6} {name:>8} {1000 * wall / batch:>14.2f} {1000 * cpu / batch:>14.2f}")
        print(f"{batch:>6} {'ratio':>8} {theirs[0] / ours[0]:>14.2f} {theirs[1] / ours[1]:>14.2f}")
    true = brute_force(store, queries, options.k)
    print(f"recall@{options.k}: recap {recall(store.search(queries, options.k).ids, true):.4f}, ", end="")
    print(f"faiss {recall(flat.search(queries, options.k)[1], true):.4f}")


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("-k", type=int, default=13)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="threads of FAISS; 0: its default")
    parser.add_argument("--index", default="flat", help="the kind of index on our side")
    return parser.parse_args()


def random_rows(rng: np.random.Generator, count: int, dimension: int) -> npt.NDArray[np.float32]:
    """Return random unit rows."""
    rows = rng.standard_normal((count, dimension), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def build(rows: int, dimension: int, index: str) -> Datastore:
    """Return a store of random captions; float16 beside the index, so that float32 is held once."""
    store, rng = Datastore(dimension, index=index, dtype="float16"), np.random.default_rng(0)
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        store.add([f"caption {start + i}" for i in range(count)], random_rows(rng, count, dimension))
    store.search(random_rows(rng, 1, dimension), 1)
    return store


def their_index(store: Datastore) -> Any:
    """Return FAISS's own index: the one inside ours where that is flat, else one of the same vectors."""
    if store.index.kind == "flat":
        ours: Any = store._searcher._up_to_date()
        return ours._faiss
    flat = faiss.IndexFlatIP(store.dimension)
    for start in range(0, len(store), BLOCK):
        flat.add(store.vectors(store.ids[start : start + BLOCK]))
    return flat


def in_turns(searches: Sequence[Callable[[], object]], repeats: int) -> list[tuple[float, float]]:
    """Return the best wall and CPU seconds of each search."""
    times: list[list[tuple[float, float]]] = [[] for _ in searches]
    for _ in range(repeats):
        for search, seen in zip(searches, times, strict=True):
            time.sleep(0.05)  # idle threads of the one before wait actively for a while
            wall, cpu = time.perf_counter(), time.process_time()
            search()
            seen.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [(min(wall for wall, _ in seen), min(cpu for _, cpu in seen)) for seen in times]


def brute_force(store: Datastore, queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Return the ids of the nearest by the definition."""
    best = np.full((len(queries), k), -np.inf)
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    for start in range(0, len(store), BLOCK):
        block = store.ids[start : start + BLOCK]
        similarities = queries.astype(np.float64) @ store.vectors(block).astype(np.float64).T
        scores = np.concatenate([best, similarities], axis=1)
        numbers = np.concatenate([ids, np.broadcast_to(block, similarities.shape)], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best, ids = np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
    return ids


def recall(found: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float:
    """Return the share of the true neighbours that were found."""
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), true.tolist(), strict=True)]))


if __name__ == "__main__":
    main()
