"""A caption with its reasons, laid out for a reader at a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recap.text import Attribution, attribute
from recap.types import Caption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ROWS = 5
"""So many candidates, and captions without a part in the caption, are shown."""

COLOURS = ("cyan", "magenta", "yellow", "blue", "green")
"""Of the captions that words come from; from the sixth on they begin again."""

_BAR = 8
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_explanation(
    path: str | Path, caption: Caption, console: Console | None = None, *, withheld: bool = False
) -> None:
    """Print a caption with the captions its words come from, the best candidates, and how sure it is.

    Each word has the number of the retrieved caption it owes most to, so that nothing is told by colour alone.
    A caption that is ``withheld``, since it is not sure enough, is shown as such, and so is one that is unsure.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False, soft_wrap=True)
    attribution = attribute(caption)
    numbers = _numbered(attribution)
    console.print(Text(_plain(str(path)), style="bold"))
    console.print(Text("  ") + _mark(caption, withheld) + _caption(caption, attribution, numbers))
    console.print(Text(f"  {_facts(caption)}", style="dim"))
    if attribution.unsupported:
        named = ", ".join(map(_plain, attribution.unsupported))
        console.print(Text(f"  in none of the retrieved captions: {named}", style="red"))
    for row in _evidence(attribution, numbers):
        console.print(row)
    for row in _candidates(caption):
        console.print(row)
    console.print()


def _numbered(attribution: Attribution) -> dict[int, int]:
    """Return numbers from 1 on for the retrieved captions that words owe most to, the nearest first."""
    used = sorted({word.sources[0].evidence for word in attribution.words if word.sources})
    return {place: number for number, place in enumerate(used, 1)}


def _caption(caption: Caption, attribution: Attribution, numbers: dict[int, int]) -> Text:
    from rich.text import Text

    line, done = Text(), 0
    for word in attribution.words:
        line.append(_plain(caption.text[done : word.start]))
        if word.kind == "evidence":
            number = numbers[word.sources[0].evidence]
            line.append(_plain(word.text), style=f"bold {_colour(number)}")
            line.append(_superscript(number), style=_colour(number))
        elif word.kind == "nowhere":
            line.append(_plain(word.text), style="bold red underline")
            line.append("?", style="red")
        else:
            line.append(_plain(word.text), style="dim")
        done = word.end
    return line.append(_plain(caption.text[done:]))


def _mark(caption: Caption, withheld: bool) -> Text:
    """Return what is said before a caption that is not to be relied on."""
    from rich.text import Text

    if withheld:
        return Text("withheld: ", style="red")
    return Text("? unsure: " if caption.unsure else "", style="yellow")


def _facts(caption: Caption) -> str:
    sure = "" if caption.confidence is None else f"{caption.confidence:.0%} sure, "
    return f"{sure}aligned cosine {caption.score:.2f}, chosen by {caption.selection}"


def _evidence(attribution: Attribution, numbers: dict[int, int]) -> list[Text]:
    """Return a line for each retrieved caption that words come from, and for the nearest others."""
    from rich.text import Text

    rows = [place for place in range(len(attribution.evidence)) if place in numbers or place < ROWS]
    best = max((item.similarity for item in attribution.evidence), default=1.0)
    lines = []
    for row, place in enumerate(rows):
        item, number = attribution.evidence[place], numbers.get(place)
        line = _start("evidence" if row == 0 else "", item.similarity, best)
        line.append(f"{number or '':>2} ", style=_colour(number) if number else "dim")
        owed = [word.text for word in attribution.words if word.sources and word.sources[0].evidence == place]
        line.append_text(_marked(item.text, owed, _colour(number) if number else ""))
        told = ", ".join(part for part in (_plain(item.source), "machine-written" if item.synthetic else "") if part)
        lines.append(line.append_text(Text(f"  ({told})" if told else "", style="dim")))
    return lines


def _marked(text: str, words: Sequence[str], style: str) -> Text:
    """Return a retrieved caption with the words marked that the caption owes to it."""
    from rich.text import Text

    from recap.text import same_word, surface_words

    line, done = Text(), 0
    for word in surface_words(text):
        start = text.index(word, done)
        line.append(_plain(text[done:start]))
        same = any(same_word(word.casefold(), other.casefold()) for other in words)
        line.append(_plain(word), style=f"bold {style}" if same else "")
        done = start + len(word)
    return line.append(_plain(text[done:]))


def _candidates(caption: Caption) -> list[Text]:
    from rich.text import Text

    best = max((item.score for item in caption.candidates), default=1.0)
    lines = []
    for row, item in enumerate(caption.candidates[:ROWS]):
        line = _start("candidates" if row == 0 else "", item.score, best).append(f"   {_plain(item.text)}")
        lines.append(line.append_text(Text("  (by the model)" if item.origin == "lm" else "", style="dim")))
    return lines


def _start(title: str, value: float, best: float) -> Text:
    from rich.text import Text

    filled = round(_BAR * max(0.0, min(1.0, value / best))) if best > 0 else 0
    line = Text().append(f"  {title:<10} {value:5.2f} ", style="dim")
    return line.append("━" * filled, style="blue").append("╌" * (_BAR - filled), style="dim")


def _colour(number: int) -> str:
    return COLOURS[(number - 1) % len(COLOURS)]


def _superscript(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))


def _plain(text: str) -> str:
    """Return a text that cannot steer the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
