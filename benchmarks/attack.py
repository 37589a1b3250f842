"""Attack packs, files, the service and pictures in many ways, and count what does not hold.

    python benchmarks/attack.py FOLDER [--packs 2000] [--files 1000] [--requests 1000] [--pictures 2000] [--writers 40]

FOLDER holds pictures to mutate. Packs are damaged one file at a time and then verified, loaded, captioned with, added
to and saved; the tables, archives, pages and vectors of data sets are damaged and read, and pictures described;
requests to every route of the service are mutated; pictures are mutated and decoded apart; pairs of processes change
one pack at once, and some are killed. Each attempt is made in a child with a limit on time and memory. Prints how many
ended how; the exit code is 1 if one hung, crashed, ended in a traceback or an error of the server, wrote a file
elsewhere, or left a pack that does not verify. No connection is opened.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from recap import ReCap
from recap.alt.fill import fill
from recap.batch.metadata import add_keywords, write_description
from recap.datasets import Sentence, find_images, read_pairs
from recap.encoders import load_encoder
from recap.encoders.apart import ApartDecoder
from recap.errors import ImageError, RecapError
from recap.fitting.embedding import embed
from recap.fitting.packs import fit_pack
from recap.packs import captions
from recap.packs.folder import read_own_datastore
from recap.packs.verify import verify
from recap.parallel.parts import find_parts

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
WORLD: Any = importlib.import_module("conftest")
MUTATIONS: Any = importlib.import_module("security.mutations")
SECONDS = 60
MEMORY = 4 << 30
"""Bytes that a child may have."""
COUNTS = (("packs", 2000), ("files", 1000), ("requests", 1000), ("pictures", 2000), ("writers", 40), ("seed", 0))
STARTED = "started"
"""What a child says when its attempts begin."""
HELD = ("fine", "refused")
ADDED, UPDATED, FORGOTTEN = "a wall that nobody has seen", "this blue wall once more", "red0.png"
"""What the writers add to a pack, and what they take out of it."""


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, count in COUNTS:
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        world = make_world(Path(temporary) / "world")
        outcomes = {
            "packs": attack_in_children(use_packs, world, given.packs, given.seed),
            "files": attack_in_children(use_files, world, given.files, given.seed),
            "requests": attack_in_children(use_service, world, given.requests, given.seed),
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
    """Make pictures of one colour, an encoder for them, and two packs, one of them mapped; return the folder of all."""
    (work / "pairs").mkdir(parents=True)
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
    shutil.copytree(work / "good", work / "mapped")
    captions.move(work / "mapped", "disk")
    embed(find_parts(str(work / "pairs")), str(work / "vectors"), encoder)
    return work


Use = Callable[[Path, int, random.Random], str]
"""Makes one attempt in a folder, and returns how it ended; what is raised is told by its kind."""


def attack_in_children(start_using: Callable[[Path], Use], world: Path, count: int, seed: int) -> Counter[str]:
    """Make attempts in children, a few in each, that can be killed when they hang."""
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    done, block = 0, 50
    while done < count:
        ours, theirs = context.Pipe(duplex=False)
        numbers = range(seed + done, seed + min(count, done + block))
        child = context.Process(target=make_attempts, args=(start_using, world, numbers, theirs))
        child.start()
        theirs.close()
        ours.poll(SECONDS * 5)  # to start is no part of an attempt
        while True:
            try:
                if not ours.poll(SECONDS):
                    counts["hung"] += 1
                    break
                if (outcome := ours.recv()) != STARTED:
                    counts[outcome] += 1
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


def make_attempts(start_using: Callable[[Path], Use], world: Path, numbers: range, outcomes: Any) -> None:
    """Make some attempts, and tell how each has ended."""
    # what a library maps and does not use counts, too
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    use, before = start_using(world), names(world)
    outcomes.send(STARTED)
    for number in numbers:
        room = Path(tempfile.mkdtemp(dir=world))
        try:
            outcome = use(room, number, random.Random(number))
        except (RecapError, OSError):
            outcome = "refused"
        except Exception:
            print(f"attempt {number} of {start_using.__name__}:", file=sys.stderr)
            traceback.print_exc()
            outcome = "traceback"
        shutil.rmtree(room, ignore_errors=True)
        if found := names(world) ^ before:
            print(f"attempt {number} of {start_using.__name__} has changed {sorted(found)}", file=sys.stderr)
            outcome, before = "escaped", names(world)
        outcomes.send(outcome)


def names(world: Path) -> frozenset[tuple[str, int, int]]:
    """Return what is around the rooms of the attempts; a file that is written anew is another one."""
    paths = [path for path in world.parent.rglob("*") if world / "cache" not in (path, *path.parents)]
    return frozenset((str(path), path.lstat().st_ino, path.lstat().st_size * path.is_file()) for path in paths)


def use_packs(world: Path) -> Use:
    """Do with damaged packs what people do with packs."""
    encoder = load_encoder(f"onnx:{world / 'encoder'}")
    picture = world / "pairs" / "red0.png"

    def use(room: Path, number: int, draws: random.Random) -> str:
        folder = room / "pack"
        shutil.copytree(world / ("mapped" if number % 2 else "good"), folder)
        MUTATIONS.mutate_pack(folder, draws)
        list(verify(folder))
        ReCap.from_pretrained(folder).caption(picture)
        captions.add(folder, [Sentence("one more red wall", "mine", "", False)], encoder.text)
        ReCap.from_pretrained(folder).save_pretrained(folder)
        return "fine"

    return use


PAGE = '<!DOCTYPE html><meta charset="utf-8"><base href="."><img src="red0.png" alt><img srcset="a.png 2x, b.png">'


def use_files(world: Path) -> Use:
    """Read damaged tables, archives and pages, and describe damaged pictures."""
    rows = [{"image": f"{colour}0.png", "caption": f"a {colour} wall"} for colour in WORLD.COLOURS]
    pictures = [{"id": number, "file_name": row["image"]} for number, row in enumerate(rows)]
    notes = [{"image_id": number, "caption": row["caption"]} for number, row in enumerate(rows)]

    def use(room: Path, number: int, draws: random.Random) -> str:
        kind = draws.choice(("jsonl", "json", "csv", "parquet", "tar", "html", "png", "jpg", "webp", "vectors"))
        if kind == "vectors":
            shutil.copytree(world / "vectors", room / "vectors")
            MUTATIONS.mutate_pack(room / "vectors", draws)
            fit_pack(str(room / "vectors"), room / "pack", language_model="none", calibrate=False)
            return "fine"
        path = room / f"a.{kind}"
        if kind in ("png", "jpg", "webp"):
            Image.open(world / "pairs" / "red0.png").save(path)
            add_keywords(path, ["wall"])
        elif kind == "html":
            path.write_text(PAGE * 3)
        elif kind == "tar":
            with tarfile.open(path, "w") as archive:
                for file in sorted((world / "pairs").iterdir()):
                    archive.add(file, file.name)
        elif kind == "parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        elif kind == "csv":
            path.write_text("image,caption\n" + "".join(f"{row['image']},{row['caption']}\n" for row in rows))
        else:
            coco = json.dumps({"images": pictures, "annotations": notes})
            path.write_text(coco if kind == "json" else "".join(f"{json.dumps(row)}\n" for row in rows))
        mutate = MUTATIONS.mutate_json if kind == "json" else MUTATIONS.mutate_file
        mutate(path, draws, *(() if kind == "json" else ([world / "pairs" / "red0.png", path],)))
        if kind in ("png", "jpg", "webp"):
            write_description(path, "a wall", generator="recap", keep_original=True)
        elif kind == "html":
            fill(
                path.read_bytes() if path.is_file() else b"",
                lambda sources: [ImageError("x") for _ in sources],
                base=room,
            )
        else:
            read_pairs(path, on_broken=lambda error: None)
        return "fine"

    return use


def use_service(world: Path) -> Use:
    """Send mutated requests to every route."""
    from fastapi.testclient import TestClient

    from recap.server import ServerConfig, create_app

    os.environ["RECAP_CACHE"] = str(world / "cache")
    config = ServerConfig(decode_apart=False, editable=True, search=world / "pairs")
    app = create_app(ReCap.from_pretrained(world / "good"), config)
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    client.__enter__()
    bodies = list(requests(b64encode((world / "pairs" / "red0.png").read_bytes()).decode()))

    def use(room: Path, number: int, draws: random.Random) -> str:
        route, body = draws.choice(bodies)
        body = json.loads(json.dumps(body))
        for _ in range(draws.randint(1, 3)):
            MUTATIONS.mutate_value(body, draws)
        content = bytearray(json.dumps(body).encode())
        for _ in range(draws.randint(1, 9) if draws.random() < 0.3 else 0):
            content[draws.randrange(len(content))] = draws.randrange(256)
        answer = client.post(route, content=bytes(content), headers={"Content-Type": "application/json"})
        if answer.status_code >= 500:
            print(
                f"attempt {number}: {route} answered {answer.status_code} to {bytes(content)[:300]!r}", file=sys.stderr
            )
            return "server error"
        return "fine" if answer.status_code < 300 else "refused"

    return use


def requests(picture: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for every route that takes json a body that it takes."""
    for route in ("caption", "caption/stream", "retrieve", "tags", "map"):
        yield f"/v1/{route}", {"image": [picture], "url": []}
    yield "/v1/caption", {"image": picture, "k": 3, "temperature": 0.5, "samples": 2, "seed": 1, "exclude": ["a wall"]}
    yield "/v1/score", {"image": picture, "caption": ["a red wall"], "reference": ["a wall"]}
    yield "/v1/search", {"text": "a red wall", "k": 3}
    yield "/v1/datastore", {"captions": [{"text": "a wall", "source": "mine", "image_id": "1", "synthetic": False}]}
    parts: list[dict[str, Any]] = [{"type": "text", "text": 'Is "a wall" right?'}]
    parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}})
    yield "/v1/chat/completions", {"model": "recap", "messages": [{"role": "user", "content": parts}], "stream": False}
    yield "/api/generate", {"model": "recap", "prompt": "tags", "images": [picture], "stream": True, "format": "json"}
    yield "/api/chat", {"messages": [{"role": "user", "content": "alt", "images": [picture]}], "stream": False}


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
    if not count:
        return counts
    (world / "more.txt").write_text(f"{ADDED}\n")
    pair = {"image": str(world / "pairs" / "blue0.png"), "caption": UPDATED}
    (world / "more.jsonl").write_text(json.dumps(pair) + "\n")
    draws = random.Random(seed)
    shutil.copytree(world / "good", world / "other")
    shutil.copytree(world / "good", world / "alone")
    started = time.monotonic()
    start(["datastore", "add", world / "alone", world / "more.txt"]).wait()
    usual = time.monotonic() - started
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
            # the first half is spent on loading, and two at once take longer
            time.sleep(usual * draws.uniform(0.5, 2))
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
