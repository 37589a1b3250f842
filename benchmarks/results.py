"""Makes the tables of docs/results.md again, the cheap ones first: ``make results DATA=DIR``.

    python benchmarks/results.py DIR [--out results] [--only NAME,NAME] [--limit 50] [--list]

DIR is a folder of data sets as docs/experiments.md has it. What each command prints goes to ``OUT/NAME.md``, its
figures into ``OUT/NAME/``. A table that is there is not made again, so a stopped run goes on, and deleting a file makes
it anew. One whose data are missing is named with what its command said, and the others are made all the same.
``--limit`` takes so many pictures of each split of the experiments, to see that everything runs.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from recap.files import atomic_write

HERE = Path(__file__).parent
CLASSIC = "--option metrics=bleu-1,bleu-4,rouge-l,cider-d,spice"
OLD = "--encoder tinyvit,minilm"
"""A classifier and a sentence encoder as they are, which share no space: what ``builtin`` was before the eyes."""
LARGE = "--encoder tinyvit+dinov2,minilm"
MAPS = "--option maps=PR,OLS,LFA"
JUDGED = "--option metrics=cider-d,aclip-s,refaclip-s"
XRAYS = f"--on xrays {CLASSIC}"
VOTERS = "--lm none --option ks=1,5,10,30,100,300"
MODELS = "none,writer,smollm2,gemma3-270m,qwen2.5-coder-1.5b"


@dataclass(frozen=True)
class Made:
    """A table, and the command that makes it."""

    name: str
    minutes: float
    """Of the processor, about, with vectors at hand."""
    command: str
    """``experiment`` and its arguments, or a script of this folder; ``DATA`` stands for the folder."""

    def arguments(self, data: Path, out: Path, limit: int | None = None) -> list[str]:
        """Return the command line."""
        first, *rest = shlex.split(self.command.replace("DATA", str(data)))
        if first == "experiment":
            given: list[object] = ["--data", data, "--format", "markdown", "--out", out / self.name]
            limited = ["--limit", limit] if limit else []
            return [sys.executable, "-m", "recap", first, *rest, *map(str, given + limited)]
        return [sys.executable, str(HERE / first), *rest]


TABLES = (
    Made("fit", 1, "fit.py"),
    Made("retrieval", 2, "retrieval.py"),
    Made("metrics", 3, "metrics.py"),
    Made("peers", 15, "peers.py"),
    Made("judgement", 5, "judgement.py --flickr8k DATA/flickr8k"),
    Made("captions-coco", 20, "captions.py coco DATA/coco"),
    Made("captions-coco-fast", 30, "captions.py coco DATA/coco --encoder builtin-fast"),
    Made("captions-flickr8k", 6, "captions.py flickr8k DATA/flickr8k"),
    Made("captions-flickr8k-pack", 6, "captions.py flickr8k-from-coco DATA/flickr8k"),
    Made("recall", 2, "experiment retrieval"),
    Made("recall-old", 2, f"experiment retrieval {OLD} {MAPS}"),
    Made("recall-large", 3, f"experiment retrieval {LARGE} {MAPS}"),
    Made("recall-coco", 4, "experiment retrieval --on coco --option maps=ZS,beta-PR,LFA,PR,OLS,ridge"),
    Made("alignment", 3, f"experiment alignment {JUDGED}"),
    Made("alignment-old", 3, f"experiment alignment {OLD} {JUDGED}"),
    Made("alignment-coco", 12, f"experiment alignment --on coco {JUDGED}"),
    Made("alignment-coco-old", 12, f"experiment alignment --on coco {OLD} {JUDGED}"),
    Made("transfer", 4, "experiment transfer --option source=coco"),
    Made("transfer-xrays", 4, "experiment transfer --on xrays --option source=coco"),
    Made(
        "msrvtt",
        2,
        "experiment captioning --on msrvtt --lm none --option maps=ZS,PR,OLS,ridge "
        "--option metrics=bleu-4,rouge-l,cider-d",
    ),
    Made("xrays-k-procrustes", 2, f"experiment search-k {XRAYS} {VOTERS} --option method=procrustes"),
    Made("xrays-k-ols", 2, f"experiment search-k {XRAYS} {VOTERS} --option method=ols"),
    Made("xrays-test", 3, f"experiment captioning {XRAYS} --lm none --option maps=PR,OLS,ridge"),
    Made("xrays-k-writer", 2, f"experiment search-k {XRAYS} --option pictures=100 --option ks=1,5,13,100"),
    Made("xrays-test-writer", 3, f"experiment captioning {XRAYS} --option maps=OLS --option pictures=150"),
    Made(
        "xrays-temperature",
        4,
        f"experiment search-temperature {XRAYS} --option k=5 --option pictures=60 --option temperatures=0.1,0.5 "
        "--option numbers=10,20",
    ),
    Made(
        "sources",
        1,
        "experiment search-sources --lm none --limit 2000 --option sources=flickr30k --option pictures=300 "
        "--option k=13 --option metrics=cider-d",
    ),
    Made("efficiency", 12, "experiment efficiency --option steps=12 --option pictures=8"),
    Made(
        "captioning",
        1,
        "experiment captioning --option maps=ZS,PR,OLS --option metrics=bleu-4,cider-d,chair --option pictures=200",
    ),
    Made("search-k", 1, "experiment search-k --option pictures=200 --option metrics=cider-d,refaclip-s"),
    Made(
        "efficiency-scratch",
        35,
        "experiment efficiency --option decoder=scratch --option mapper=mlp --option systems=clipcap --option epochs=8",
    ),
    Made(
        "search-temperature",
        2,
        "experiment search-temperature --option pictures=100 --option k=13 --option metrics=cider-d,refaclip-s",
    ),
    Made(
        "dal",
        3,
        "experiment dal --limit 1000 --option pictures=100 --option ks=4,13 --option rounds=2 "
        "--option metrics=cider-d,aclip-s,refaclip-s",
    ),
    Made("captioning-coco", 60, "experiment captioning --on coco"),
    Made(
        "language-models",
        30,
        f"experiment search-lm --option models={MODELS} --option pictures=200 --option k=5 --option temperature=0 "
        "--option samples=1 --option metrics=cider-d",
    ),
)
"""Every table but those that people made by reading."""


def main(arguments: list[str] | None = None) -> int:
    """Make the tables that are not there; return 1 if one could not be made."""
    parser = argparse.ArgumentParser(description="Makes the tables of docs/results.md again.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--only", default="", help="names joined by commas")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--list", action="store_true", help="show names, costs and commands, cheapest first")
    given = parser.parse_args(arguments)
    tables = chosen(given.only)
    if given.list:
        for table in tables:
            print(f"{table.name:<20}{table.minutes:>5g} min  {table.command}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    failed = [table.name for table in tables if not make(table, given.data, given.out, given.limit)]
    print(f"{len(tables) - len(failed)} of {len(tables)} tables are in {given.out}", file=sys.stderr)
    return 1 if failed else 0


def chosen(only: str) -> list[Made]:
    """Return the tables to make, the cheapest first."""
    names = [name for name in only.split(",") if name]
    if unknown := sorted({*names} - {table.name for table in TABLES}):
        raise SystemExit(f"no table {unknown[0]}; see --list")
    return sorted((t for t in TABLES if not names or t.name in names), key=lambda table: table.minutes)


def make(table: Made, data: Path, out: Path, limit: int | None) -> bool:
    """Make one table unless it is there; tell whether it is there then."""
    target = out / f"{table.name}.md"
    if target.exists():
        print(f"{table.name}: is there", file=sys.stderr)
        return True
    command, started = table.arguments(data, out, limit), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{table.name}: not made. {(done.stderr.strip() or 'no message').splitlines()[-1]}", file=sys.stderr)
        return False
    with atomic_write(target) as file:
        file.write(f"`{shlex.join(command[1:])}`\n\n{done.stdout}".encode())
    print(f"{table.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main())
