"""The writer: the caption language model inside the package, some million parameters on onnxruntime.

It reads the retrieved captions and, where they come from the encoder it was trained with, the image's point in caption
space and what the encoder saw in each place of the image. A prompt is read once; then its sentences and those of other
prompts grow together word by word, each word either from the vocabulary or copied from the captions, which is how it
says words it never saw. ``tools/train_writer.py`` made it.

The nearest captions are read word by word. All of them vote for words, the nearer ones with more weight, and the words
with most votes are read too, each with its share. A word the writer's vocabulary lacks takes a slot: a nameless word
that can be read and copied like any other, and gets its name back when the sentence is written out.
"""

from __future__ import annotations

import json
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
from recap.language.prompt import BEGIN, END, ENTRIES, PAD, UNKNOWN, VOTERS, Floats, Ints, Reading, Style, read
from recap.language.words import Phrases, triples_of, words
from recap.types import Draft, Prompt

TOGETHER = 16
"""Number of prompts whose sentences grow together."""

CLICHES = ("sitting on top", "sits on top", "sit on top", "laying on top")
"""Said by the writer ten times as often as by people, where "on" says the same."""

_LITTLE = "a an and are at by for from her his in is it its of on one or that the their there to two with"
LITTLE_WORDS = frozenset(_LITTLE.split())
"""Words that a sentence may well say twice."""

STRANGE = 16.0
"""What three words in a row that nobody wrote take from the log-probability of a sentence."""

FILES = ("read.onnx", "step.onnx", "config.json", "phrases.bin")
FOLDER = Path(__file__).parent.parent / "data" / "writer"


@dataclass(frozen=True)
class _Config:
    """What ``config.json`` says."""

    vocabulary: list[str]
    text_encoder: str
    """The fingerprint of the text encoder whose caption space the writer knows."""
    sight: str
    """The fingerprint of the details of an image that the writer knows,"""
    closer_sight: str
    """and of those to which a second network adds patches."""
    places: int
    """In so many places an image is looked at;"""
    detail: int
    """so many numbers are the details of each,"""
    patch: int
    """and so many its patch."""
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

    def empty_past(self) -> Floats:
        """Return the keys, or the values, of a sentence that has not begun."""
        return np.zeros((1, self.heads, 0, self.width // self.heads), np.float32)


@dataclass
class _Growth:
    """The sentences of one prompt while they grow."""

    uniform: Floats
    doubled: frozenset[int]
    twice: frozenset[int]
    sentences: list[tuple[int, ...]]
    logprobs: npt.NDArray[np.float64]
    growing: Ints
    """Which sentences have not ended;"""
    begun: Ints
    """and which of the different beginnings each of these has."""
    beginnings: list[tuple[int, ...]]

    @classmethod
    def of(cls, reading: Reading, uniform: Floats) -> _Growth:
        count = uniform.shape[1]
        everyone, first = np.arange(count), np.zeros(count, np.int64)
        may = reading.find_doubled(), reading.find_twice()
        return cls(uniform, *may, [()] * count, np.zeros(count), everyone, first, [()])

    @property
    def alive(self) -> bool:
        return bool(self.beginnings)

    @property
    def last_words(self) -> list[int]:
        return [beginning[-1] if beginning else BEGIN for beginning in self.beginnings]

    def take(self, chosen: Ints, logprobs: Floats) -> list[int]:
        """Let each sentence grow by a word; return from which beginnings the new ones go on."""
        # the end counts as a word: a sentence that breaks off is an unlikely one
        self.logprobs[self.growing] += logprobs
        kept = chosen != END
        self.growing = self.growing[kept]
        grown = list(zip(self.begun[kept].tolist(), chosen[kept].tolist(), strict=True))
        different = {pair: row for row, pair in enumerate(dict.fromkeys(grown))}
        self.beginnings = [(*self.beginnings[parent], word) for parent, word in different]
        self.begun = np.array([different[pair] for pair in grown], np.int64)
        for row, beginning in zip(self.growing.tolist(), self.begun.tolist(), strict=True):
            self.sentences[row] = self.beginnings[beginning]
        return [parent for parent, _ in different]


@dataclass(frozen=True)
class _Memory:
    """What several prompts were read as, filled up to one length: no prompt's arithmetic depends on the others'."""

    tokens: Ints
    inputs: dict[str, Floats]

    @classmethod
    def of(cls, prompts: Sequence[tuple[Ints, Floats, Floats, Floats]]) -> _Memory:
        """Put together the words of each prompt, its keys, its values and its keys for copying."""
        _, keys, values, copy_keys = prompts[0]
        (layers, heads, width, entries), words_read = keys.shape, copy_keys.shape[1]
        front, size = entries - words_read, entries - words_read + ENTRIES
        all_keys = np.zeros((layers, len(prompts), heads, width, size), np.float32)
        all_values = np.zeros((layers, len(prompts), heads, size, width), np.float32)
        copying = np.zeros((len(prompts), len(copy_keys), ENTRIES), np.float32)
        tokens, mask = np.zeros((len(prompts), ENTRIES), np.int64), np.zeros((len(prompts), size), np.float32)
        for row, (words_, keys, values, copy_keys) in enumerate(prompts):
            tokens[row, : len(words_)], copying[row, :, : len(words_)] = words_, copy_keys
            mask[row, front + len(words_) :] = -np.inf
            all_keys[:, row, :, :, : keys.shape[3]], all_values[:, row, :, : keys.shape[3]] = keys, values
        stored = {f"keys_{layer}": part for layer, part in enumerate(all_keys)}
        stored |= {f"values_{layer}": part for layer, part in enumerate(all_values)}
        return cls(tokens, {"mask": mask, "copy_keys": copying, **stored})

    def of_prompts(self, rows: Sequence[int]) -> _Memory:
        """Return that of some prompts."""
        return _Memory(self.tokens[rows], {name: part[rows] for name, part in self.inputs.items()})


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
        self.sights = (self._config.sight, self._config.closer_sight)
        """The fingerprints of the details of an image that it can read."""
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
        size = min(TOGETHER, -(-len(prompts) // self._workers)) or 1
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        if len(parts) < 2 or self._workers < 2:
            return [drafts for part in parts for drafts in self._write(part, decoding)]
        with ThreadPoolExecutor(self._workers) as pool:
            return [drafts for part in pool.map(lambda part: self._write(part, decoding), parts) for drafts in part]

    def familiarity(self, captions: Sequence[str]) -> float:
        """Return the share of the words of captions that it knows."""
        said = [word in self._number for caption in captions for word in words(caption)]
        return sum(said) / max(1, len(said))

    def _write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        pools = [list(prompt.pool or prompt.captions)[:VOTERS] for prompt in prompts]
        numbered = [self._numbers(captions) for captions in pools]
        readings = [read(sentences, len(self._vocabulary)) for sentences, _ in numbered]
        grown = [
            _Growth.of(reading, uniforms(decoding, prompt.text))
            for reading, prompt in zip(readings, prompts, strict=True)
        ]
        self._grow(grown, self._remember(readings, prompts), decoding)
        styles = map(Style, pools)
        return list(map(self._drafts, grown, readings, numbered, styles))

    def _drafts(
        self, grown: _Growth, reading: Reading, numbered: tuple[list[list[int]], dict[int, str]], style: Style
    ) -> list[Draft]:
        sentences, names = numbered
        slots = {len(self._vocabulary) + place: names[word] for place, word in enumerate(reading.outside)}
        written = {triple for caption in sentences for triple in triples_of(caption, BEGIN, END)}
        return [
            Draft(
                style.sentence([slots.get(number) or self._vocabulary[number] for number in sentence]),
                logprob - STRANGE * self._count_strange(sentence, written),
            )
            for sentence, logprob in zip(grown.sentences, grown.logprobs.tolist(), strict=True)
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
        """Return what is known of the image: its vector, details and patches, or zeros, and which of them are there."""
        config = self._config
        known, seen, closer = (
            prompt.vector is not None and prompt.space == config.text_encoder,
            prompt.details is not None and prompt.sight in self.sights,
            prompt.details is not None and prompt.sight == config.closer_sight,
        )
        looked = np.zeros((config.places, config.detail + config.patch), np.float32)
        if prompt.details is not None and seen:
            placed = prompt.details.reshape(config.places, -1)
            looked[:, : placed.shape[1]] = placed
        flags = {"known": known, "seen": seen, "closer": closer}
        return {
            "vector": _or_zeros(prompt.vector if known else None, config.vector),
            "details": looked[:, : config.detail].ravel(),
            "patches": looked[:, config.detail :].ravel(),
            **{name: np.array(there, np.float32) for name, there in flags.items()},
        }

    def _remember(self, readings: Sequence[Reading], prompts: Sequence[Prompt]) -> _Memory:
        """Read the prompts."""
        read_ = []
        for reading, prompt in zip(readings, prompts, strict=True):
            inputs = _as_inputs(reading)
            read_.append((inputs["tokens"], *self._read.run(None, {**inputs, **self._picture(prompt)})))
        return _Memory.of(read_)

    def _grow(self, growths: Sequence[_Growth], memory: _Memory, decoding: Decoding) -> None:
        """Let all sentences of all prompts grow to their ends.

        What sentences of a prompt have in common is computed once: half of all their words.
        """
        layers, cells = range(self._config.layers), decoding.sentences
        names = [f"past_{part}_{layer}" for layer in layers for part in ("keys", "values")]
        past = [self._config.empty_past()] * len(names)
        parents = np.zeros(len(growths), np.int64)
        for place in range(min(decoding.max_tokens, self._config.longest)):
            if 2 * sum(growth.alive for growth in growths) <= len(growths):
                kept = [number for number, growth in enumerate(growths) if growth.alive]
                growths, memory = [growths[number] for number in kept], memory.of_prompts(kept)
            counts = np.array([len(growth.beginnings) for growth in growths])
            rows = np.arange(counts.sum())
            owners, starts = np.repeat(np.arange(len(counts)), counts), counts.cumsum() - counts
            at = owners * cells + rows - starts[owners]
            spread = np.zeros((len(counts), cells), np.int64)
            spread.flat[at] = rows
            fed = {"words": np.array([word for growth in growths for word in growth.last_words]), "cells": at}
            fed |= {"place": np.array(place), "parents": parents, "spread": spread, "tokens": memory.tokens[owners]}
            fed |= dict(zip(names, past, strict=True))
            probabilities, *past = self._step.run(None, fed | memory.inputs)
            banned = [self._find_banned(beginning, growth) for growth in growths for beginning in growth.beginnings]
            uniform = np.concatenate([growth.uniform[place, growth.growing] for growth in growths])
            begun = [growth.begun + start for growth, start in zip(growths, starts.tolist(), strict=True)]
            chosen, logprobs = choose(probabilities, uniform, decoding, banned, np.concatenate(begun))
            ends = np.cumsum([len(growth.growing) for growth in growths])[:-1]
            steps = zip(growths, starts.tolist(), np.split(chosen, ends), np.split(logprobs, ends), strict=True)
            parents = np.array([start + row for growth, start, one, its in steps for row in growth.take(one, its)])
            if not len(parents):
                break

    def _find_banned(self, sentence: tuple[int, ...], growth: _Growth) -> list[int]:
        return [*_find_repeats(sentence, growth.doubled), *self._find_stale(sentence, growth.twice)]

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


def choose(
    probabilities: Floats,
    uniform: Floats,
    decoding: Decoding,
    banned: Sequence[Sequence[int]] = (),
    rows: Ints | None = None,
) -> tuple[Ints, Floats]:
    """Return for each number a word and its log-probability before temperature and cuts.

    Numbers belong to ``rows`` of probabilities, by default one to each; no word is among its row's ``banned``, whose
    probabilities become 0.
    """
    rows = np.arange(len(probabilities)) if rows is None else rows
    for special in (PAD, BEGIN, UNKNOWN):
        probabilities[:, special] = 0
    for row, out in zip(probabilities, banned, strict=False):
        row[out] = 0
    chosen: Ints = draw_tokens(probabilities, uniform, decoding, rows)
    return chosen, np.log(np.maximum(probabilities[rows, chosen], 1e-30))


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


def _or_zeros(values: Floats | None, size: int) -> Floats:
    return np.zeros(size, np.float32) if values is None else values.astype(np.float32)


def _as_inputs(reading: Reading) -> dict[str, Any]:
    """Return a reading as the session takes it; one without words has a single empty entry."""
    if not len(reading.tokens):
        nothing = np.zeros(1, np.int64)
        return {"tokens": nothing, "shares": np.zeros(1, np.float32), "places": nothing, "ranks": nothing}
    return {name: getattr(reading, name) for name in ("tokens", "shares", "places", "ranks")}
