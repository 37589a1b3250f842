"""Pairs on their way into a pack: checked, sampled, new ones told from old, and summed up in statistics.

Passes over shards of vectors are done in parts. To tell which pictures and captions come for the first time only hashes
of each shard are sent, and what is first is decided from all of them, in the order of the input.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from recap.alignment import PairStatistics
from recap.datasets import PairFiles, printable
from recap.datastore.base import unit_rows
from recap.errors import InputError
from recap.files import progress_bar
from recap.fitting.vectors import Block, Space, VectorFolder, read_shard
from recap.types import ImageLike, Pair, Vectors

Item = TypeVar("Item")
PairLike = Pair | tuple[ImageLike, str | Sequence[str]]
Pairs = Iterable[PairLike] | PairFiles | VectorFolder | str | Path

SAMPLE = 200
"""Number of pictures a pack is calibrated on: some seconds with the writer, and 960 captions for six numbers."""

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


Hashes: TypeAlias = npt.NDArray[np.uint64]
"""Two numbers a row: 128 bits, so that two contents never have the same."""
Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]

LEAVES = 64
"""Number of groups of shards whose statistics are added up; more where there are more machines."""

ABSENT, FITTED, HELD_OUT, WITHHELD = range(4)
"""What becomes of a picture: it cannot be used; it is fitted; it is held out; it is one of the validation pairs."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What is known of a shard without its vectors."""

    contents: Hashes
    """One for each row; zero where there is no picture or no caption."""
    captions: Hashes
    """One for each caption, of picture and caption together."""
    counts: Places
    """How many captions each row has."""
    roles: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KnownPairs:
    """Pairs that came before, and are left out now."""

    names: Sequence[str]
    keys: Keys


@dataclass(frozen=True, slots=True)
class Leaf:
    """Some shards, with the captions of each that are fitted: bits in the order of the shard."""

    space: Space
    shards: tuple[tuple[str, npt.NDArray[np.uint8]], ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """What of a shard is used."""

    new: Mask
    """Which captions come with this picture for the first time."""
    roles: npt.NDArray[np.uint8]
    first: Places
    """For each row the number of the row, among those of all shards, that has its content first."""
    counts: Places

    def fitted(self) -> Mask:
        """Return which captions are fitted."""
        fitted: Mask = self.new & np.repeat(self.roles == FITTED, self.counts)
        return fitted

    def rows(self, start: int, stop: int, caption: int) -> Selected:
        """Return what of some rows is used; ``caption`` says how many captions come before them."""
        part = slice(start, stop)
        counts = self.counts[part]
        new = self.new[caption : caption + int(counts.sum())]
        return Selected(new, self.roles[part], self.first[part], counts)


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """Reads the keys of shards."""

    share: float = 0.0
    """Of the pictures that are held out."""
    withheld: frozenset[str] = frozenset()
    """Contents of the validation pairs."""

    def __call__(self) -> Callable[[str], Keys]:
        """Return what reads a shard."""
        return self.read

    def read(self, place: str) -> Keys:
        """Return the keys of a shard."""
        rows = []
        for block in read_shard(place, ("sha256", "error", "captions")):
            for sha, error, texts in zip(block.texts("sha256"), block.texts("error"), block.captions, strict=True):
                rows.append((sha, texts, self._role(sha, bool(error) or not texts)))
        return keys_of(rows)

    def _role(self, sha: str, unusable: bool) -> int:
        if unusable or not sha:
            return ABSENT
        if sha in self.withheld:
            return WITHHELD
        return HELD_OUT if is_held_out(sha, self.share) else FITTED


def is_held_out(sha256: str, share: float) -> bool:
    """Tell whether a picture is among the share that is held out; its content alone decides."""
    return int(sha256[:13], 16) / 16**13 < share


def keys_of(rows: Iterable[tuple[str, Sequence[str], int]]) -> Keys:
    """Return the keys of pictures, given as the hash of the content, the captions and the role."""
    contents, captions, counts, roles = [], [], [], []
    for sha, texts, role in rows:
        contents.append(bytes.fromhex(sha)[:16] if sha and (texts or role == FITTED) else bytes(16))
        captions += [hashlib.blake2b(f"{sha} {text}".encode(), digest_size=16).digest() for text in texts]
        counts.append(len(texts))
        roles.append(role)
    return Keys(_hashes(contents), _hashes(captions), np.array(counts, np.int64), np.array(roles, np.uint8))


def select(shards: Sequence[Keys]) -> Iterator[Selected]:
    """Decide for all shards, in their order, what is new."""
    contents, captions = (np.concatenate([getattr(keys, name) for keys in shards]) for name in ("contents", "captions"))
    counts = np.concatenate([keys.counts for keys in shards])
    # rows without content repeat nothing, though their hashes are alike
    known = contents.any(axis=1)
    first = np.where(known, first_places(contents), np.arange(len(contents)))
    new = (first_places(captions) == np.arange(len(captions))) & np.repeat(known, counts)
    row = caption = 0
    for keys in shards:
        rows, texts = slice(row, row + len(keys.counts)), slice(caption, caption + len(keys.captions))
        yield Selected(new[texts], keys.roles, first[rows], keys.counts)
        row, caption = rows.stop, texts.stop


def first_places(hashes: Hashes) -> Places:
    """Return for each row the place of the first row that is the same."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (hashes[order[1:]] != hashes[order[:-1]]).any(axis=1)
    places = np.empty(len(order), np.int64)
    # sorting is stable: of equal rows the first of all comes first
    places[order] = order[begins][np.cumsum(begins) - 1]
    return places


def _hashes(digests: Sequence[bytes]) -> Hashes:
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def select_pairs(
    folder: VectorFolder,
    share: float = 0.0,
    withheld: frozenset[str] = frozenset(),
    *,
    known: KnownPairs | None = None,
    progress: bool = False,
) -> list[Selected]:
    """Return for each shard what of it is used."""
    keys: list[Keys | None] = [None] * len(folder.shards)
    found = folder.runner.map(ReadKeys(share, withheld), folder.shards)
    hidden = len(keys) < 2 or not progress
    for number, read in progress_bar(found, total=len(keys), desc="shards", progress=not hidden):
        keys[number] = read
    before = [] if known is None else [known.keys]
    return list(select([*before, *(read for read in keys if read is not None)]))[len(before) :]


def sum_statistics(folder: VectorFolder, shards: Sequence[Selected]) -> PairStatistics:
    """Return the statistics of all pairs that are fitted, added up in a tree."""
    todo = [
        (place, np.packbits(part.fitted()))
        for place, part in zip(folder.shards, shards, strict=True)
        if part.fitted().any()
    ]
    step = -(-len(todo) // max(LEAVES, 4 * folder.runner.devices()))
    leaves = [Leaf(folder.space, tuple(todo[start : start + step])) for start in range(0, len(todo), step)]
    return folder.runner.total(leaf_statistics, leaves, add_statistics)


def leaf_statistics(leaf: Leaf) -> PairStatistics:
    """Return the statistics of the fitted pairs of some shards; one block of rows is in memory at a time."""
    total = no_statistics(leaf.space)
    for place, bits in leaf.shards:
        start, used = 0, np.unpackbits(bits).astype(bool)
        for block in read_shard(place, ("image_vector", "caption_vectors")):
            counts = block.counts
            stop = start + int(counts.sum())
            fitted, start = used[start:stop], stop
            if fitted.any():
                _update(total, block, counts, fitted)
    return total


def add_statistics(*parts: PairStatistics) -> PairStatistics:
    """Return the sum of statistics, which stay as they are: those of other processes cannot be changed."""
    total = parts[0].zeros_like()
    for part in parts:
        total.merge(part)
    return total


def no_statistics(space: Space) -> PairStatistics:
    """Return statistics of no pairs, for vectors of a space."""
    return PairStatistics.zeros(
        space.image_dimension,
        space.text_dimension,
        image_encoder=space.image_fingerprint,
        text_encoder=space.text_fingerprint,
    )


def _update(total: PairStatistics, block: Block, counts: npt.NDArray[np.int64], fitted: Mask) -> None:
    owners = np.repeat(np.arange(len(counts)), counts)
    left = np.bincount(owners[fitted], minlength=len(counts))
    rows = np.flatnonzero(left)
    # in float64 and from rows as the datastore keeps them, so that the same can be subtracted again
    texts = unit_rows(block.caption_vectors[fitted], total.d_text, "caption vectors").astype(np.float64)
    total.update(block.image_vectors[rows].astype(np.float64), texts, counts=left[rows])
