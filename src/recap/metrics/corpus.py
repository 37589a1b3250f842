"""Candidates and references, tokenised once for every metric that counts words; what a metric returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from recap.errors import InputError, RecapWarning
from recap.metrics.ngrams import (
    Floats,
    GroupedCounts,
    Ints,
    Mask,
    NgramCounts,
    NgramTable,
    Sentences,
    offsets_of,
    ranges,
)
from recap.metrics.tokenizer import Pieces, encode

ImageIndex: TypeAlias = "Sequence[int] | npt.NDArray[np.integer]"
"""For each candidate the number of its image."""

Spaced: TypeAlias = dict[int, list[int]]
"""Tokens that hold white space, and the words they fall into."""


@dataclass(frozen=True, eq=False)
class References:
    """The references of some images, prepared so that any number of candidates can be scored against them."""

    vocabulary: dict[str, int]
    tokens: Sentences
    """All references, image after image, as the tokenizer split them."""
    words: Sentences
    """The same as BLEU and CIDEr see them: a token with white space in it is several words."""
    spaced: Spaced
    first: Ints
    """Those of image ``i`` are ``first[i] : first[i + 1]``."""
    pieces: Pieces
    """What the tokenizer has seen already."""

    @classmethod
    def of(cls, references: Sequence[Sequence[str]]) -> References:
        """Tokenise and number the references of each image."""
        check_references(references)
        vocabulary: dict[str, int] = {}
        pieces = Pieces()
        tokens = encode([text for texts in references for text in texts], vocabulary, pieces)
        spaced = _find_spaced(vocabulary, 0)
        first = offsets_of(np.array([len(texts) for texts in references]))
        return cls(vocabulary, tokens, _split_spaced(tokens, spaced), spaced, first, pieces)

    def __len__(self) -> int:
        """The number of images."""
        return len(self.first) - 1

    @property
    def image(self) -> Ints:
        """The image of each reference."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @property
    def table(self) -> NgramTable:
        """The n-grams of the references."""
        return self._counted[0]

    @property
    def counts(self) -> list[GroupedCounts]:
        """For n = 1, 2, ... the counts of n-grams in references."""
        return self._counted[1]

    @cached_property
    def _counted(self) -> tuple[NgramTable, list[GroupedCounts]]:
        table, counts = NgramTable.build(self.words, len(self.vocabulary))
        return table, [GroupedCounts.of(level, self.image) for level in counts]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every candidate with every reference of its image."""

    candidate: Ints
    reference: Ints
    starts: Ints
    """Where the pairs of each candidate start."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Candidates beside the references they are judged by."""

    references: References
    tokens: Sentences
    words: Sentences
    image: Ints
    """The image of each candidate."""
    vocabulary: dict[str, int]
    """That of the references, and the words that only candidates use."""

    @classmethod
    def of(
        cls,
        candidates: Sequence[str],
        references: References | Sequence[Sequence[str]],
        image_index: ImageIndex | None = None,
    ) -> Corpus:
        """Tokenise candidates: candidate ``i`` belongs to image ``i``, or to ``image_index[i]`` when that is given."""
        prepared = references if isinstance(references, References) else References.of(references)
        image = image_numbers(candidates, len(prepared), image_index)
        vocabulary = dict(prepared.vocabulary)
        tokens = encode(candidates, vocabulary, prepared.pieces)
        spaced = prepared.spaced | _find_spaced(vocabulary, len(prepared.vocabulary))
        empty = int(np.count_nonzero(tokens.lengths == 0))
        if empty:
            message = f"{empty} of {len(candidates)} candidates hold no word; they score 0"
            warnings.warn(message, MetricWarning, stacklevel=3)
        return cls(prepared, tokens, _split_spaced(tokens, spaced), image, vocabulary)

    def __len__(self) -> int:
        """The number of candidates."""
        return len(self.image)

    @cached_property
    def pairs(self) -> Pairs:
        """Every candidate with every reference of its image."""
        first = self.references.first[self.image]
        many = self.references.first[self.image + 1] - first
        candidate = np.repeat(np.arange(len(self)), many)
        return Pairs(candidate, ranges(first, first + many), np.cumsum(many) - many)

    @property
    def counts(self) -> list[NgramCounts]:
        """For n = 1, 2, ... the counts of n-grams in candidates, with the ids of the references' table."""
        return self._counted[0]

    @property
    def new_pairs(self) -> list[Ints]:
        """For n = 2, 3, ... the n-grams that only candidates have."""
        return self._counted[1]

    @cached_property
    def _counted(self) -> tuple[list[NgramCounts], list[Ints]]:
        return self.references.table.count(self.words)

    @cached_property
    def found(self) -> list[tuple[Mask, Ints]]:
        """For n = 1, 2, ... which entries of ``counts`` occur in references of the image, and where they do."""
        levels = zip(self.counts, self.references.counts, strict=True)
        return [grouped.find(counts.gram, self.image[counts.sentence]) for counts, grouped in levels]


def _find_spaced(vocabulary: dict[str, int], known: int) -> Spaced:
    """Find tokens with white space, such as the no-break space in ``22 3/4``, among those numbered ``known`` and up.

    coco-caption splits sentences at any white space for BLEU and CIDEr, and at the plain space only for ROUGE-L.
    """
    new = [(word.split(), index) for word, index in islice(vocabulary.items(), known, None)]
    return {
        index: [vocabulary.setdefault(part, len(vocabulary)) for part in parts]
        for parts, index in new
        if len(parts) > 1
    }


def _split_spaced(tokens: Sentences, spaced: Spaced) -> Sentences:
    """Replace tokens that hold white space by their words."""
    is_spaced = np.zeros(int(tokens.words.max(initial=-1)) + 1, bool)
    is_spaced[[index for index in spaced if index < len(is_spaced)]] = True
    places = np.flatnonzero(is_spaced[tokens.words])
    if not len(places):
        return tokens
    parts = [spaced[index] for index in tokens.words[places].tolist()]
    words = tokens.words.copy()
    words[places] = [part[0] for part in parts]
    more = np.array([len(part) - 1 for part in parts])
    rest = [word for part in parts for word in part[1:]]
    added = offsets_of(more)[np.searchsorted(places, tokens.offsets)]
    return Sentences(np.insert(words, np.repeat(places + 1, more), rest), tokens.offsets + added)


def check_references(references: Sequence[Sequence[str]]) -> None:
    """Raise unless every image has references."""
    if not len(references):
        raise InputError("there are no references: give a list of reference captions for each image")
    for index, texts in enumerate(references):
        if isinstance(texts, str):
            raise InputError(f"references[{index}] is a string: give a list of strings for each image")
        if not len(texts):
            raise InputError(f"image {index} has no reference: leave it out or give it at least one")


def image_numbers(candidates: Sequence[str], images: int, image_index: ImageIndex | None) -> Ints:
    """Return the image of each candidate: ``i`` for candidate ``i``, or what ``image_index`` says, checked."""
    if isinstance(candidates, str) or not len(candidates):
        raise InputError("candidates must be a list of at least one string")
    if image_index is None:
        if len(candidates) != images:
            raise InputError(f"{len(candidates)} candidates but references of {images} images: give one for each image")
        return np.arange(images)
    image = np.asarray(image_index)
    if image.shape != (len(candidates),) or not np.issubdtype(image.dtype, np.integer):
        raise InputError(f"image_index must hold one integer for each of the {len(candidates)} candidates")
    if image.min() < 0 or image.max() >= images:
        raise InputError(f"image_index must lie between 0 and {images - 1}")
    return image.astype(np.int64)


NO_POINTS = ("MID", "CLIPScore (100 cos)")
"""Metrics that are no fractions, and are shown as they are."""


def in_points(name: str, value: float) -> float:
    """Return a score as it is shown everywhere: in points, a hundred times the fraction that a metric computes."""
    return value if name in NO_POINTS else 100 * value


class MetricWarning(RecapWarning):
    """A metric was computed, but the number means less than it seems to."""


@dataclass(frozen=True, slots=True, repr=False)
class MetricResult:
    """A metric over a corpus and for each candidate."""

    name: str
    value: float
    """The corpus value."""
    per_image: Floats
    """One value for each candidate, in the order they were given."""
    standard_error: float
    """Of ``value``, from the spread over candidates; NaN when there is only one."""

    def __repr__(self) -> str:
        value, error = (in_points(self.name, number) for number in (self.value, self.standard_error))
        return f"MetricResult({self.name!r}, {value:.1f} ± {error:.1f} points, {len(self.per_image):,} captions)"


def mean_result(name: str, per_image: Floats) -> MetricResult:
    """Make the result of a metric whose corpus value is the mean over candidates."""
    return MetricResult(name, float(per_image.mean()), per_image, mean_standard_error(per_image))


def known_mean(name: str, per_image: Floats) -> MetricResult:
    """Make the result of a metric that has no value (NaN) for some candidates: the mean over the others."""
    known = per_image[np.isfinite(per_image)]
    value = float(known.mean()) if len(known) else float("nan")
    return MetricResult(name, value, per_image, mean_standard_error(known))


def mean_standard_error(values: Floats) -> float:
    """Return the standard error of the mean: the sample deviation over the root of the number of values."""
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def bootstrap_sums(rows: Floats, statistic: Callable[[Floats], Floats], *, replicates: int, seed: int) -> Floats:
    """Apply ``statistic`` to column sums of ``rows`` drawn again with replacement.

    ``statistic`` takes (replicates, columns) sums and returns one row for each; all replicates together are returned.
    A corpus value that depends on the rows through their sums only needs no second look at the sentences.
    """
    generator = np.random.default_rng(seed)
    count = len(rows)
    sums = np.empty((replicates, rows.shape[1]))
    for replicate in range(replicates):
        drawn = generator.integers(0, count, count)
        sums[replicate] = np.bincount(drawn, minlength=count) @ rows
    return statistic(sums)
