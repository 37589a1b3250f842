"""Embed, fit and caption on a Ray cluster of two nodes, one of which is killed in the middle; compare with one machine.

    python benchmarks/cluster.py FLICKR8K [--pictures 1000] [--lm writer] [--work FOLDER]

FLICKR8K holds images/, captions.token.txt and test.txt. The nodes are processes of this machine with one core each.
Every command runs once without and once with ``--ray``; a node dies by SIGKILL when a third of the shards or captions
is there, and another one joins before the next command. The exit code is 1 if anything is missing or differs, or if a
command ended before its node was killed. FOLDER must be new or empty.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recap.captioner import ReCap
from recap.datasets import read_flickr8k
from recap.datastore import Datastore
from recap.fitting.vectors import VectorFolder, read_shard

COMMANDS = 3
TOLERANCE = 1e-6
"""Vectors that come from the cache of this machine may differ from new ones in their last bit."""
MEMORY = 300_000_000
"""Bytes of the object store of a node."""


def main() -> None:
    """Do everything twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--lm", default="writer")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            sys.exit(f"{work} is not empty: what is there already would not be done again")
        pairs = write_pairs(arguments.data, arguments.pictures, work / "pairs.jsonl")
        calm, disturbed = work / "calm", work / "disturbed"
        run_all(pairs, calm, arguments.lm, None)
        nodes = Nodes()
        try:
            run_all(pairs, disturbed, arguments.lm, nodes)
        finally:
            nodes.close()
        print(f"commands that lost a node: {nodes.killed} of {COMMANDS}")
        sys.exit(not (compare(calm, disturbed, arguments.pictures) and nodes.killed == COMMANDS))


class Nodes:
    """A cluster of two nodes, of which the second can die."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = None
        self.address: str = self._cluster.address
        self.killed = 0

    def join(self) -> None:
        """Let the second node join, unless it is there."""
        if self._second is None:
            self._second = self._cluster.add_node(num_cpus=1, object_store_memory=MEMORY)

    def kill(self) -> None:
        """Kill the second node with all it was doing."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = None
        self.killed += 1

    def close(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


def write_pairs(data: Path, count: int, path: Path) -> Path:
    """Write the first pictures of the test split with their captions."""
    pairs = read_flickr8k(data, "test")[:count]
    lines = [json.dumps({"image": str(Path(str(pair.image)).absolute()), "captions": pair.captions}) for pair in pairs]
    path.write_text("\n".join(lines))
    return path


def run_all(pairs: Path, folder: Path, model: str, nodes: Nodes | None) -> None:
    """Embed, fit and caption, with a node that dies on the way if there are nodes."""
    folder.mkdir(exist_ok=True)
    vectors, pack, captions = folder / "vectors", folder / "pack", folder / "captions.jsonl"
    listed = [json.loads(line)["image"] for line in pairs.read_text().splitlines()]
    shards = -(-len(listed) // 32)
    run(nodes, ["embed", pairs, "--out", vectors], lambda: len(list(vectors.glob("*.parquet"))), shards)
    # on one machine as ever, from the pictures
    given = pairs if nodes is None else vectors
    run(nodes, ["fit", given, "--out", pack, "--lm", model, "--source", "flickr8k"], lambda: 0, 0)
    command = ["caption", "-", "--out", captions, "--pack", pack]
    run(nodes, command, lambda: lines(captions), len(listed), "\n".join(listed))


def run(nodes: Nodes | None, command: list[Any], done: Callable[[], int], total: int, given: str = "") -> None:
    """Run one command; with nodes, kill one when a third is done (of a fit: as soon as its work has begun)."""
    if nodes is not None:
        nodes.join()
        command = [*command, f"--ray={nodes.address}"]
    started = time.perf_counter()
    arguments = [sys.executable, "-m", "recap.cli.main", *map(str, command)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True)
    killer = threading.Thread(target=kill_when, args=(nodes, done, total // 3, process), daemon=True)
    if nodes is not None:
        killer.start()
    process.communicate(given)
    if process.returncode:
        sys.exit(f"recap {command[0]} failed with {process.returncode}")
    if nodes is not None:
        killer.join()
    print(f"recap {command[0]:<8}{time.perf_counter() - started:8.1f} s", flush=True)


def kill_when(nodes: Nodes, done: Callable[[], int], wanted: int, process: subprocess.Popen[str]) -> None:
    """Kill the second node when so much is done; with nothing to count, when a worker has started on it."""
    while process.poll() is None and (done() < wanted if wanted else not busy()):
        time.sleep(0.1)
    if process.poll() is None:
        nodes.kill()
        print(f"node killed, {done()} done", flush=True)


def busy() -> bool:
    """Tell whether a worker of Ray is at work on keys or statistics of shards."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith((b"ray::MapWorker", b"ray::leaf_statistics")):
                    return True
            except OSError:
                continue
    return False


def lines(path: Path) -> int:
    """Return how many whole lines a file has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def compare(calm: Path, disturbed: Path, count: int) -> bool:
    """Print what differs, and tell whether all is well."""
    one, other = (VectorFolder(str(folder / "vectors")) for folder in (calm, disturbed))
    pictures = [stacked(folder, "image_vectors") for folder in (one, other)]
    texts = [stacked(folder, "caption_vectors") for folder in (one, other)]
    packs = [ReCap.from_pretrained(folder / "pack", language_model="none") for folder in (calm, disturbed)]
    captions = [read_captions(folder / "captions.jsonl") for folder in (calm, disturbed)]
    map_difference = float(np.abs(packs[0].alignment.W_ - packs[1].alignment.W_).max())
    texts_equal = sum(captions[0][path]["caption"] == captions[1].get(path, {}).get("caption") for path in captions[0])
    scores = max(abs(captions[0][path]["score"] - captions[1][path]["score"]) for path in captions[1])
    vector_difference = max(float(np.abs(first - second).max()) for first, second in (pictures, texts))
    stores = [Datastore.load(folder / "pack" / "datastore") for folder in (calm, disturbed)]
    stores_equal = list(stores[0]) == list(stores[1])
    counts = f"{len(pictures[1])} of pictures, {len(texts[1])} of captions"
    print(f"vectors: {counts}, largest difference {vector_difference:.1e}")
    print(f"map: largest difference {map_difference:.1e}; datastores equal: {stores_equal}")
    print(f"captions: {texts_equal} of {len(captions[0])} identical, largest difference of a score {scores:.1e}")
    complete = len(pictures[1]) == len(captions[1]) == count
    close = vector_difference < TOLERANCE and map_difference < TOLERANCE
    return complete and close and stores_equal and texts_equal == count


def stacked(folder: VectorFolder, name: str) -> np.ndarray[Any, Any]:
    """Return a column of vectors of all shards."""
    return np.concatenate([getattr(block, name) for place in folder.shards for block in read_shard(place)])


def read_captions(path: Path) -> dict[str, dict[str, Any]]:
    """Return the captions of a run by path."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["path"]: record for record in found}


if __name__ == "__main__":
    main()
