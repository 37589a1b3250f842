"""Sheets of captions to be read by eye, without knowing which captioner wrote what; and the count of what was said.

    python benchmarks/sheet.py make PICTURES... --before old.jsonl --after new.jsonl --out DIR [--count 100] [--seed 0]
    python benchmarks/sheet.py tally DIR/key.json DIR/judged.csv [OTHER_READER.csv ...]

PICTURES are pictures, folders, glob patterns, or a ``.txt`` file with one path a line. ``--before`` and ``--after``
are packs (a folder, a name, ``builtin``) or captions in any form that ``recap score`` reads; of what ``recap caption
--out captions.jsonl`` wrote the confidence is kept too. Without ``--after`` the captions stand alone.

``make`` writes ``sheet-01.png`` and so on, twelve pictures each with a number and the captions A and B, which of them
is which drawn by lot for each picture; ``judged.csv`` to be filled in with ``right``, ``partly`` or ``wrong``; and
``key.json``, which readers should not see. ``tally`` prints what they said about each captioner, and how far its
confidence can be believed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

from recap import ReCap
from recap.confidence import Floats, calibration_error
from recap.datasets import find_images
from recap.datasets.captions import by_stem, read_candidates, stem
from recap.datasets.records import parse_json, read_lines, read_table
from recap.encoders.images import decode
from recap.errors import ImageError, InputError
from recap.files import atomic_write, csv_text, write_json

SIDE, GAP, LINE = 300, 16, 20
COLUMNS, ROWS = 4, 3
SURE = 0.7
"""So confident captions are looked at by themselves."""
BOUNDS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Least confidences that a user might ask for."""

ABOUT_CONFIDENCE = (
    "right counts as 1, partly and wrong as 0; ECE is over 10 bins of equally many captions, and by chance what it\n"
    "would be on average, were each caption right exactly with its confidence"
)
VERDICTS = ("right", "partly", "wrong")
SIDES = ("a", "b")
CAPTION_FILES = (".jsonl", ".json", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Said:
    """What one captioner says about a picture."""

    system: str
    caption: str
    confidence: float | None = None

    @property
    def shown(self) -> str:
        """The caption as readers see it: capitals and full stops would tell captioners apart."""
        text = " ".join(self.caption.split()).rstrip(" .")
        return text[:1].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture and its captions, in the order they are shown in."""

    number: int
    path: Path
    said: tuple[Said, ...]

    @property
    def agrees(self) -> bool:
        """Whether the captions are the same, so that one verdict will do."""
        return len({one.shown for one in self.said}) == 1


def main() -> None:
    """Make sheets, or count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="draw the sheets")
    making.add_argument("pictures", nargs="+")
    making.add_argument("--before", required=True, help="a pack, or a file of captions")
    making.add_argument("--after", help="another one")
    making.add_argument("--out", type=Path, required=True, help="a folder for sheets, judged.csv and key.json")
    making.add_argument("--count", type=int, help="so many of the pictures, drawn by lot (default: all)")
    making.add_argument("--seed", type=int, default=0)
    making.set_defaults(run=make)
    tallying = commands.add_parser("tally", help="count the verdicts")
    tallying.add_argument("key", type=Path)
    tallying.add_argument("judged", type=Path, nargs="+", help="one filled file for each reader")
    tallying.set_defaults(run=tally)
    options = parser.parse_args()
    try:
        options.run(options)
    except InputError as error:
        raise SystemExit(f"sheet: {error}") from error


def make(options: argparse.Namespace) -> None:
    """Caption, draw, and write the form and the key."""
    form = options.out / "judged.csv"
    if form.exists():
        raise InputError(f"{form} is there, and may be filled in: name another folder")
    lot = random.Random(options.seed)
    paths = drawn(listed(options.pictures), options.count, lot)
    sources = {"before": options.before} | ({"after": options.after} if options.after else {})
    captions = {system: captions_of(source, paths, system) for system, source in sources.items()}
    entries = shuffled([path for path in paths if all(path in known for known in captions.values())], captions, lot)
    if not entries:
        raise InputError("no picture has a caption: are the captions of these pictures?")
    options.out.mkdir(parents=True, exist_ok=True)
    per_sheet = COLUMNS * ROWS
    for page, start in enumerate(range(0, len(entries), per_sheet), 1):
        draw_sheet(entries[start : start + per_sheet]).save(options.out / f"sheet-{page:02}.png")
    write_form(form, entries)
    write_json(options.out / "key.json", {**sources, "seed": options.seed, "pictures": [_plain(e) for e in entries]})
    left_out = len(paths) - len(entries)
    print(f"{options.out}: {len(entries)} pictures" + (f", {left_out} without captions left out" if left_out else ""))


def listed(given: Iterable[str]) -> list[Path]:
    """Return the pictures that are meant."""
    names: list[str] = []
    for name in given:
        names += [line for _, line in read_lines(Path(name))] if name.endswith(".txt") else [name]
    return list(find_images(names))


def drawn(paths: Sequence[Path], count: int | None, lot: random.Random) -> list[Path]:
    """Return some of the pictures in an order drawn by lot."""
    return lot.sample(paths, len(paths) if count is None else min(count, len(paths)))


def captions_of(source: str, paths: Sequence[Path], system: str) -> dict[Path, Said]:
    """Return what a pack says about the pictures, or what a file has; pictures without a caption are left out."""
    if Path(source).suffix in CAPTION_FILES:
        known = read_captions(Path(source), system)
        if any(str(path) in known for path in paths):
            return {path: known[str(path)] for path in paths if str(path) in known}
        named = by_stem(known, source)
        return {path: named[stem(str(path))] for path in paths if stem(str(path)) in named}
    results = zip(paths, ReCap.from_pretrained(source).caption_each(paths), strict=True)
    found = {}
    for path, result in results:
        if isinstance(result, ImageError):
            print(f"sheet: {result}", file=sys.stderr)
        else:
            found[path] = Said(system, result.text, result.confidence)
    return found


def read_captions(path: Path, system: str) -> dict[str, Said]:
    """Return captions by picture; those that were withheld as unsure are read as well."""
    if path.suffix != ".jsonl":
        return {image: Said(system, text) for image, text in read_candidates(path).items()}
    found = {}
    for number, line in read_lines(path):
        values = parse_json(line, f"{path}:{number}")
        try:
            text = values["caption"] or values["withheld"]
            found[str(values["path"])] = Said(system, str(text), values.get("confidence"))
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a line of recap caption --out: {error!r}") from error
    return found


def shuffled(paths: Sequence[Path], captions: Mapping[str, Mapping[Path, Said]], lot: random.Random) -> list[Entry]:
    """Return the pictures numbered, the captions of each in an order drawn by lot."""
    entries = []
    for number, path in enumerate(paths, 1):
        said = [known[path] for known in captions.values()]
        lot.shuffle(said)
        entries.append(Entry(number, path, tuple(said)))
    return entries


def draw_sheet(entries: Sequence[Entry]) -> Image.Image:
    """Return a page of pictures with their captions beneath."""
    font = ImageFont.load_default(size=15)
    texts = [_lines(entry, font.getlength) for entry in entries]
    rows = [range(start, min(start + COLUMNS, len(entries))) for start in range(0, len(entries), COLUMNS)]
    heights = [SIDE + LINE * (1 + max(len(texts[place]) for place in row)) + GAP for row in rows]
    sheet = Image.new("RGB", (GAP + COLUMNS * (SIDE + GAP), GAP + sum(heights)), "white")
    pen = ImageDraw.Draw(sheet)
    top = GAP
    for row, height in zip(rows, heights, strict=True):
        for column, place in enumerate(row):
            left = GAP + column * (SIDE + GAP)
            picture = _thumbnail(entries[place].path)
            above = top + SIDE - picture.height
            pen.text((left, above), f"{entries[place].number}", "#b00020", font)
            sheet.paste(picture, (left, above + LINE))
            for line, text in enumerate(texts[place]):
                pen.text((left, top + LINE * (1 + line) + SIDE), text, "black", font)
        top += height
    return sheet


def _thumbnail(path: Path) -> Image.Image:
    try:
        picture = decode(path, shorter_side=SIDE)
    except ImageError as error:
        print(f"sheet: {error}", file=sys.stderr)
        picture = Image.new("RGB", (SIDE, SIDE), "#dddddd")
    picture.thumbnail((SIDE, SIDE))
    return picture


def _lines(entry: Entry, length: Callable[[str], float]) -> list[str]:
    """Return the captions in lines that fit beneath a picture."""
    labels = ["A = B: "] if len(entry.said) > 1 and entry.agrees else ["A: ", "B: "]
    shown = zip(labels, entry.said, strict=False)
    return [line for label, said in shown for line in wrapped(f"{label}{said.shown}", SIDE, length)]


def wrapped(text: str, width: float, length: Callable[[str], float]) -> list[str]:
    """Return a text in lines of at most a width; a word that is too long by itself is cut."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if length(longer) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for letter in word:
            if length(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines


def write_form(path: Path, entries: Sequence[Entry]) -> None:
    """Write the form that a reader fills in."""
    sides = SIDES[: len(entries[0].said)]
    header = ["number", *(name for side in sides for name in (f"caption {side}", side))]
    rows = [[entry.number, *(cell for said in entry.said for cell in (said.shown, ""))] for entry in entries]
    with atomic_write(path) as file:
        file.write(csv_text(header, rows).encode())


def _plain(entry: Entry) -> dict[str, Any]:
    shown = zip(SIDES, entry.said, strict=False)
    return {"number": entry.number, "path": str(entry.path), **{side: asdict(said) for side, said in shown}}


Verdicts: TypeAlias = dict[tuple[str, int], str]
"""What a reader says, by captioner and number of the picture."""


def reader_names(files: Sequence[Path]) -> dict[str, Path]:
    """Return a name for each form: that of its file, or its path where two files have the same name."""
    stems = Counter(file.stem for file in files)
    return {file.stem if stems[file.stem] == 1 else str(file): file for file in files}


def tally(options: argparse.Namespace) -> None:
    """Print what readers said about each captioner, and what its confidence is worth."""
    entries = read_key(options.key)
    readers = {name: read_form(file, entries) for name, file in reader_names(options.judged).items()}
    console = Console(highlight=False, soft_wrap=True)
    counts = Table("reader", "captions of", "judged", *VERDICTS, box=None, padding=(0, 2, 0, 0))
    systems = [said.system for said in sorted(entries[0].said, key=lambda said: said.system, reverse=True)]
    everybody = {"all readers": list(readers.values())} if len(readers) > 1 else {}
    for name, verdicts in ({name: [one] for name, one in readers.items()} | everybody).items():
        for system in systems:
            counts.add_row(name, system, *counted(system, verdicts))
    console.print(counts)
    if len(readers) > 1:
        console.print(f"\nall readers say the same about {agreement(list(readers.values())):.0%} of the captions")
    told = confidence_table(systems, entries, list(readers.values()))
    if told.row_count:
        console.print(f"\n{ABOUT_CONFIDENCE}")
        console.print(told)
        console.print()
        console.print(bounds_table(systems, entries, list(readers.values())))


def bounds_table(systems: Sequence[str], entries: Sequence[Entry], readers: Sequence[Verdicts]) -> Table:
    """Return how many captions are kept at a least confidence, and what readers say of those."""
    table = Table("captions of", "confidence from", "kept", *VERDICTS, box=None, padding=(0, 2, 0, 0))
    for system in systems:
        judged = [
            (said.confidence, verdicts[system, entry.number])
            for entry in entries
            for said in entry.said
            for verdicts in readers
            if said.system == system and said.confidence is not None and (system, entry.number) in verdicts
        ]
        for bound in BOUNDS if judged else ():
            kept = [verdict for confidence, verdict in judged if confidence >= bound]
            shares = [f"{kept.count(verdict) / len(kept):.0%}" if kept else "-" for verdict in VERDICTS]
            table.add_row(system, f"{bound:g}", f"{len(kept) / len(judged):.0%}", *shares)
    return table


def confidence_table(systems: Sequence[str], entries: Sequence[Entry], readers: Sequence[Verdicts]) -> Table:
    """Return what the confidence of each captioner is worth; without rows where there is none."""
    columns = ("captions of", "with confidence", "mean", "right", "ECE", "by chance", f"right of {SURE:.0%} sure")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for system in systems:
        cells = confidence_cells(system, entries, readers)
        if cells:
            table.add_row(system, *cells)
    return table


def read_key(path: Path) -> list[Entry]:
    """Return what ``make`` wrote."""
    values = parse_json(path.read_text(encoding="utf-8"), str(path))
    return [
        Entry(item["number"], Path(item["path"]), tuple(Said(**item[side]) for side in SIDES if side in item))
        for item in values["pictures"]
    ]


def read_form(path: Path, entries: Sequence[Entry]) -> Verdicts:
    """Return what a reader filled in; where both captions are the same, one verdict is for both."""
    by_number = {entry.number: entry for entry in entries}
    verdicts: Verdicts = {}
    for row in read_table(path):
        entry = by_number.get(int(row["number"]))
        if entry is None:
            raise InputError(f"{path}: picture {row['number']} is not in the key")
        sides = SIDES[: len(entry.said)]
        given = {side: _verdict(row[side] or "", f"{path}: picture {entry.number}, {side}") for side in sides}
        either = next(filter(None, given.values()), "") if entry.agrees else ""
        for side, said in zip(sides, entry.said, strict=True):
            if given[side] or either:
                verdicts[said.system, entry.number] = given[side] or either
    return verdicts


def _verdict(text: str, where: str) -> str:
    """Return a verdict that may be given by its first letters; nothing where there is none yet."""
    short = text.strip().lower()
    meant = [verdict for verdict in VERDICTS if short and verdict.startswith(short)]
    if short and not meant:
        raise InputError(f"{where}: {text!r} is none of {', '.join(VERDICTS)}")
    return meant[0] if meant else ""


def counted(system: str, readers: Sequence[Verdicts]) -> list[str]:
    """Return how many captions were judged, and how many each way."""
    counts = Counter(verdict for verdicts in readers for (of, _), verdict in verdicts.items() if of == system)
    total = counts.total()
    return [str(total), *(f"{counts[v]} ({counts[v] / max(1, total):.0%})" for v in VERDICTS)]


def agreement(readers: Sequence[Verdicts]) -> float:
    """Return the share of captions that all readers judged alike, of those that all judged."""
    common = set.intersection(*(set(verdicts) for verdicts in readers))
    alike = [len({verdicts[place] for verdicts in readers}) == 1 for place in common]
    return sum(alike) / max(1, len(alike))


def confidence_cells(system: str, entries: Sequence[Entry], readers: Sequence[Verdicts]) -> list[str]:
    """Return how confident captions are, how many are right, and how far the two are apart; nothing where unknown."""
    pairs = []
    for entry in entries:
        verdicts = [found[system, entry.number] for found in readers if (system, entry.number) in found]
        confidence = next((said.confidence for said in entry.said if said.system == system), None)
        if verdicts and confidence is not None:
            pairs.append((confidence, verdicts.count("right") / len(verdicts)))
    if not pairs:
        return []
    sure, right = np.array(pairs).T
    high = right[sure >= SURE]
    share = f"{high.mean():.0%} of {len(high)}" if len(high) else "none is"
    means = [f"{sure.mean():.2f}", f"{right.mean():.2f}"]
    return [str(len(pairs)), *means, f"{calibration_error(sure, right):.3f}", f"{chance_error(sure):.3f}", share]


def chance_error(confidence: Floats, draws: int = 1000) -> float:
    """Return the calibration error that perfect confidence would have on so few captions, on average."""
    generator = np.random.default_rng(0)
    outcomes = generator.random((draws, len(confidence))) < confidence
    return float(np.mean([calibration_error(confidence, right.astype(float)) for right in outcomes]))


if __name__ == "__main__":
    main()
