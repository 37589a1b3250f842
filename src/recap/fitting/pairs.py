"""Pairs on their way into a pack: checked, sampled, and what was wrong with some of them."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from recap.datasets import PairFiles, printable
from recap.errors import InputError
from recap.fitting.vectors import VectorFolder
from recap.types import ImageLike, Pair, Vectors

Item = TypeVar("Item")
PairLike = Pair | tuple[ImageLike, str | Sequence[str]]
Pairs = Iterable[PairLike] | PairFiles | VectorFolder | str | Path

SAMPLE = 300
"""Number of pictures a pack is calibrated on: half a minute with the writer, and 1,200 captions for six numbers."""

SHOWN = 10
"""Number of items of each kind of trouble in a summary."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """What went into a fit, and what was wrong with the rest."""

    pictures: int = 0
    captions: int = 0
    validation: int = 0
    """Held-out pictures to measure with."""
    broken: tuple[InputError, ...] = ()
    """Pictures that cannot be read, or have no usable caption."""
    repeated_pictures: tuple[tuple[str, str], ...] = ()
    """Ids of pictures with the content of another, and the id of that one. Their other captions are used."""
    repeated_pairs: tuple[tuple[str, str], ...] = ()
    """Id and caption of pairs that had come before: the same content with the same caption. They are left out."""

    def counts(self) -> dict[str, int]:
        """Return how many there are of each."""
        return {
            "pictures": self.pictures,
            "captions": self.captions,
            "validation_pictures": self.validation,
            "broken_pairs": len(self.broken),
            "repeated_pictures": len(self.repeated_pictures),
            "repeated_pairs": len(self.repeated_pairs),
        }

    def lines(self) -> Iterator[dict[str, str]]:
        """Yield an object for each thing that was wrong, ready for json."""
        for error in self.broken:
            yield {"kind": "broken", "reason": str(error)}
        for name, first in self.repeated_pictures:
            yield {"kind": "repeated picture", "image": name, "same_as": first}
        for name, caption in self.repeated_pairs:
            yield {"kind": "repeated pair", "image": name, "caption": caption}

    def write(self, path: Path) -> None:
        """Write everything that was wrong to a file, one json object a line."""
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines())
        path.write_text(lines, encoding="utf-8")

    def summary(self, rest: str) -> Iterator[str]:
        """Yield lines for a reader: the first of each kind of trouble; ``rest`` says where the others are."""
        kinds = {
            "broken": [str(error) for error in self.broken],
            "repeated pictures, whose new captions are used": [
                f"{name} is the same as {first}" for name, first in self.repeated_pictures
            ],
            "repeated pairs, left out": [f"{name}: {caption}" for name, caption in self.repeated_pairs],
        }
        for title, items in kinds.items():
            if items:
                yield f"{len(items):,} {title}:"
                yield from (f"  {item}" for item in items[:SHOWN])
            if len(items) > SHOWN:
                yield f"  ... and {len(items) - SHOWN:,} more; {rest}"


def smallest_hashes(hashed: Iterable[tuple[str, Item]], most: int) -> list[Item]:
    """Return the items with the smallest hashes in the order they came: a random sample that depends on no order."""
    numbered = ((sha256, number, item) for number, (sha256, item) in enumerate(hashed))
    kept = heapq.nsmallest(most, numbered, key=itemgetter(0, 1))
    return [item for _, _, item in sorted(kept, key=itemgetter(1))]


@dataclass(frozen=True, slots=True)
class FittedPicture:
    """A picture that was fitted, with its vectors."""

    pair: Pair
    sha256: str
    vector: Vectors
    caption_vectors: Vectors


@dataclass(slots=True)
class Sample:
    """Some of the fitted pictures, those with the smallest hashes: the same ones whoever did the work."""

    most: int = field(default_factory=lambda: SAMPLE)
    pictures: list[FittedPicture] = field(default_factory=list)
    """In the order of the input."""

    def take(self, pictures: Iterable[FittedPicture]) -> None:
        """Look at more pictures, and keep some of them."""
        self.pictures = smallest_hashes(((item.sha256, item) for item in (*self.pictures, *pictures)), self.most)


def as_pairs(pairs: Pairs) -> PairFiles | list[Pair]:
    """Return pairs from whatever a user has: a path, ``Pair`` objects, or tuples of picture and caption(s).

    Pairs of the same id are joined: a picture is encoded once, however many captions it has. Those of archives come
    one by one, so that they need not fit into memory.
    """
    if isinstance(pairs, PairFiles):
        return pairs
    if isinstance(pairs, str | Path):
        return PairFiles(pairs)
    if isinstance(pairs, VectorFolder):
        raise InputError(f"{pairs.place} holds vectors: give the pictures and captions they were made of")
    joined: dict[str, Pair] = {}
    for number, given in enumerate(pairs):
        pair = _checked(given, number)
        known = joined.get(pair.id)
        joined[pair.id] = pair if known is None else Pair(known.image, known.captions + pair.captions, known.id)
    if not joined:
        raise InputError("there are no pairs to fit")
    return list(joined.values())


def _checked(given: Any, number: int) -> Pair:
    """Return one pair with its captions on one line each, or say what is wrong with it."""
    if isinstance(given, Pair):
        image, captions, name = given.image, given.captions, given.id
    elif isinstance(given, tuple | list) and len(given) == 2:
        image, captions = given[0], (given[1],) if isinstance(given[1], str) else given[1]
        name = str(image) if isinstance(image, str | Path) else str(number)
    else:
        raise InputError(f"pair {number} is not a Pair, (image, caption) or (image, [captions]): {given!r:.80}")
    if not isinstance(captions, tuple | list) or not captions or not all(isinstance(text, str) for text in captions):
        raise InputError(f"pair {number}: captions are text or a list of texts, not {captions!r:.80}")
    folded = tuple(" ".join(text.split()) for text in captions)
    if not all(folded):
        raise InputError(f"pair {number} has an empty caption")
    return Pair(image, folded, printable(name))
