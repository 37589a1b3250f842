"""Batches for the writer, and what makes it robust: fewer captions, wrong ones, no vector, unknown words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recap.language.prompt import BEGIN, END, PAD, SLOTS, UNKNOWN, VOTERS, Reading, read

CAPTIONS = 5
"""So many captions a picture has as targets."""

LEARNED = 15
"""Targets are learned up to this word: few are longer, and all of a batch are filled up to the longest."""

SORTED = 8
"""So many batches are filled by the length of what is read, so that little of them is padding."""

COMMON = 60
"""The most frequent words are never hidden in slots: a sentence in any domain is held together by them."""


@dataclass(frozen=True)
class Noise:
    """How often training makes the writer's life hard."""

    fewer: float = 0.25
    """Only some of the captions are retrieved."""
    wrong: float = 0.15
    """Some captions are those of a random picture."""
    no_vector: float = 0.12
    no_details: float = 0.2
    """The picture itself is not looked at, as in packs of other encoders."""
    no_captions: float = 0.08
    hidden: float = 0.25
    """A few words are treated as if the vocabulary lacked them."""
    other_map: float = 0.15
    """The vector is that of another map."""
    no_patches: float = 0.4
    """DINOv2 does not look, as in packs of the eyes alone."""


@dataclass
class Corpus:
    """The captions and words that ``prepare`` wrote."""

    folder: Path
    vocabulary: int = field(init=False)
    words: list[str] = field(init=False)
    texts: list[str] = field(init=False)

    def __post_init__(self) -> None:
        content = json.loads((self.folder / "words.json").read_text(encoding="utf-8"))
        self.vocabulary, self.words, self.texts = content["vocabulary"], content["words"], content["texts"]
        saved = np.load(self.folder / "texts.npz")
        self._flat, ends = saved["flat"].tolist(), saved["ends"]
        self._bounds = [0, *ends.tolist()]

    def __getitem__(self, text: int) -> list[int]:
        """Return the words of a caption as numbers; those outside the vocabulary are beyond its size."""
        found: list[int] = self._flat[self._bounds[text] : self._bounds[text + 1]]
        return found

    def __len__(self) -> int:
        return len(self._bounds) - 1


@dataclass(frozen=True)
class Source:
    """Pictures as ``prepare`` wrote them."""

    queries: npt.NDArray[np.float16]
    others: npt.NDArray[np.float16]
    found: npt.NDArray[np.int32]
    own: npt.NDArray[np.int32]
    details: npt.NDArray[np.float16]
    closer: Closer

    @classmethod
    def load(cls, path: Path) -> Source:
        """Read one file of ``prepare``, and the details beside it."""
        saved = np.load(path)
        details, patches = (np.load(path.with_suffix(f".{part}.npy"), mmap_mode="r") for part in ("details", "patches"))
        closer = Closer(saved["closer"], saved["large_queries"], saved["large_found"], patches)
        return cls(saved["queries"], saved["others"], saved["found"], saved["own"], details, closer)


@dataclass(frozen=True)
class Closer:
    """Pictures that DINOv2 has looked at, too: their points and what is retrieved for these, and its patches."""

    there: npt.NDArray[np.bool_]
    queries: npt.NDArray[np.float16]
    found: npt.NDArray[np.int32]
    patches: npt.NDArray[np.float16]


@dataclass(frozen=True)
class Batch:
    """Padded memory inputs, and sentences (pictures, captions, places) with targets where there are any."""

    tokens: Tensor
    shares: Tensor
    places: Tensor
    ranks: Tensor
    vector: Tensor
    known: Tensor
    details: Tensor
    seen: Tensor
    patches: Tensor
    closer: Tensor
    mask: Tensor
    """Added to logits over memory, entries of vector and places first: (pictures, 1, 1, entries)."""
    sentences: Tensor
    targets: Tensor
    """The word after each place; ``PAD`` where nothing is to be learned."""
    slots: list[dict[int, int]]
    """For each picture which word, by its number beyond the vocabulary, each slot stands for."""


@dataclass(frozen=True)
class Example:
    """One picture, ready to be put into a batch."""

    reading: Reading
    vector: npt.NDArray[np.float16]
    known: bool
    details: npt.NDArray[np.float16]
    seen: bool
    patches: npt.NDArray[np.float16]
    closer: bool
    captions: list[list[int]]
    slots: dict[int, int]
    """Which word each slot stands for."""


class Examples:
    """Makes examples of pictures, hard ones when there is noise."""

    def __init__(self, corpus: Corpus, noise: Noise | None, rng: np.random.Generator, *, large: bool = True) -> None:
        """Without noise ``large`` says whether pictures are looked at with DINOv2, too."""
        self.corpus, self.noise, self.rng, self._large = corpus, noise, rng, large

    def example(self, source: Source, row: int) -> Example:
        """Return one picture of a source."""
        closer = bool(source.closer.there[row]) and self._large
        chance = self.rng.random(8) if self.noise is not None else np.ones(8)
        if self.noise is not None and chance[7] < self.noise.no_patches:
            closer = False
        found = (source.closer.found if closer else source.found)[row].tolist()
        own = [text for text in source.own[row].tolist() if text >= 0]
        vector, known, seen = (source.closer.queries if closer else source.queries)[row], True, True
        hidden: set[int] = set()
        if self.noise is not None:
            found = self._harder(found, chance)
            if chance[2] < self.noise.no_vector:
                known = False
            elif chance[3] < self.noise.no_captions:
                found = []
            if chance[4] < self.noise.other_map:
                vector = source.others[row]
            if chance[5] < self.noise.hidden:
                hidden = self._hidden(found, own)
            seen = chance[6] >= self.noise.no_details
            closer = closer and seen
        beyond = len(self.corpus.words)
        captions = [self._words(text, hidden, beyond) for text in found]
        reading = read(captions, self.corpus.vocabulary)
        slots = self._slots(reading)
        targets = [self._target(self._words(text, hidden, beyond), slots) for text in own]
        if self.noise is not None:
            reading = _renumbered(reading, slots, self.corpus.vocabulary)
        looked = source.details[row], seen, source.closer.patches[row], closer
        return Example(reading, vector, known, *looked, targets, {slot: word for word, slot in slots.items()})

    def _harder(self, found: list[int], chance: npt.NDArray[np.float64]) -> list[int]:
        assert self.noise is not None
        if chance[0] < self.noise.fewer:
            count = int(np.exp(self.rng.uniform(0, np.log(VOTERS))))
            kept = np.sort(self.rng.choice(VOTERS, min(VOTERS, 2 * count), replace=False))
            found = [found[place] for place in kept[:count]]
        if chance[1] < self.noise.wrong:
            wrong = self.rng.random(len(found)) < self.rng.uniform(0, 0.4)
            strangers = self.rng.integers(len(self.corpus), size=len(found)).tolist()
            found = [b if bad else a for a, b, bad in zip(found, strangers, wrong, strict=True)]
        return found

    def _hidden(self, found: list[int], own: list[int]) -> set[int]:
        """Return a few words, of the captions or the targets, to be hidden in slots."""
        pool = {word for text in [*found[:8], *own] for word in self.corpus[text] if word >= COMMON}
        candidates = sorted(pool)
        count = min(len(candidates), int(self.rng.integers(1, 7)))
        return {candidates[place] for place in self.rng.permutation(len(candidates))[:count].tolist()}

    def _words(self, text: int, hidden: set[int], beyond: int) -> list[int]:
        sentence = self.corpus[text]
        return [word + beyond if word in hidden else word for word in sentence] if hidden else sentence

    def _slots(self, reading: Reading) -> dict[int, int]:
        """Return for each outside word its slot; shuffled in training so that no slot is a favourite."""
        order = self.rng.permutation(SLOTS) if self.noise is not None else np.arange(SLOTS)
        return {word: self.corpus.vocabulary + int(order[place]) for place, word in enumerate(reading.outside)}

    def _target(self, sentence: list[int], slots: dict[int, int]) -> list[int]:
        size = self.corpus.vocabulary
        return [word if word < size else slots.get(word, UNKNOWN) for word in sentence]


def _renumbered(reading: Reading, slots: dict[int, int], vocabulary: int) -> Reading:
    """Return a reading whose slots are shuffled."""
    table = np.arange(vocabulary + SLOTS)
    for place, word in enumerate(reading.outside):
        table[vocabulary + place] = slots[word]
    return Reading(table[reading.tokens], reading.shares, reading.places, reading.ranks, reading.outside)


def collate(examples: list[Example], front: int) -> Batch:
    """Return examples as one batch; ``front`` entries of memory come before the words."""
    width = max(1, *(len(example.reading.tokens) for example in examples))
    count = len(examples)
    tokens = np.zeros((count, width), np.int64)
    shares = np.zeros((count, width), np.float32)
    places, ranks = tokens.copy(), tokens.copy()
    mask = np.full((count, 1, 1, front + width), -np.inf, np.float32)
    mask[..., :front] = 0
    # an empty memory still has one entry to look at, so that no softmax is over nothing
    mask[:, :, :, front] = 0
    for row, example in enumerate(examples):
        reading, size = example.reading, len(example.reading.tokens)
        tokens[row, :size], shares[row, :size] = reading.tokens, reading.shares
        places[row, :size], ranks[row, :size] = reading.places, reading.ranks
        mask[row, ..., front : front + size] = 0
    longest = min(LEARNED, 1 + max(len(caption) for example in examples for caption in example.captions))
    sentences = np.full((count, CAPTIONS, longest), PAD, np.int64)
    targets = sentences.copy()
    for row, example in enumerate(examples):
        for place, caption in enumerate(example.captions):
            whole = [BEGIN, *caption, END][: longest + 1]
            sentences[row, place, : len(whole) - 1] = whole[:-1]
            targets[row, place, : len(whole) - 1] = whole[1:]
    targets[targets == UNKNOWN] = PAD
    as_tensor = torch.from_numpy
    return Batch(
        as_tensor(tokens),
        as_tensor(shares),
        as_tensor(places),
        as_tensor(ranks),
        _stacked([example.vector for example in examples]),
        torch.tensor([float(example.known) for example in examples]),
        _stacked([example.details for example in examples]),
        torch.tensor([float(example.seen) for example in examples]),
        _stacked([example.patches for example in examples]),
        torch.tensor([float(example.closer) for example in examples]),
        as_tensor(mask),
        as_tensor(sentences),
        as_tensor(targets),
        [example.slots for example in examples],
    )


def _stacked(rows: list[npt.NDArray[np.float16]]) -> Tensor:
    return torch.from_numpy(np.stack(rows).astype(np.float32))


def shuffled(sources: list[tuple[Source, float]], size: int, examples: Examples, front: int) -> Iterator[Batch]:
    """Yield training batches without end; the number beside a source says how often each of its pictures comes."""
    while True:
        rows = [
            (place, row)
            for place, (source, often) in enumerate(sources)
            for row in range(len(source.own))
            for _ in range(int(often) + (examples.rng.random() < often % 1))
        ]
        order = examples.rng.permutation(len(rows))
        for start in range(0, len(order) - size * SORTED + 1, size * SORTED):
            chosen = [rows[index] for index in order[start : start + size * SORTED]]
            made = [examples.example(sources[place][0], row) for place, row in chosen]
            made.sort(key=lambda example: len(example.reading.tokens))
            for number in examples.rng.permutation(SORTED):
                yield collate(made[number * size : (number + 1) * size], front)
