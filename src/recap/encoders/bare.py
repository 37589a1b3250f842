"""Texts without their closing full stop: whether a caption has one says nothing about the picture."""

from __future__ import annotations

from collections.abc import Sequence

from recap.encoders.base import BARE, TextEncoder
from recap.encoders.network import fingerprint_of
from recap.types import Vectors

_CLOSING = " \t\n.!?,;:\u3002\uff01\uff1f"


class BareTextEncoder:
    """A text encoder that reads each text up to its last word."""

    def __init__(self, whole: TextEncoder) -> None:
        self.whole = whole
        self.name = whole.name + BARE
        self.fingerprint = fingerprint_of("bare", whole.fingerprint)
        self.dimension = whole.dimension

    @property
    def truncated(self) -> int:
        """How many texts so far were longer than the window and have been cut before the end token."""
        return self.whole.truncated

    @truncated.setter
    def truncated(self, count: int) -> None:
        self.whole.truncated = count

    def encode_texts(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """Return one unit row for each text; one that is punctuation alone is read as it is."""
        if isinstance(texts, str):
            return self.whole.encode_texts(texts)
        return self.whole.encode_texts([bare(text) for text in texts], progress=progress)


def bare(text: str) -> str:
    """Return a text without closing punctuation, unless nothing else is in it."""
    return text.rstrip(_CLOSING) or text
