"""The things a sentence about a photograph names, of COCO's 80 kinds of objects.

``things.json`` has the words people use for them, as they mean them in such a sentence; plurals are formed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeAlias

from recap.language.words import words

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

_Phrases: TypeAlias = Mapping[tuple[str, ...], Kinds]

_PLURALS = {"person": "people", "child": "children", "goose": "geese", "mouse": "mice", "human": "humans"}
_BEFORE_FRUIT, _AFTER_FRUIT = ({*_WORDS[name].split(", ")} for name in ("before_fruit", "after_fruit"))


@lru_cache(maxsize=1 << 16)
def named(text: str) -> tuple[Kinds, ...]:
    """Return the things that a text names, in its order: for each the kinds of objects its name may stand for."""
    tokens = _tokens(text)
    found = _scan(tokens, _names())
    starts, modifiers = {start for start, _, _ in found}, _listed(MODIFIERS)
    things = [kinds for start, end, kinds in found if not (tokens[start] in modifiers and end in starts)]
    return tuple(kinds for kinds in (*things, ("orange",) if _is_fruit(tokens) else ()) if kinds)


@lru_cache(maxsize=1 << 16)
def shown(text: str) -> frozenset[str]:
    """Return the kinds of things in a picture that somebody describes so: those named, and those hinted at."""
    hints = _scan(_tokens(text), _hints())
    return frozenset(kind for kinds in (*named(text), *(kinds for _, _, kinds in hints)) for kind in kinds)


def _tokens(text: str) -> list[str]:
    plain = text.replace("-", " ").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return [word.removesuffix("'s").replace("'", "") for word in words(plain)]


def _scan(tokens: Sequence[str], phrases: _Phrases) -> list[tuple[int, int, Kinds]]:
    """Return where phrases begin and end and what they stand for; a longer one goes before the words in it."""
    longest = max(map(len, phrases))
    found, place = [], 0
    while place < len(tokens):
        for end in range(min(place + longest, len(tokens)), place, -1):
            kinds = phrases.get(tuple(tokens[place:end]))
            if kinds is not None:
                found.append((place, end, kinds))
                place = end
                break
        else:
            place += 1
    return found


def _is_fruit(tokens: Sequence[str]) -> bool:
    """Tell whether an orange is named, and not the colour."""
    around = ["", *tokens, "", ""]
    for before, word, after, then in zip(around, tokens, around[2:], around[3:], strict=False):
        joined = after in ("and", "or") and then in ("a", "an", "some", "the")
        if word == "orange" and before in _BEFORE_FRUIT and (after in _AFTER_FRUIT or joined):
            return True
    return False


@cache
def _names() -> _Phrases:
    phrases: dict[tuple[str, ...], Kinds] = dict.fromkeys(_forms(NOTHING), ())
    phrases |= {phrase: (kind,) for kind, listed in THINGS.items() for phrase in _forms(listed)}
    return phrases | {phrase: _listed(kinds) for name, kinds in EITHER.items() for phrase in _forms(name)}


@cache
def _hints() -> _Phrases:
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
