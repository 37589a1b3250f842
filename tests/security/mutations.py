"""Ways to damage files, the same for the small campaign here and the large one in benchmarks/attack.py."""

from __future__ import annotations

import json
import os
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**6,
    10**18,
    10**40,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "..",
    "/etc/passwd",
    "../../x",
    "\x00",
    "\ud800",
    "x" * 100_000,
    [],
    {},
    [[]],
    {"a": {}},
    ["a"] * 1000,
)
"""Values that nobody expects."""


def mutate_pack(folder: Path, draws: random.Random) -> str:
    """Damage one file of a pack, and return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = draws.choice(files)
    if path.suffix == ".json" and draws.random() < 0.7:
        return f"{path.name}: {mutate_json(path, draws)}"
    return f"{path.name}: {mutate_file(path, draws, files)}"


def mutate_json(path: Path, draws: random.Random) -> str:
    """Change one value somewhere in a json file, drop it, or nest it."""
    if draws.random() < 0.05:
        path.write_text(draws.choice(("[" * 200_000, '{"a":' * 200_000, "1" * 10_000, "", "null", "[]", "\ufeff{}")))
        return "replaced"
    root = json.loads(path.read_text(encoding="utf-8"))
    said = mutate_value(root, draws)
    path.write_text(json.dumps(root), encoding="utf-8", errors="surrogatepass")
    return said


def mutate_value(root: Any, draws: random.Random) -> str:
    """Change one value somewhere in a value of json."""
    place, trail = root, []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return "nothing"
        key = draws.choice(keys)
        trail.append(str(key))
        if isinstance(place[key], dict | list) and place[key] and draws.random() < 0.8:
            place = place[key]
            continue
        break
    how = draws.choice(("strange", "strange", "strange", "drop", "extra"))
    if how == "drop":
        del place[key]
    elif how == "extra" and isinstance(place, dict):
        place["unknown"] = deepcopy(draws.choice(STRANGE))
    else:
        place[key] = deepcopy(draws.choice(STRANGE))
    return f"{how} at {'.'.join(trail)}"


def mutate_file(path: Path, draws: random.Random, others: list[Path]) -> str:
    """Flip, cut, lengthen, swap, remove a file, or put something else in its place."""
    how = draws.choice(
        ("flip", "flip", "head", "head", "cut", "grow", "swap", "gone", "folder", "pipe", "loop", "empty")
    )
    content = bytearray(path.read_bytes())
    if how in ("flip", "head") and content:
        span = len(content) if how == "flip" else min(600, len(content))
        for _ in range(draws.randint(1, 30)):
            content[draws.randrange(span)] = draws.randrange(256)
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[: draws.randrange(len(content) + 1)])
    elif how == "grow":
        path.write_bytes(content + draws.randbytes(draws.randint(1, 2000)))
    elif how == "swap":
        path.write_bytes(draws.choice(others).read_bytes())
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "pipe" and hasattr(os, "mkfifo"):
            os.mkfifo(path)
        elif how == "loop":
            path.symlink_to(path.name)
    return how
