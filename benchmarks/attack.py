"""Attack packs and pictures in many ways, and count what does not hold.

    python benchmarks/attack.py FOLDER [--packs 2500] [--pictures 2500] [--writers 40] [--seed 0]

FOLDER holds pictures to mutate. Packs are damaged one file at a time and then verified, loaded, captioned with, added
to and saved; pictures are mutated and decoded apart; pairs of processes change one pack at once, and some are killed.
Each attempt on a pack or a picture is made in a child with a limit on time. Prints how many attempts ended how; the
exit code is 1 if one hung, crashed, ended in a traceback or left a pack that does not verify. No connection is opened.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from recap import ReCap
from recap.datasets import Sentence, find_images, read_pairs
from recap.encoders import load_encoder
from recap.encoders.apart import ApartDecoder
from recap.errors import ImageError, RecapError
from recap.packs import captions
from recap.packs.folder import read_own_datastore
from recap.packs.verify import verify

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
WORLD: Any = importlib.import_module("conftest")
MUTATIONS: Any = importlib.import_module("security.mutations")
SECONDS = 60
HELD = ("fine", "refused")
ADDED, UPDATED, FORGOTTEN = "a wall that nobody has seen", "this blue wall once more", "red0.png"
"""What the writers add to a pack, and what they take out of it."""


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, count in (("packs", 2500), ("pictures", 2500), ("writers", 40), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        world = make_world(Path(temporary))
        outcomes = {
            "packs": attack_packs(world, given.packs, given.seed),
            "pictures": attack_pictures(list(find_images([given.folder])), given.pictures, given.seed),
            "writers": attack_with_writers(world, given.writers, given.seed),
        }
    for name, counts in outcomes.items():
        told = ", ".join(f"{how} {count}" for how, count in counts.most_common())
        print(f"{name}: {sum(counts.values())} attempts: {told}")
    failed = sum(count for counts in outcomes.values() for how, count in counts.items() if how not in HELD)
    print(f"{failed} did not hold")
    sys.exit(failed > 0)


def make_world(work: Path) -> Path:
    """Make pictures of one colour, an encoder for them, and a pack; return the folder of all three."""
    (work / "pairs").mkdir()
    (work / "encoder").mkdir()
    WORLD.make_encoder(work / "encoder", 4)
    for colour, rgb in WORLD.COLOURS.items():
        for number in range(3):
            WORLD.paint(work / "pairs" / f"{colour}{number}.png", rgb, number)
            said = "\n".join(saying.format(colour) for saying in WORLD.SAYINGS)
            (work / "pairs" / f"{colour}{number}.txt").write_text(said)
    encoder = load_encoder(f"onnx:{work / 'encoder'}")
    options: dict[str, Any] = {"source": "walls", "language_model": None, "keep_vectors": True}
    ReCap.fit(read_pairs(work / "pairs"), encoder=encoder, calibrate=False, **options).save_pretrained(work / "good")
    return work


def attack_packs(world: Path, count: int, seed: int) -> Counter[str]:
    """Damage packs, and use them in children that can be killed when they hang."""
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    done, block = 0, 50
    while done < count:
        ours, theirs = context.Pipe(duplex=False)
        numbers = range(seed + done, seed + min(count, done + block))
        child = context.Process(target=use_packs, args=(world, numbers, theirs))
        child.start()
        theirs.close()
        while True:
            try:
                if not ours.poll(SECONDS):
                    counts["hung"] += 1
                    break
                counts[ours.recv()] += 1
            except EOFError:
                break
            finally:
                done = min(count, sum(counts.values()))
        if child.is_alive() and done < numbers.stop - seed:
            child.kill()
        child.join()
        if child.exitcode not in (0, -9):
            counts["crashed"] += 1
            done = sum(counts.values())
    return counts


def use_packs(world: Path, numbers: range, outcomes: Any) -> None:
    """Do with damaged packs what people do with packs."""
    encoder = load_encoder(f"onnx:{world / 'encoder'}")
    picture = world / "pairs" / "red0.png"
    for number in numbers:
        folder = world / f"damaged{number}"
        shutil.copytree(world / "good", folder)
        what = MUTATIONS.mutate_pack(folder, random.Random(number))
        try:
            list(verify(folder))
            ReCap.from_pretrained(folder).caption(picture)
            captions.add(folder, [Sentence("one more red wall", "mine", "", False)], encoder.text)
            ReCap.from_pretrained(folder).save_pretrained(folder)
            outcome = "fine"
        except (RecapError, OSError):
            outcome = "refused"
        except Exception:
            print(f"attempt {number} ({what}):", file=sys.stderr)
            traceback.print_exc()
            outcome = "traceback"
        shutil.rmtree(folder, ignore_errors=True)
        outcomes.send(outcome)


def attack_pictures(pictures: list[Path], count: int, seed: int) -> Counter[str]:
    """Decode mutated pictures in children as the service does."""
    counts: Counter[str] = Counter()
    decoder = ApartDecoder(processes=1, max_pixels=50_000_000, memory=2 << 30, seconds=SECONDS)
    decoder.start()
    for number in range(count if pictures else 0):
        draws = random.Random(seed + number)
        content = bytearray(draws.choice(pictures).read_bytes())
        span = draws.choice((len(content), min(700, len(content))))
        for _ in range(draws.randint(1, 40)):
            content[draws.randrange(span)] = draws.randrange(256)
        if draws.random() < 0.2:
            del content[draws.randrange(len(content)) :]
        try:
            decoder.decode(bytes(content), 224)
            counts["fine"] += 1
        except ImageError as error:
            counts["crashed" if "or crashed" in str(error) else "refused"] += 1
    decoder.close()
    return counts


def attack_with_writers(world: Path, count: int, seed: int) -> Counter[str]:
    """Let two processes change one pack at once, and kill one of them now and then."""
    counts: Counter[str] = Counter()
    (world / "more.txt").write_text(f"{ADDED}\n")
    pair = {"image": str(world / "pairs" / "blue0.png"), "caption": UPDATED}
    (world / "more.jsonl").write_text(json.dumps(pair) + "\n")
    draws = random.Random(seed)
    shutil.copytree(world / "good", world / "other")
    for number in range(count):
        folder = world / f"shared{number}"
        shutil.copytree(world / "good", folder)
        ways: dict[str, list[Any]] = {
            "update": ["fit", world / "more.jsonl", "--update", folder, "--no-calibrate"],
            "forget": ["fit", "--update", folder, "--forget", FORGOTTEN],
            "add": ["datastore", "add", folder, world / "more.txt"],
            "merge": ["pack", "merge", folder, world / "other", "--out", folder],
        }
        chosen = draws.choices(list(ways), k=2)
        running = [start(ways[name]) for name in chosen]
        if draws.random() < 0.4:
            time.sleep(draws.uniform(0.5, 4))
            running[0].kill()
        codes = [process.wait(SECONDS * 5) for process in running]
        done = [name for name, code in zip(chosen, codes, strict=True) if code == 0]
        wrong = [check.problem for check in verify(folder) if check.problem] or untrue(folder, chosen, done)
        if wrong:
            print(f"writers {number}: {chosen} {codes}: {wrong[0]}", file=sys.stderr)
        counts["broken" if wrong else "fine"] += 1
        shutil.rmtree(folder)
    return counts


def untrue(folder: Path, chosen: list[str], done: list[str]) -> list[str]:
    """Return which of the commands that said all was well have left no trace."""
    rows = list(read_own_datastore(folder))
    texts = {row.text for row in rows}
    wrong = [name for name, text in (("add", ADDED), ("update", UPDATED)) if name in done and text not in texts]
    # the pack that is merged has the picture, too
    if "forget" in done and "merge" not in chosen and any(row.image_id == FORGOTTEN for row in rows):
        wrong.append("forget")
    return [f"{name} exited with 0 and is not there" for name in wrong]


def start(arguments: list[Any]) -> subprocess.Popen[bytes]:
    """Start a command of recap."""
    command = [sys.executable, "-P", "-m", "recap.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
