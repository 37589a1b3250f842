"""What every reader of pairs shares: how a caption is checked, and how a broken record is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from recap.errors import InputError

OnBroken: TypeAlias = Callable[[InputError], None]
"""Called with what is wrong with a record."""


class MissingCaptionError(InputError):
    """A picture that nobody has described."""


def printable(name: str) -> str:
    """Return a file's name as text that can be written anywhere; bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def as_captions(value: Any, where: str) -> list[str] | InputError:
    """Return one caption or several as folded texts without the blank ones, or what is wrong with them."""
    texts = value if isinstance(value, list | tuple) else [value]
    texts = [text for text in texts if text is not None]
    for text in texts:
        if not isinstance(text, str):
            return InputError(f"{where}: a caption must be text, not {text!r:.80}")
    folded = [line for text in texts if (line := " ".join(text.split()))]
    return folded or MissingCaptionError(f"{where}: no caption")
