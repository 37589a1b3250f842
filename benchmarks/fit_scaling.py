"""What a fit costs over the number of pairs, and how much memory a worker needs.

    python benchmarks/fit_scaling.py [--pairs 10000 100000 1000000 2000000] [--dimension 512] [--cpus 2] [--work FOLDER]

Generates pairs of vectors with a known map between them into Parquet shards, as ``recap embed`` writes them, and fits
so many of them, one after the other, on a local Ray: hashes to find repetitions, statistics in a tree, the map.
Prints time, processor time of the workers and their peak memory for each, and the line through the times.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recap.alignment import LinearAlignment
from recap.fitting.pairs import select_pairs, sum_statistics
from recap.fitting.vectors import ROWS, Row, ShardFacts, Space, VectorFolder, shard_facts, write_shard
from recap.parallel.runners import Runner, runner
from recap.types import Vectors

SHARD = 20 * ROWS


def main() -> None:
    """Generate, fit, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[250_000, 500_000, 1_000_000, 2_000_000])
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or Path(folder)
        generator = Generator(arguments.dimension)
        space = Space("generated", "1" * 64, "2" * 64, arguments.dimension, arguments.dimension)
        facts = generate(work / "all", max(arguments.pairs), space, generator)
        who = runner("local", cpus=arguments.cpus)
        warm = subset(work / "warm", work / "all", facts[:2], space, who)
        sum_statistics(warm, select_pairs(warm))  # what is loaded at first is not counted
        print(f"{'pairs':>10}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}{'error of the map':>20}", flush=True)
        rows = []
        for wanted in sorted(arguments.pairs):
            part = subset(work / f"first{wanted}", work / "all", facts[: -(-wanted // SHARD)], space, who)
            with Workers() as workers:
                started = time.perf_counter()
                fitted = sum_statistics(part, select_pairs(part))
                alignment = LinearAlignment.from_statistics(fitted, "ols")
                seconds = time.perf_counter() - started
            known = generator.map
            # noise makes the map shorter
            error = float(np.abs(alignment.W_ - known * (alignment.W_ * known).sum() / len(known)).max())
            rows.append((fitted.pairs, seconds, workers.seconds))
            line = f"{fitted.pairs:>10,.0f}{seconds:>10.1f}{workers.seconds:>10.1f}{workers.peak / 1e6:>10.0f}"
            print(f"{line}{error:>20.1e}", flush=True)
        for name, column in (("seconds", 1), ("processor seconds", 2)):
            print_law(name, [row[0] for row in rows], [row[column] for row in rows])


class Generator:
    """Makes pairs: a caption is its image with coordinates exchanged and turned round, and as much noise.

    Vectors are sums of two of a pool of normal ones, which costs a fraction of drawing them.
    """

    def __init__(self, dimension: int, pool: int = 16_384) -> None:
        draws = np.random.default_rng(1)
        self._pool = draws.standard_normal((pool, dimension), np.float32)
        self._order = draws.permutation(dimension)
        self._signs = draws.choice(np.array([-1, 1], np.float32), dimension)

    @property
    def map(self) -> Vectors:
        """The map from images to captions."""
        rows: Vectors = np.eye(len(self._order), dtype=np.float32)[self._order] * self._signs[:, None]
        return rows

    def blocks(self, start: int, count: int) -> Iterator[list[Row]]:
        """Yield rows with the numbers from ``start`` on."""
        draws = np.random.default_rng(start + 2)
        for first in range(start, start + count, ROWS):
            size = min(ROWS, start + count - first)
            images = self._vectors(draws, size)
            texts = unit(images[:, self._order] * self._signs + self._vectors(draws, size))
            yield [
                Row(str(n), (f"caption {n}",), "", hashlib.sha256(b"%d" % n).hexdigest(), "", image, text[None])
                for n, image, text in zip(range(first, first + size), images, texts, strict=True)
            ]

    def _vectors(self, draws: np.random.Generator, size: int) -> Vectors:
        one, other = draws.integers(0, len(self._pool), (2, size))
        return unit(self._pool[one] + self._pool[other])


def generate(folder: Path, pairs: int, space: Space, generator: Generator) -> list[ShardFacts]:
    """Write shards of pairs."""
    facts = []
    started = time.perf_counter()
    for number, start in enumerate(range(0, pairs, SHARD)):
        place = folder / f"{number:06d}-{'0' * 16}.parquet"
        if place.exists():  # of a run before, with --work
            facts.append(shard_facts(str(place)))
        else:
            facts.append(write_shard(str(place), generator.blocks(start, min(SHARD, pairs - start)), space))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{pairs:,} generated pairs, {size / 1e9:.1f} GB, in {time.perf_counter() - started:.0f} s", flush=True)
    return facts


def unit(rows: Vectors) -> Vectors:
    """Scale rows to unit length."""
    scaled: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def subset(folder: Path, whole: Path, facts: list[ShardFacts], space: Space, who: Runner) -> VectorFolder:
    """Return a folder with some of the shards, by links."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in facts:
        link = folder / shard.file
        if not link.exists():
            os.link(whole / shard.file, link)
    made = VectorFolder(str(folder), who)
    made.finish(space, facts)
    return made


class Workers:
    """Watches the workers of Ray below this process: their greatest peak of memory, and the processor time of all."""

    def __init__(self) -> None:
        self.peak = 0
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Workers:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    @property
    def seconds(self) -> float:
        """Processor time since the watch began."""
        return sum(last - self._first.get(pid, 0.0) for pid, last in self._last.items())

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._sample()

    def _sample(self) -> None:
        found = {int(entry.name): _process(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        for pid, process in found.items():
            if process is None or not process.name.startswith(b"ray::") or not self._is_below(pid, found):
                continue
            if not self._thread.is_alive() and not self._ended.is_set():
                self._first[pid] = process.seconds
            self._last[pid] = process.seconds
            self.peak = max(self.peak, process.peak)

    @staticmethod
    def _is_below(pid: int, found: dict[int, Process | None]) -> bool:
        """Tell whether a process was started by this one, or by one that was."""
        process = found.get(pid)
        while process is not None and process.parent != os.getpid():
            process = found.get(process.parent)
        return process is not None


class Process(NamedTuple):
    """What the system says about a process."""

    name: bytes
    parent: int
    seconds: float
    peak: int


def _process(entry: Path) -> Process | None:
    try:
        name, status = (entry / "cmdline").read_bytes(), (entry / "status").read_text()
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it has ended meanwhile
    peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return Process(name, int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), peak)


def print_law(name: str, pairs: list[float], values: list[float]) -> None:
    """Print the line through some values, and how much of their spread it explains."""
    slope, constant = np.polyfit(pairs, values, 1)
    left = np.var(np.array(values) - (slope * np.array(pairs) + constant)) / np.var(values)
    exponent = np.polyfit(np.log(pairs), np.log(values), 1)[0]
    law = f"{constant:.1f} + {slope * 1e6:.1f} a million pairs"
    print(f"{name}: {law} (R2 {1 - left:.4f}; power law with exponent {exponent:.2f})")


if __name__ == "__main__":
    main()
