"""Texts by their words: how they are cut, which come from which retrieved caption, what they name, what nobody writes.

A retrieved caption that has a word of the caption supports it: the more so the nearer it is to the picture, by the same
weights with which captions vote for a candidate, and the more words in a row they share. So the words of a caption that
was retrieved as it stands come from itself before all. Words that every sentence has say nothing about a picture and
are set apart; a word that no retrieved caption has comes from the language model alone.

The things that a sentence about a photograph names are of COCO's 80 kinds of objects: ``things.json`` has the words
people use for them, as they mean them in such a sentence; plurals are formed here.

Which three words people write one after the other is kept in a Bloom filter of a megabyte. A model goes wrong where it
never was before: "a cat sitting on a blue eyes". That nobody ever wrote three words of a sentence in a row shows it
better than the model's own probabilities, which rewards have bent.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from recap.errors import AssetError
from recap.types import VOTE_TEMPERATURE, Caption, Evidence

# characters of scripts without spaces (kana, Chinese) stand alone, other words as they are written
_SOLID = r"\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_SOLID}]|[^\W{_SOLID}]+(?:['\u2019-][^\W{_SOLID}]+)*")
_GAP = re.compile(rf"(?<=[{_SOLID}]) (?=[{_SOLID}])")


_COMMON = """
a an and are as at be been being but by can do does for from had has have he her his i if in into is it its of off on
onto or our out over she so some that the their them there these they this those to up very was we were what when where
which while who with you your
"""
COMMON_WORDS = frozenset(_COMMON.split())
"""English words that are in every other sentence, whatever the picture."""


@lru_cache(maxsize=1 << 14)
def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case."""
    return tuple(_WORD.findall(text.casefold()))


def surface_words(text: str) -> list[str]:
    """Return the words of a text as they are written."""
    return _WORD.findall(text)


def join_words(sentence: list[str]) -> str:
    """Return the words as one text, without spaces between words of scripts that have none."""
    return _GAP.sub("", " ".join(sentence))


STEMMERS = {
    **{"ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english"},
    **{"es": "spanish", "et": "estonian", "eu": "basque", "fi": "finnish", "fr": "french", "ga": "irish"},
    **{"hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian"},
    **{"ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian"},
    **{"ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish"},
}
"""Snowball stemmers by language; words of other languages have no endings to be taken off."""


def is_english(language: str) -> bool:
    """Tell whether a tag such as ``en-GB`` means English."""
    return language.partition("-")[0] == "en"


def same_word(one: str, other: str, language: str = "en") -> bool:
    """Tell whether two words in lower case are the same but for their endings: dog and dogs, run and running."""
    return one == other or not roots(one, language).isdisjoint(roots(other, language))


@lru_cache(maxsize=1 << 14)
def roots(word: str, language: str = "en") -> frozenset[str]:
    """Return a word in lower case without its endings, in every way it may be read."""
    import snowballstemmer

    base = language.lower().partition("-")[0]
    name = STEMMERS.get(base, "")
    if name not in snowballstemmer.algorithms():
        return frozenset((word,))
    # a stemmer of one's own, since it holds the word it works on, and threads share this
    stem = snowballstemmer.stemmer(name).stemWord
    plurals = {stem(word[:-2])} if base == "en" and word.endswith("ses") else set()  # buses, which it leaves at buse
    return frozenset({stem(word.replace("\u2019", "'")), *plurals})


Same = Callable[[str, str], bool]
"""Tells whether two words are the same."""

Kind = Literal["evidence", "common", "nowhere"]
"""A word rests on evidence, is common to all sentences, or comes from nowhere."""


@dataclass(frozen=True, slots=True)
class Source:
    """One retrieved caption that a word comes from."""

    evidence: int
    """Its place in ``Attribution.evidence``."""
    share: float
    """How much of the word's support is its; the shares of a word add up to 1."""


@dataclass(frozen=True, slots=True)
class AttributedWord:
    """One word of a caption, where it stands, and where it comes from."""

    text: str
    start: int
    end: int
    kind: Kind
    support: float = 0.0
    """How much of the weight of all retrieved captions has this word, from 0 to 1."""
    sources: tuple[Source, ...] = ()
    """The greatest share first."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The words of a caption with their sources."""

    words: tuple[AttributedWord, ...]
    evidence: tuple[Evidence, ...]
    """The caption's evidence; behind it, retrieved candidates that are not among it but have words it lacks."""
    language: str = "en"
    """By whose endings words were told to be the same."""

    @property
    def unsupported(self) -> tuple[str, ...]:
        """The words that come from nowhere."""
        return tuple(word.text for word in self.words if word.kind == "nowhere")


def vote_weights(evidence: Sequence[Evidence]) -> list[float]:
    """Return how much each retrieved caption has to say: the nearest 1."""
    nearest = max((item.similarity for item in evidence), default=0.0)
    return [math.exp((item.similarity - nearest) / VOTE_TEMPERATURE) for item in evidence]


def attribute(caption: Caption, *, common_words: Collection[str] = COMMON_WORDS, language: str = "en") -> Attribution:
    """Say for each word of a caption which retrieved captions it comes from, and how much."""
    same = partial(same_word, language=language)
    evidence = _retrieved(caption, same)
    sentences = [_folded(item.text) for item in evidence]
    weights = vote_weights(evidence)
    said = surface_words(caption.text)
    folded = _folded(caption.text)
    words, place = [], 0
    for number, word in enumerate(said):
        start = caption.text.index(word, place)
        place = start + len(word)
        if folded[number] in common_words:
            words.append(AttributedWord(word, start, place, "common"))
            continue
        strengths = [_strength(folded, number, sentence, same) for sentence in sentences]
        words.append(_attributed(word, start, strengths, weights))
    return Attribution(tuple(words), evidence, language)


def _retrieved(caption: Caption, same: Same) -> tuple[Evidence, ...]:
    """Return the evidence, and of the retrieved candidates further down those that something is owed to."""
    known = [_folded(item.text) for item in caption.evidence]
    lacking = [word for word in _folded(caption.text) if not any(_has(sentence, word, same) for sentence in known)]
    texts = {item.text for item in caption.evidence}
    further = [
        item
        for item in caption.candidates
        if item.origin == "retrieved"
        and item.text not in texts
        and (item.text == caption.text or any(_has(_folded(item.text), word, same) for word in lacking))
    ]
    further.sort(key=lambda item: -item.cosine)
    return (*caption.evidence, *(Evidence(item.text, item.cosine) for item in further))


def _folded(text: str) -> list[str]:
    return [word.casefold() for word in surface_words(text)]


def _has(sentence: Sequence[str], word: str, same: Same) -> bool:
    return any(same(word, other) for other in sentence)


def _attributed(word: str, start: int, strengths: Sequence[int], weights: Sequence[float]) -> AttributedWord:
    end = start + len(word)
    total = math.fsum(weight * strength for weight, strength in zip(weights, strengths, strict=True))
    if not total:
        return AttributedWord(word, start, end, "nowhere")
    pairs = enumerate(zip(weights, strengths, strict=True))
    sources = [Source(row, weight * strength / total) for row, (weight, strength) in pairs if strength]
    sources.sort(key=lambda source: (-source.share, source.evidence))
    support = math.fsum(weights[source.evidence] for source in sources) / math.fsum(weights)
    return AttributedWord(word, start, end, "evidence", support, tuple(sources))


def _strength(said: Sequence[str], number: int, sentence: Sequence[str], same: Same) -> int:
    """Return how many words in a row, this one among them, a sentence has in common with the caption; 0 without it."""

    def run(place: int, other: int, by: int) -> int:
        length = 0
        while 0 <= place < len(said) and 0 <= other < len(sentence) and same(said[place], sentence[other]):
            length, place, other = length + 1, place + by, other + by
        return length

    runs = (run(number, place, -1) + run(number, place, 1) - 1 for place in range(len(sentence)))
    return max(0, *runs, 0)


_WORDS = json.loads((Path(__file__).parent / "things.json").read_text(encoding="utf-8"))
THINGS: dict[str, str] = _WORDS["things"]
"""Each kind by its name in COCO, with the words and phrases that name it and nothing else."""
EITHER: dict[str, str] = _WORDS["either"]
"""Words for one of several kinds."""
MODIFIERS: str = _WORDS["modifiers"]
"""Words for people that say something else right before another thing: a baby elephant, a passenger train."""
NOTHING: str = _WORDS["nothing"]
"""Phrases with such a word that name none of these kinds."""
HINTS: dict[str, str] = _WORDS["hints"]
"""Words of references that are no names, and show well enough that the kind is in the picture."""

Kinds: TypeAlias = tuple[str, ...]
"""The kinds of objects that a word may stand for."""

_Names: TypeAlias = Mapping[tuple[str, ...], Kinds]

_PLURALS = {"person": "people", "child": "children", "goose": "geese", "mouse": "mice", "human": "humans"}
_BEFORE_FRUIT, _AFTER_FRUIT = ({*_WORDS[name].split(", ")} for name in ("before_fruit", "after_fruit"))


@lru_cache(maxsize=1 << 16)
def named(text: str) -> tuple[Kinds, ...]:
    """Return the things that a text names, in its order: for each the kinds of objects its name may stand for."""
    tokens = _tokens(text)
    found = _scan(tokens, _names)
    starts, modifiers = {start for start, _, _ in found}, _listed(MODIFIERS)
    things = [kinds for start, end, kinds in found if not (tokens[start] in modifiers and end in starts)]
    return tuple(kinds for kinds in (*things, ("orange",) if _is_fruit(tokens) else ()) if kinds)


@lru_cache(maxsize=1 << 16)
def shown(text: str) -> frozenset[str]:
    """Return the kinds of things in a picture that somebody describes so: those named, and those hinted at."""
    hints = _scan(_tokens(text), _hints)
    return frozenset(kind for kinds in (*named(text), *(kinds for _, _, kinds in hints)) for kind in kinds)


def _tokens(text: str) -> list[str]:
    plain = text.replace("-", " ").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return [word.removesuffix("'s").replace("'", "") for word in words(plain)]


def _scan(tokens: Sequence[str], listed: Callable[[], _Names]) -> list[tuple[int, int, Kinds]]:
    """Return where phrases begin and end and what they stand for; a longer one goes before the words in it."""
    phrases, longest = listed(), _longest(listed)
    found, place = [], 0
    while place < len(tokens):
        for end in range(min(place + longest.get(tokens[place], 0), len(tokens)), place, -1):
            kinds = phrases.get(tuple(tokens[place:end]))
            if kinds is not None:
                found.append((place, end, kinds))
                place = end
                break
        else:
            place += 1
    return found


@cache
def _longest(listed: Callable[[], _Names]) -> dict[str, int]:
    """Return of each word that begins a phrase how many words the longest of these has."""
    return {phrase[0]: len(phrase) for phrase in sorted(listed(), key=len)}


def _is_fruit(tokens: Sequence[str]) -> bool:
    """Tell whether an orange is named, and not the colour."""
    around = ["", *tokens, "", ""]
    for before, word, after, then in zip(around, tokens, around[2:], around[3:], strict=False):
        joined = after in ("and", "or") and then in ("a", "an", "some", "the")
        if word == "orange" and before in _BEFORE_FRUIT and (after in _AFTER_FRUIT or joined):
            return True
    return False


@cache
def _names() -> _Names:
    phrases: dict[tuple[str, ...], Kinds] = dict.fromkeys(_forms(NOTHING), ())
    phrases |= {phrase: (kind,) for kind, listed in THINGS.items() for phrase in _forms(listed)}
    return phrases | {phrase: _listed(kinds) for name, kinds in EITHER.items() for phrase in _forms(name)}


@cache
def _hints() -> _Names:
    return {phrase: _listed(kinds) for listed, kinds in HINTS.items() for phrase in _forms(listed)}


@cache
def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _forms(listed: str) -> Iterable[tuple[str, ...]]:
    """Yield each phrase of a list as words, and its plural."""
    for phrase in _listed(listed):
        *first, last = phrase.split()
        yield (*first, last)
        yield (*first, _plural(last))


def _plural(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("man"):
        return f"{word[:-2]}en"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    if word in ("knife", "calf", "shelf"):
        return f"{word.rstrip('e')[:-1]}ves"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"


BITS = 1 << 23
HASHES = 3
"""One phrase in five hundred that nobody wrote is taken for one that somebody did."""

_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)

Triples = npt.NDArray[np.uint64]


class Phrases:
    """A set of triples of numbers that is never wrong about its own, and seldom about others."""

    def __init__(self, table: npt.NDArray[np.uint8]) -> None:
        self._table = table

    @classmethod
    def of(cls, triples: npt.ArrayLike, bits: int = BITS) -> Phrases:
        """Return the set of some triples."""
        phrases = cls(np.zeros(bits // 8, np.uint8))
        byte, bit = phrases._places(np.asarray(triples, np.uint64).reshape(-1, 3))
        np.bitwise_or.at(phrases._table, byte, bit)
        return phrases

    @classmethod
    def load(cls, path: Path) -> Phrases:
        """Return the set that ``save`` wrote."""
        try:
            table = np.fromfile(path, np.uint8)
        except OSError as error:
            raise AssetError(f"{path} cannot be read ({error}); install recap again") from error
        if not len(table):
            raise AssetError(f"{path} is empty; install recap again")
        return cls(table)

    def save(self, path: Path) -> None:
        """Write the set."""
        self._table.tofile(path)

    def have(self, triples: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell for each triple whether it is in the set."""
        byte, bit = self._places(np.asarray(triples, np.uint64).reshape(-1, 3))
        found: npt.NDArray[np.bool_] = ((self._table[byte] & bit) != 0).all(0)
        return found

    def _places(self, triples: Triples) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Return for each hash and triple a byte of the table and a bit of that byte."""
        mixed = ((triples + np.uint64(1)) * _ODD).sum(1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODD[1]
        steps = (mixed >> np.uint64(32)) | np.uint64(1)
        numbers = np.arange(HASHES, dtype=np.uint64)[:, None]
        places = (mixed + numbers * steps) % np.uint64(8 * len(self._table))
        return places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)


def triples_of(sentence: Sequence[int], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return every three words in a row, the sentence's beginning and end counted as words."""
    return [(one, two, three) for (one, two), (_, three) in pairwise(pairwise((begin, *sentence, end)))]


def often_written(sentences: Iterable[Sequence[int]], begin: int, end: int, least: int = 3) -> list[tuple[int, ...]]:
    """Return the triples that occur at least so often; fewer may be slips of the pen."""
    counts = Counter(triple for sentence in sentences for triple in triples_of(sentence, begin, end))
    return [triple for triple, count in counts.items() if count >= least]
