"""Words: how texts are cut where captions are compared, read or written by words."""

from __future__ import annotations

import re
from functools import lru_cache

# letters and digits of scripts without spaces stand alone, other words as they are written
_SOLID = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_SOLID}]|[^\W{_SOLID}]+(?:['\u2019-][^\W{_SOLID}]+)*")
_GAP = re.compile(rf"(?<=[{_SOLID}]) (?=[{_SOLID}])")


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
