"""Pictures on their way into a pack: read, hashed, compared with those before, and encoded."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from PIL import Image
from tqdm import tqdm

from recap.datasets import PairFiles
from recap.encoders import Encoder
from recap.encoders.images import digest, label, read
from recap.errors import ImageError, InputError
from recap.types import Pair, Vectors

Item = TypeVar("Item")

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
    """Pictures that were kept apart to measure with."""
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


@dataclass(frozen=True, slots=True)
class Incoming:
    """A picture that could be read, with the captions that are new for it."""

    pair: Pair
    sha256: str
    """Of the content, by which the same picture is known again under another name."""
    content: bytes | Image.Image


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


@dataclass(slots=True)
class Intake:
    """Reads pairs one after the other, leaves out what it has seen, and remembers what was wrong."""

    broken: list[InputError] = field(default_factory=list)
    repeated_pictures: list[tuple[str, str]] = field(default_factory=list)
    repeated_pairs: list[tuple[str, str]] = field(default_factory=list)
    _first: dict[str, str] = field(default_factory=dict)
    """The first name of each content."""
    _seen: set[bytes] = field(default_factory=set)
    """Short hashes of content and caption together."""

    def remember(self, name: str, sha256: str, captions: Iterable[str]) -> tuple[str, ...]:
        """Take note of a picture and its captions, and return the captions that are new for this content."""
        first = self._first.setdefault(sha256, name)
        if first != name:
            self.repeated_pictures.append((name, first))
        new = []
        for caption in captions:
            key = hashlib.blake2b(f"{sha256} {caption}".encode(), digest_size=12).digest()
            if key in self._seen:
                self.repeated_pairs.append((name, caption))
            else:
                self._seen.add(key)
                new.append(caption)
        return tuple(new)

    def encoded(
        self, pairs: Iterable[Pair], encoder: Encoder, *, withheld: frozenset[str] = frozenset(), progress: bool = False
    ) -> Iterator[tuple[Incoming, Vectors]]:
        """Yield the usable pairs with their image vectors; contents in ``withheld`` are passed over."""
        broken = pairs.broken if isinstance(pairs, PairFiles) else []
        waiting: deque[Incoming] = deque()

        def contents() -> Iterator[bytes | Image.Image]:
            for item in self._read(tqdm(pairs, desc="pairs", unit="image", disable=None if progress else True)):
                if item.sha256 not in withheld:
                    waiting.append(item)
                    yield item.content

        for vector in encoder.encode_each(contents()):
            item = waiting.popleft()
            if isinstance(vector, ImageError):
                self.broken.append(_named(vector, item))
            else:
                yield replace(item, content=b""), vector
        self.broken += broken

    def _read(self, pairs: Iterable[Pair]) -> Iterator[Incoming]:
        for pair in pairs:
            try:
                content = read(pair.image)
                sha256 = digest(content, pair.id).hex()
            except ImageError as error:
                self.broken.append(error)
                continue
            captions = self.remember(pair.id, sha256, pair.captions)
            if captions:
                yield Incoming(replace(pair, captions=captions), sha256, content)


def _named(error: ImageError, item: Incoming) -> ImageError:
    """Name the picture by its path or id; the encoder was given its content only."""
    name = str(item.pair.image) if not isinstance(item.pair.image, bytes | Image.Image) else item.pair.id
    return ImageError(str(error).replace(label(item.content), name, 1))
