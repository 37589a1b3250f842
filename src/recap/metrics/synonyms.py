"""Which words mean the same: the WordNet synsets that METEOR 1.5 carries, and that SPICE matches with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from recap.assets import fetch
from recap.errors import InputError


def word_set(text: str) -> frozenset[str]:
    """Return the words of a line: a list of words a person can read."""
    return frozenset(text.split())


class Synonyms:
    """Words that are equal or share a synset match. Parts of speech are not told apart, as in METEOR."""

    def __init__(self, synsets: Mapping[str, frozenset[str]]) -> None:
        self._synsets = synsets

    def match(self, one: str, other: str) -> bool:
        """Tell whether two lemmas are the same word or have a synset in common."""
        return one == other or not self.synsets(one).isdisjoint(self.synsets(other))

    def synsets(self, word: str) -> frozenset[str]:
        """Return the synsets of a lemma; words of a longer one are separated by a space."""
        return self._synsets.get(word.replace(" ", "_"), frozenset())

    @classmethod
    def read(cls, path: Path) -> Synonyms:
        """Read METEOR's synset file: a line with a word, then a line with the numbers of its synsets."""
        lines = path.read_text("utf-8").splitlines()
        if not lines or len(lines) % 2:
            raise InputError(f"{path}: not a synset file of METEOR: words and their synsets should alternate by line")
        return cls({word: frozenset(numbers.split()) for word, numbers in zip(lines[::2], lines[1::2], strict=True)})


@cache
def default_synonyms() -> Synonyms:
    """Return the English synsets (WordNet 3.0), fetched on first use."""
    return Synonyms.read(fetch("wordnet-synsets"))
