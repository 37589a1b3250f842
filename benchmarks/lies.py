"""How often captions name things that nobody who described the picture names.

    python benchmarks/lies.py after.json --references references.json
    python benchmarks/lies.py before.json after.json --references references.json [--split test] [--examples 10]

All files are what ``recap score`` reads; several candidates are compared on the pictures that all of them have.
Counted are COCO's 80 kinds of objects and their synonyms, people included (``recap.metrics.spice``), and how often
captions say "sitting on top of". The last column is people: the first reference of each picture against its others.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recap.datasets.captions import Matched, match, read_candidates, read_references
from recap.language.words import words
from recap.metrics.spice import invented

PHRASE = "sitting on top of"


@dataclass(frozen=True, slots=True)
class Lies:
    """What one set of captions invents."""

    things: tuple[tuple[str, ...], ...]
    """Of each caption the kinds of things that no reference names."""
    phrase: float
    """The share of captions with ``PHRASE``."""

    @classmethod
    def of(cls, matched: Matched) -> Lies:
        """Count in captions that stand beside their references."""
        pairs = zip(matched.candidates, matched.references, strict=True)
        return cls(tuple(tuple(invented(*pair)) for pair in pairs), share_with_phrase(matched.candidates))

    @property
    def share(self) -> float:
        """The share of captions with at least one invented thing."""
        return sum(map(bool, self.things)) / max(1, len(self.things))

    @property
    def per_caption(self) -> float:
        """How many things are invented in a caption."""
        return sum(map(len, self.things)) / max(1, len(self.things))

    @property
    def most_frequent(self) -> list[tuple[str, int]]:
        """The invented things and how often, the most frequent first."""
        return Counter(thing for things in self.things for thing in things).most_common()


def share_with_phrase(texts: Iterable[str]) -> float:
    """Return the share of texts that say ``PHRASE``."""
    said = [PHRASE in " ".join(words(text)) for text in texts]
    return sum(said) / len(said)


def main() -> None:
    """Read, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", type=Path, nargs="+")
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--split", help="of a Karpathy file of references, such as test")
    parser.add_argument("--top", type=int, default=12, help="so many invented things are listed")
    parser.add_argument("--examples", type=int, default=0, help="so many captions with a lie are shown of each file")
    options = parser.parse_args()
    references = read_references(options.references, split=options.split)
    systems = in_common([match(read_candidates(file), references) for file in options.candidates])
    lies = [Lies.of(system) for system in systems]
    console = Console(highlight=False, soft_wrap=True)
    console.print(summary([file.stem for file in options.candidates], [*lies, of_people(systems[0])], options.top))
    for file, system, found in zip(options.candidates, systems, lies, strict=True):
        for line in examples(system, found, options.examples):
            console.print(escape(f"{file.stem}: {line}"))


def of_people(matched: Matched) -> Lies:
    """Count what the first reference of each picture names and its others do not; the phrase in all of them."""
    several = [texts for texts in matched.references if len(texts) > 1]
    things = tuple(tuple(invented(first, others)) for first, *others in several)
    return Lies(things, share_with_phrase(text for texts in matched.references for text in texts))


def in_common(systems: Sequence[Matched]) -> list[Matched]:
    """Return the pictures that every system has a caption of, in the order of the first."""
    rows: list[Mapping[str, int]] = [{image: row for row, image in enumerate(system.ids)} for system in systems]
    shared = [image for image in systems[0].ids if all(image in places for places in rows)]
    if not shared:
        raise SystemExit("the files of candidates have no picture in common")
    return [
        Matched(
            tuple(shared),
            tuple(system.candidates[places[image]] for image in shared),
            tuple(system.references[places[image]] for image in shared),
        )
        for system, places in zip(systems, rows, strict=True)
    ]


def summary(names: Sequence[str], lies: Sequence[Lies], top: int) -> Table:
    """Return the table: one column a file, and one for people."""
    table = Table("", *names, "people", box=None, padding=(0, 2, 0, 0))
    table.add_row("captions", *(f"{len(found.things):,}" for found in lies))
    table.add_row("name a thing no reference names", *(f"{found.share:.1%}" for found in lies))
    table.add_row("such things a caption", *(f"{found.per_caption:.3f}" for found in lies))
    table.add_row(f'say "{PHRASE}"', *(f"{found.phrase:.2%}" for found in lies))
    for rank in range(top):
        listed = [found.most_frequent[rank : rank + 1] for found in lies]
        cells = [f"{thing[0][0]} {thing[0][1]}" if thing else "" for thing in listed]
        if any(cells):
            table.add_row("invented most often" if rank == 0 else "", *cells)
    return table


def examples(system: Matched, found: Lies, count: int) -> list[str]:
    """Return captions with what they invent, drawn by lot."""
    rows = zip(system.ids, system.candidates, system.references, found.things, strict=True)
    wrong = [row for row in rows if row[3]]
    drawn = random.Random(0).sample(wrong, min(count, len(wrong)))
    return [f"{image}: {text} [{', '.join(things)}] | {' | '.join(theirs)}" for image, text, theirs, things in drawn]


if __name__ == "__main__":
    main()
