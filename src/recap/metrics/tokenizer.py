"""Captions to tokens as coco-caption makes them, without Java.

Captions are lines of one text, as in coco-caption: now and then a token depends on the line that follows.
Tokens that are only punctuation are left out. A line break inside a caption counts as a space, where the original would
shift all later captions by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.errors import InputError
from recap.metrics.ngrams import Ints, Sentences, Small, offsets_of, pack_sentences
from recap.metrics.treebank import ABBREVIATIONS, SPLIT_WORDS, tokenize_span

# Line breaks and halves of characters become spaces, soft hyphens vanish. None of them is printable.
_SPACES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0" + "".join(map(chr, range(0xD800, 0xE000)))
_CLEAN = str.maketrans(dict.fromkeys(_SPACES, " ") | {"\xad": None})

# Most pieces: a word, or words with hyphens, perhaps with 's, punctuation that goes, and quotation marks.
_SIMPLE = re.compile(r"""\"?([A-Za-z]+(?:-[A-Za-z]+)*)('s)?([,;:.!?]?\"?|\"[.,])""")

# Pieces between spaces whose tokens may depend on their neighbours: tags, "I." before "The", "no." before a number.
_DEPENDENT = re.compile(r"[<\s\x01-\x1f\x7f]|\.\d|[A-Za-z]\.\Z")
_ALONE, _NUMBER, _DEPENDS = range(3)


def tokenize(captions: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each caption, as coco-caption would for the same captions in the same order."""
    vocabulary: dict[str, int] = {}
    sentences = encode(captions, vocabulary)
    names = list(vocabulary)
    flat = [names[word] for word in sentences.words.tolist()]
    return [flat[start:stop] for start, stop in pairwise(sentences.offsets.tolist())]


class Pieces(dict[str, tuple[int, Sequence[str]]]):
    """What is known about pieces between spaces: whether they stand alone, and the tokens of those that do."""

    def __missing__(self, piece: str) -> tuple[int, Sequence[str]]:
        self[piece] = known = _tokenize_piece(piece)
        return known


def encode(captions: Sequence[str], vocabulary: dict[str, int], pieces: Pieces | None = None) -> Sentences:
    """Tokenise captions and number the tokens; new tokens are added to ``vocabulary``.

    Nearly all pieces between spaces mean the same wherever they stand, and are tokenised once each; ``pieces``
    remembers them from call to call. Only lines with a piece that may depend on its neighbours are walked through.
    """
    if not len(captions):
        return Sentences(np.zeros(0, np.int64), np.zeros(1, np.int64))
    for kind in set(map(type, captions)):
        if not issubclass(kind, str):
            raise InputError(f"captions must be strings, and one is {kind.__name__}")
    known = Pieces() if pieces is None else pieces
    lines = [text if text.isprintable() else text.translate(_CLEAN) for text in captions]
    ids, ends, distinct = _split_at_spaces(lines)
    found = [known[piece] for piece in distinct]
    slow = _slow_lines(np.array([kind for kind, _ in found], np.int8)[ids], ends)
    table = pack_sentences([[vocabulary.setdefault(token, len(vocabulary)) for token in part] for _, part in found])
    lengths = table.lengths[ids]
    for line in slow:
        lengths[ends[line] : ends[line + 1]] = 0
    starts = offsets_of(lengths)
    words = _expand(table, ids, lengths, starts)
    return _fill(Sentences(words, starts[ends]), slow, lines, vocabulary)


def _split_at_spaces(lines: list[str]) -> tuple[Small, Ints, list[str]]:
    """Return for each piece its number, where the pieces of each line start and end, and the distinct pieces."""
    import pyarrow as pa
    import pyarrow.compute as pc

    split = pc.ascii_split_whitespace(pa.array(lines, pa.string()))
    numbered = split.values.dictionary_encode()
    distinct: list[Any] = numbered.dictionary.to_pylist()
    return numbered.indices.to_numpy(), split.offsets.to_numpy().astype(np.int64), distinct


def _tokenize_piece(piece: str) -> tuple[int, Sequence[str]]:
    simple = _SIMPLE.fullmatch(piece)
    if simple and not (simple[3] and simple[1].lower() in ABBREVIATIONS):
        word = simple[1].lower()
        return _ALONE, (word, "'s") if simple[2] else SPLIT_WORDS.get(word, (word,))
    if _DEPENDENT.search(piece):
        return _DEPENDS, ()
    kind = _NUMBER if any(map(str.isdigit, piece)) else _ALONE
    return kind, tokenize_span(piece + "\n", 0, len(piece))


def _slow_lines(kinds: npt.NDArray[np.int8], ends: Ints) -> list[int]:
    dependent = np.searchsorted(ends, np.flatnonzero(kinds == _DEPENDS), "right") - 1
    # two numbers in a row may be one token, as in 22 3/4
    numbers = np.searchsorted(ends, np.flatnonzero(kinds == _NUMBER), "right") - 1
    twice = numbers[1:][numbers[1:] == numbers[:-1]]
    # nothing follows the last line, not even white space
    slow: list[int] = np.unique(np.concatenate([dependent, twice, [len(ends) - 2]])).tolist()
    return slow


def _expand(table: Sentences, ids: Small, lengths: Ints, starts: Ints) -> Ints:
    """Replace pieces by the first ``lengths`` of their tokens, which then stand from ``starts`` on."""
    first = np.append(table.words, 0)[table.offsets[:-1]]
    words = np.repeat(first[ids], lengths)
    # nearly all pieces are one token: only the others have more to fill in
    longer = np.flatnonzero(lengths > 1)
    for number in range(1, int(lengths.max(initial=0))):
        longer = longer[lengths[longer] > number]
        words[starts[longer] + number] = table.words[table.offsets[ids[longer]] + number]
    return words


def _fill(fast: Sentences, slow: list[int], lines: Sequence[str], vocabulary: dict[str, int]) -> Sentences:
    """Fill the slow lines, which are still empty."""
    tokens = [tokenize_span(_with_context(lines, line), 0, len(lines[line])) for line in slow]
    numbers = [vocabulary.setdefault(token, len(vocabulary)) for token in chain.from_iterable(tokens)]
    counts = [len(part) for part in tokens]
    lengths = fast.lengths
    lengths[slow] = counts
    words = np.insert(fast.words, np.repeat(fast.offsets[slow], counts), numbers)
    return Sentences(words, offsets_of(lengths))


def _with_context(lines: Sequence[str], line: int) -> str:
    """Return a line with the next line that is not blank, and the break after that one."""
    stop = line + 1
    while stop < len(lines) and (not lines[stop] or lines[stop].isspace()):
        stop += 1
    return "\n".join(lines[line : stop + 1]) + ("\n" if stop + 1 < len(lines) else "")
