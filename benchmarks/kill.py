"""Kill ``recap caption`` with SIGKILL at random moments, resume it, and compare with a run nobody disturbed.

    python benchmarks/kill.py FOLDER [--pack PACK] [--lm LM] [--kills 10] [--count 2000]

FOLDER holds pictures; the first COUNT of them, by name, are captioned. A kill comes up to a second after a random
number of lines is there. Prints how many there were, and in the end whether the two files are equal, line for line as a
set. The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from recap.datasets import find_images


def main() -> None:
    """Run once undisturbed, then again and again, killed on the way, until done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pack", default="builtin")
    parser.add_argument("--lm")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pictures = [str(path) for path in find_images([arguments.folder])][: arguments.count]
    options = ["--pack", arguments.pack, *(["--lm", arguments.lm] if arguments.lm else [])]
    with tempfile.TemporaryDirectory() as folder:
        calm, disturbed = Path(folder) / "calm.jsonl", Path(folder) / "disturbed.jsonl"
        started = time.perf_counter()
        code = start(pictures, options, calm).wait()
        print(f"undisturbed: {lines(calm)} lines in {time.perf_counter() - started:.1f} s", flush=True)
        moments = random.Random(arguments.seed)
        counts = sorted(moments.sample(range(len(pictures) * 9 // 10), arguments.kills))
        for number, moment in enumerate(counts, 1):
            kill_after(start(pictures, options, disturbed), disturbed, moment, moments.uniform(0, 1))
            print(f"kill {number}: {lines(disturbed)} lines", flush=True)
        same_code = start(pictures, options, disturbed).wait() == code
        sys.exit(not equal(calm, disturbed) or not same_code)


def kill_after(process: subprocess.Popen[str], out: Path, count: int, seconds: float) -> None:
    """Kill a run so many seconds after its file has so many lines; it must not have ended by then."""
    while lines(out) < count and process.poll() is None:
        time.sleep(0.05)
    try:
        process.wait(seconds)
        sys.exit("a run came to its end before it was killed: take more pictures")
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start(pictures: list[str], options: list[str], out: Path) -> subprocess.Popen[str]:
    """Start ``recap caption`` on a list of pictures."""
    command = [sys.executable, "-m", "recap.cli.main", "caption", "-", "--out", str(out), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write("\n".join(pictures))
    process.stdin.close()
    return process


def lines(path: Path) -> int:
    """Return how many whole lines a file has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def equal(calm: Path, disturbed: Path) -> bool:
    """Compare two files as sets of lines, print what was found, and tell whether all is well."""
    one, other = (path.read_bytes().splitlines() for path in (calm, disturbed))
    paths = Counter(json.loads(line)["path"] for line in other)
    twice = sum(count > 1 for count in paths.values())
    missing, foreign = set(one) - set(other), set(other) - set(one)
    print(f"pictures twice: {twice}, lines missing: {len(missing)}, lines that differ: {len(foreign)}")
    same = not twice and not missing and not foreign
    print("equal, line for line as a set" if same else "NOT EQUAL")
    return same


if __name__ == "__main__":
    main()
