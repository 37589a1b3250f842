"""The writer: the caption language model inside the package, some million parameters on onnxruntime.

It reads the retrieved captions and, where they come from the encoder it was trained with, the image's point in caption
space and what the encoder saw in each place of the image. A prompt is read once; then all of its sentences grow word by
word together, each word either from the vocabulary or copied from the captions, which is how it says words it never
saw. ``tools/train_writer.py`` made it.

The nearest captions are read word by word. All of them vote for words, the nearer ones with more weight, and the words
with most votes are read too, each with its share. A word the writer's vocabulary lacks takes a slot: a nameless word
that can be read and copied like any other, and gets its name back when the sentence is written out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.encoders.network import cores
from recap.encoders.onnx import open_sessions
from recap.errors import AssetError, InputError
from recap.language.base import Decoding, draw_tokens, files_fingerprint, uniforms
from recap.language.words import Phrases, join_words, surface_words, triples_of, words
from recap.types import Draft, Prompt

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")

SLOTS = 32
"""Number of words outside the vocabulary that can be told apart in one prompt."""
SEQUENCES = 8
"""Number of captions that are read word by word."""
LENGTH = 18
"""Number of words of them that are read."""
BAG = 40
"""Number of words that are read for their votes."""
VOTERS = 100
"""Number of captions that vote."""

_RANK_OFFSET = 20

CLICHES = ("sitting on top", "sits on top", "sit on top", "laying on top")
"""Said by the writer ten times as often as by people, where "on" says the same."""

_LITTLE = "a an and are at by for from her his in is it its of on one or that the their there to two with"
LITTLE_WORDS = frozenset(_LITTLE.split())
"""Words that a sentence may well say twice."""

STRANGE = 16.0
"""What three words in a row that nobody wrote take from the log-probability of a sentence."""

FILES = ("read.onnx", "step.onnx", "config.json", "phrases.bin")
FOLDER = Path(__file__).parent.parent / "data" / "writer"

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reading:
    """The memory of one prompt, an entry for each word read."""

    tokens: Ints
    """Words by their number in the vocabulary; slots come after it."""
    shares: Floats
    """Each word's share of the votes."""
    places: Ints
    """Where in its caption each word stands; ``LENGTH`` for words read for their votes alone."""
    ranks: Ints
    """Which caption each word stands in, the nearest is 0; ``SEQUENCES`` for words read for their votes alone."""
    outside: tuple[int, ...]
    """The numbers, beyond the vocabulary, of the words in the slots."""


def read(captions: Sequence[Sequence[int]], vocabulary: int) -> Reading:
    """Return the memory for retrieved captions, nearest first.

    Args:
        captions: the words of each as numbers. Those below ``vocabulary`` are known, and all others stand for words
            outside it.
        vocabulary: the size of the vocabulary.
    """
    shares = _shares(captions[:VOTERS])
    voted = sorted(shares, key=lambda word: (-shares[word], word))
    outside = tuple(word for word in voted if word >= vocabulary)[:SLOTS]
    slot = {word: vocabulary + place for place, word in enumerate(outside)}
    rows = [
        (word, place, rank)
        for rank, caption in enumerate(captions[:SEQUENCES])
        for place, word in enumerate(caption[:LENGTH])
    ]
    rows += [(word, LENGTH, SEQUENCES) for word in voted[:BAG]]
    return Reading(
        tokens=np.array([word if word < vocabulary else slot.get(word, UNKNOWN) for word, _, _ in rows], np.int64),
        shares=np.array([shares[word] for word, _, _ in rows], np.float32),
        places=np.array([place for _, place, _ in rows], np.int64),
        ranks=np.array([rank for _, _, rank in rows], np.int64),
        outside=outside,
    )


def _shares(captions: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return for each word the share of the captions, nearer ones counting more, that use it."""
    weights = [1 / (rank + _RANK_OFFSET) for rank in range(len(captions))]
    votes: dict[int, float] = {}
    for weight, caption in zip(weights, captions, strict=True):
        for word in set(caption):
            votes[word] = votes.get(word, 0.0) + weight
    total = sum(weights)
    return {word: vote / total for word, vote in votes.items()}


@dataclass(frozen=True)
class _Config:
    """What ``config.json`` says."""

    vocabulary: list[str]
    text_encoder: str
    """The fingerprint of the text encoder whose caption space the writer knows."""
    sight: str
    """The fingerprint of the details of an image that the writer knows."""
    details: int
    longest: int
    layers: int
    heads: int
    width: int
    vector: int

    @classmethod
    def load(cls, folder: Path) -> _Config:
        try:
            return cls(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise AssetError(f"{folder} holds no writer, or a broken one ({error}); install recap again") from error

    def empty_past(self, sentences: int) -> Floats:
        """Return keys and values of sentences that have not begun."""
        return np.zeros((self.layers, 2, sentences, self.heads, 0, self.width // self.heads), np.float32)


class WriterModel:
    """The writer of a folder with the files of ``FILES``; by default the packaged one."""

    name = "writer"
    completes = False
    reads_pool = True
    selection = "likely"
    """The rule that suits its drafts: their log-probabilities are those of captions, so they say what is natural."""

    def __init__(self, folder: Path = FOLDER, *, threads: int | None = None) -> None:
        self._folder = folder
        self._config = _Config.load(folder)
        self._vocabulary = self._config.vocabulary
        self.sight = self._config.sight
        """The fingerprint of the details of an image that it can read."""
        self._number = {word: number for number, word in enumerate(self._vocabulary)}
        self._cliches = _followers(CLICHES, self._number)
        self._forms = cache(self._find_forms)  # asked for every word of every draft, at every step
        self._phrases = Phrases.load(folder / "phrases.bin")
        self._workers = threads or cores()
        # the products are small: several threads would wait for each other most of the time
        try:
            self._read, self._step = open_sessions([folder / "read.onnx", folder / "step.onnx"])
        except InputError as error:
            raise AssetError(f"{error}; install recap again") from error

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights, the vocabulary and the phrases it avoids."""
        return files_fingerprint([self._folder / name for name in FILES], "writer", *CLICHES)

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``.

        Their log-probabilities are the model's, less ``STRANGE`` for what nobody wrote.
        """
        if len(prompts) < 2 or self._workers < 2:
            return [self._write_one(prompt, decoding) for prompt in prompts]
        # each prompt by itself, so that its drafts depend on it alone, but several at a time
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda prompt: self._write_one(prompt, decoding), prompts))

    def familiarity(self, captions: Sequence[str]) -> float:
        """Return the share of the words of captions that it knows."""
        said = [word in self._number for caption in captions for word in words(caption)]
        return sum(said) / max(1, len(said))

    def _write_one(self, prompt: Prompt, decoding: Decoding) -> list[Draft]:
        captions = list(prompt.pool or prompt.captions)[:VOTERS]
        numbered, names = self._numbers(captions)
        reading = read(numbered, len(self._vocabulary))
        grown = self._grow(reading, self._picture(prompt), uniforms(decoding, prompt.text), decoding)
        style = Style(captions)
        slots = {len(self._vocabulary) + place: names[word] for place, word in enumerate(reading.outside)}
        written = {triple for caption in numbered for triple in triples_of(caption, BEGIN, END)}
        return [
            Draft(
                style.sentence([slots.get(number) or self._vocabulary[number] for number in sentence]),
                logprob - STRANGE * self._count_strange(sentence, written),
            )
            for sentence, logprob in grown
        ]

    def _count_strange(self, sentence: Sequence[int], written: Container[tuple[int, int, int]]) -> int:
        """Return how often three words follow each other as nobody wrote them, here or in what was learned from.

        Of words outside the vocabulary nothing can be said.
        """
        known = len(self._vocabulary)
        new = [three for three in triples_of(sentence, BEGIN, END) if max(three) < known and three not in written]
        return int((~self._phrases.have(new)).sum()) if new else 0

    def _numbers(self, captions: Sequence[str]) -> tuple[list[list[int]], dict[int, str]]:
        """Return captions as numbers, and which words those beyond the vocabulary are."""
        outside: dict[str, int] = {}
        numbered = []
        for caption in captions:
            sentence = []
            for word in words(caption):
                known = self._number.get(word)
                if known is None:
                    known = outside.setdefault(word, len(self._vocabulary) + len(outside))
                sentence.append(known)
            numbered.append(sentence)
        return numbered, {number: word for word, number in outside.items()}

    def _picture(self, prompt: Prompt) -> dict[str, Floats]:
        """Return what is known of the image: its vector and details, each with 1, or zeros with 0 where unknown."""
        vector = prompt.vector if prompt.space == self._config.text_encoder else None
        details = prompt.details if prompt.sight == self._config.sight else None
        return {
            "vector": _or_zeros(vector, self._config.vector),
            "known": np.array(vector is not None, np.float32),
            "details": _or_zeros(details, self._config.details),
            "seen": np.array(details is not None, np.float32),
        }

    def _grow(
        self, reading: Reading, picture: dict[str, Floats], uniform: Floats, decoding: Decoding
    ) -> list[tuple[tuple[int, ...], float]]:
        """Return the sentences as numbers, each with its log-probability.

        What sentences have in common is computed once: half of all their words.
        """
        memory = _as_inputs(reading)
        stored, copy_keys = self._read.run(None, {**memory, **picture})
        doubled, twice = _find_doubled(reading), _find_twice(reading)
        count = uniform.shape[1]
        past = self._config.empty_past(1)
        beginnings: list[tuple[int, ...]] = [()]
        sentences, logprobs = beginnings * count, np.zeros(count)
        growing, begun = np.arange(count), np.zeros(count, np.int64)
        for place in range(min(decoding.max_tokens, self._config.longest)):
            current = np.array([beginning[-1] if beginning else BEGIN for beginning in beginnings], np.int64)
            fed = {"words": current, "place": np.array(place), "past": past, "stored": stored, "copy_keys": copy_keys}
            probabilities, past = self._step.run(None, {**fed, "tokens": memory["tokens"]})
            banned = [[*_find_repeats(s, doubled), *self._find_stale(s, twice)] for s in beginnings]
            chosen, logprob = choose(probabilities, uniform[place, growing], decoding, banned, begun)
            # the end counts as a word: a sentence that breaks off is an unlikely one
            logprobs[growing] += logprob
            kept = chosen != END
            growing, grown = growing[kept], list(zip(begun[kept].tolist(), chosen[kept].tolist(), strict=True))
            if not grown:
                break
            different = {pair: row for row, pair in enumerate(dict.fromkeys(grown))}
            past = past[:, :, [parent for parent, _ in different]]
            beginnings = [(*beginnings[parent], word) for parent, word in different]
            begun = np.array([different[pair] for pair in grown])
            for row, beginning in zip(growing.tolist(), begun.tolist(), strict=True):
                sentences[row] = beginnings[beginning]
        return list(zip(sentences, logprobs.tolist(), strict=True))

    def _find_stale(self, sentence: tuple[int, ...], twice: frozenset[int]) -> list[int]:
        """Return what completes a cliche, and what was said already, one thing or several; but for what is said twice.

        "A car parked behind a car" is how small models go on when they know nothing more.
        """
        said = [number for word in sentence if word not in twice for number in self._forms(word)]
        return [*self._cliches.get(sentence[-2:], []), *said]

    def _find_forms(self, number: int) -> tuple[int, ...]:
        """Return a word, its plural and its singular by their numbers; none for little words and those in slots."""
        word = self._vocabulary[number] if number < len(self._vocabulary) else ""
        if not word or word in LITTLE_WORDS:
            return ()
        forms = (word, f"{word}s", f"{word}es", word.removesuffix("s"), word.removesuffix("es"))
        return tuple({self._number[form] for form in forms if form in self._number})


def load_writer(*, device: str = "cpu", threads: int | None = None) -> WriterModel:
    """Return the packaged writer; it runs on the CPU, whatever the device."""
    return WriterModel(threads=threads)


@dataclass(frozen=True)
class Style:
    """How the captions of a prompt are written, so that new ones look like them."""

    captions: Sequence[str]

    def sentence(self, lower: Sequence[str]) -> str:
        """Return words in lower case as a sentence in this style."""
        written = [self._forms.get(word, word) for word in lower]
        capital, stop = self._habits
        if written and capital:
            written[0] = written[0][:1].upper() + written[0][1:]
        return join_words(written) + ("." if written and stop else "")

    @cached_property
    def _habits(self) -> tuple[bool, bool]:
        """Whether most captions begin with a capital, and end in a full stop."""
        half, captions = len(self.captions) / 2, self.captions
        return sum(c[:1].isupper() for c in captions) > half, sum(c.rstrip().endswith(".") for c in captions) > half

    @cached_property
    def _forms(self) -> dict[str, str]:
        """Return words that are mostly not in lower case inside a sentence, such as names, as they are written."""
        # somebody who shouts says nothing about names
        inside = [w for caption in self.captions if not caption.isupper() for w in surface_words(caption)[1:]]
        seen: dict[str, Counter[str]] = {word.casefold(): Counter() for word in inside if word != word.casefold()}
        for word in inside:
            if (lower := word.casefold()) in seen:
                seen[lower][word] += 1
        usual = {word: forms.most_common(1)[0][0] for word, forms in seen.items()}
        return {word: form for word, form in usual.items() if form != word}


def choose(
    probabilities: Floats,
    uniform: Floats,
    decoding: Decoding,
    banned: Sequence[Sequence[int]] = (),
    rows: Ints | None = None,
) -> tuple[Ints, Floats]:
    """Return for each number a word and its log-probability before temperature and cuts.

    Numbers belong to ``rows`` of probabilities, by default one to each; no word is among its row's ``banned``.
    """
    rows = np.arange(len(probabilities)) if rows is None else rows
    allowed = probabilities.copy()
    allowed[:, [PAD, BEGIN, UNKNOWN]] = 0
    for row, out in zip(allowed, banned, strict=False):
        row[out] = 0
    chosen: Ints = draw_tokens(allowed, uniform, decoding, rows)
    taken = probabilities[rows, chosen]
    return chosen, np.log(np.maximum(taken, 1e-30))


def _find_repeats(sentence: Sequence[int], doubled: frozenset[int]) -> list[int]:
    """Return the words that would say a pair of words for the second time, or a word twice in a row.

    Small models love to repeat themselves. What stands doubled in a caption, such as "bye bye", may be.
    """
    pairs = [after for before, after in pairwise(sentence) if before == sentence[-1]]
    return pairs if not sentence or sentence[-1] in doubled else [*pairs, sentence[-1]]


def _followers(phrases: Sequence[str], number: Mapping[str, int]) -> dict[tuple[int, ...], list[int]]:
    """Return the last word of each phrase by the words before it, as numbers; phrases of unknown words are left out."""
    found: dict[tuple[int, ...], list[int]] = {}
    for phrase in phrases:
        *before, last = phrase.split()
        if all(word in number for word in (*before, last)):
            found.setdefault(tuple(number[word] for word in before), []).append(number[last])
    return found


def _find_doubled(reading: Reading) -> frozenset[int]:
    """Return the words that stand twice in a row in a caption that was read."""
    together = (reading.ranks[1:] == reading.ranks[:-1]) & (reading.ranks[1:] < SEQUENCES)
    return frozenset(reading.tokens[1:][together & (reading.tokens[1:] == reading.tokens[:-1])].tolist())


def _find_twice(reading: Reading) -> frozenset[int]:
    """Return the words that stand more than once in a caption that was read."""
    counts = Counter(zip(reading.ranks.tolist(), reading.tokens.tolist(), strict=True))
    return frozenset(word for (rank, word), count in counts.items() if count > 1 and rank < SEQUENCES)


def _or_zeros(values: Floats | None, size: int) -> Floats:
    return np.zeros(size, np.float32) if values is None else values.astype(np.float32)


def _as_inputs(reading: Reading) -> dict[str, Any]:
    """Return a reading as the session takes it; one without words has a single empty entry."""
    if not len(reading.tokens):
        nothing = np.zeros(1, np.int64)
        return {"tokens": nothing, "shares": np.zeros(1, np.float32), "places": nothing, "ranks": nothing}
    return {name: getattr(reading, name) for name in ("tokens", "shares", "places", "ranks")}
