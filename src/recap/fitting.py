"""Pairs of pictures and captions in; statistics and a datastore out, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from recap.alignment import LinearAlignment, PairStatistics
from recap.datasets import printable, read_pairs
from recap.datastore import CaptionStore, Datastore
from recap.encoders import Encoder
from recap.errors import ImageError, InputError, RecapWarning
from recap.language import WorkedExample
from recap.types import ImageLike, Pair, Vectors

BLOCK = 512
"""So many pairs are encoded and taken up at a time."""

EXAMPLES = 3
"""A pack keeps so many worked examples,"""

EXAMPLE_CAPTIONS = 8
"""each with so many retrieved captions."""

PairLike = Pair | tuple[ImageLike, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """What is left of the pairs once they have been encoded."""

    statistics: PairStatistics
    datastore: Datastore
    samples: tuple[tuple[Pair, Vectors], ...]
    """A few pairs with their image vectors, for worked examples."""
    problems: tuple[ImageError, ...]


def as_pairs(pairs: Iterable[PairLike] | str | Path) -> list[Pair]:
    """Return pairs from whatever a user has: a path, ``Pair`` objects, or tuples of picture and caption(s).

    Pairs of the same id are joined: a picture is encoded once, however many captions it has.
    """
    if isinstance(pairs, str | Path):
        return read_pairs(pairs)
    joined: dict[str, Pair] = {}
    for number, given in enumerate(pairs):
        pair = _checked(given, number)
        known = joined.get(pair.id)
        joined[pair.id] = pair if known is None else Pair(known.image, known.captions + pair.captions, known.id)
    if not joined:
        raise InputError("there are no pairs to fit")
    return list(joined.values())


def empty_statistics(encoder: Encoder) -> PairStatistics:
    """Return statistics of no pairs, for vectors of this encoder."""
    return PairStatistics.zeros(
        encoder.image.dimension,
        encoder.text.dimension,
        image_encoder=encoder.image.fingerprint,
        text_encoder=encoder.text.fingerprint,
    )


def encode_pairs(
    pairs: Iterable[PairLike] | str | Path, encoder: Encoder, *, source: str = "", progress: bool = False
) -> EncodedPairs:
    """Encode pairs block by block; a picture that cannot be read is left out and reported."""
    known = as_pairs(pairs)
    statistics = empty_statistics(encoder)
    datastore = Datastore(encoder.text.dimension, encoder=encoder.text.name, fingerprint=encoder.text.fingerprint)
    wanted = set(np.linspace(0, len(known) - 1, EXAMPLES + 2, dtype=int)[1:-1].tolist())
    samples: list[tuple[Pair, Vectors]] = []
    problems: list[ImageError] = []
    block: list[tuple[Pair, Vectors]] = []
    for number, (pair, vector) in enumerate(_encoded(known, encoder, progress)):
        if isinstance(vector, ImageError):
            problems.append(vector)
            continue
        block.append((pair, vector))
        if number in wanted:
            samples.append((pair, vector))
        if len(block) == BLOCK:
            _take_up(block, encoder, statistics, datastore, source)
            block = []
    _take_up(block, encoder, statistics, datastore, source)
    if not len(datastore):
        raise InputError(f"none of the {len(known)} pictures could be read; the first: {problems[0]}")
    _warn(len(known), len(problems), encoder)
    return EncodedPairs(statistics, datastore, tuple(samples), tuple(problems))


def worked_examples(
    samples: Sequence[tuple[Pair, Vectors]], alignment: LinearAlignment, datastore: CaptionStore
) -> tuple[WorkedExample, ...]:
    """Return for a few fitted pairs what would have been retrieved without them, and what a person wrote."""
    if not samples:
        return ()
    queries = alignment.transform(np.stack([vector for _, vector in samples]))
    found = datastore.search(queries, EXAMPLE_CAPTIONS, exclude_image_ids=[pair.id for pair, _ in samples])
    examples = []
    for (pair, _), ids, similarities in zip(samples, found.ids, found.similarities, strict=True):
        captions = tuple(item.text for item in datastore.evidence(ids, similarities))
        if captions:
            examples.append(WorkedExample(captions, pair.captions[0]))
    return tuple(examples)


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


def _warn(pictures: int, unreadable: int, encoder: Encoder) -> None:
    if unreadable:
        warnings.warn(f"{unreadable} of {pictures} pictures could not be read", RecapWarning, stacklevel=4)
    if encoder.text.truncated:
        warnings.warn(
            f"{encoder.text.truncated} captions are longer than the window of {encoder.text.name} and were cut",
            RecapWarning,
            stacklevel=4,
        )
    if pictures - unreadable < encoder.image.dimension:
        warnings.warn(
            f"{pictures - unreadable} pictures are few to align {encoder.image.dimension} dimensions: expect rough "
            "captions for new pictures; a thousand or more do better",
            RecapWarning,
            stacklevel=4,
        )


def _encoded(pairs: Sequence[Pair], encoder: Encoder, progress: bool) -> Iterator[tuple[Pair, Vectors | ImageError]]:
    vectors = encoder.encode_each(pair.image for pair in pairs)
    shown = tqdm(pairs, desc="encoding pairs", unit="image", disable=None if progress else True)
    yield from zip(shown, vectors, strict=True)


def _take_up(
    block: Sequence[tuple[Pair, Vectors]],
    encoder: Encoder,
    statistics: PairStatistics,
    datastore: Datastore,
    source: str,
) -> None:
    if not block:
        return
    owners = [row for row, (pair, _) in enumerate(block) for _ in pair.captions]
    captions = [caption for pair, _ in block for caption in pair.captions]
    texts = encoder.encode_texts(captions)
    statistics.update(np.stack([vector for _, vector in block]), texts, groups=owners)
    datastore.add(captions, texts, source=source, image_ids=[block[row][0].id for row in owners])
