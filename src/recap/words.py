"""Words: how texts are cut where captions are compared, read or written by words."""

from __future__ import annotations

import re
from functools import lru_cache

# letters and digits of scripts without spaces stand alone, other words as they are written
_SOLID = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
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


def same_word(one: str, other: str) -> bool:
    """Tell whether two words in lower case are the same but for an English ending: dog and dogs, run and running."""
    return one == other or not roots(one).isdisjoint(roots(other))


@lru_cache(maxsize=1 << 14)
def roots(word: str) -> frozenset[str]:
    """Return what a word in lower case may be without its English ending; a rest without a vowel is no word."""
    word = word.removesuffix("'s").removesuffix("\u2019s")
    found = {word}
    for ending, others in (("s", ("",)), ("es", ("",)), ("ies", ("y",)), ("ing", ("", "e")), ("ed", ("", "e"))):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 - (ending == "ies") and any(vowel in rest for vowel in "aeiouy"):
            found.update(rest + other for other in others)
            if ending in ("ing", "ed") and rest[-1] == rest[-2]:
                found.add(rest[:-1])
    return frozenset(found)
