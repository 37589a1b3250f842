"""Captions on a terminal: one a line, as json, or laid out with their reasons."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from recap.batch.formats import Record, Sink
from recap.cli.options import print_json, printable, warn
from recap.language.words import Attribution, attribute, same_word, surface_words
from recap.selection import describe_choice
from recap.types import Caption

if TYPE_CHECKING:
    from recap.batch.run import CaptionJob, Summary

ROWS = 5
"""Number of candidates, and of evidence without a part in the caption, that are shown."""

REASONS = 3
"""Reasons why pictures could not be read that are shown at the end, those of most pictures first."""

COLOURS = ("cyan", "magenta", "yellow", "blue", "green")
"""Colours of the evidence, used in turn."""

_BAR = 8


class Printer(Sink):
    """Prints captions as they come: a sink."""

    def __init__(self, *, as_json: bool, explain: bool, language: str = "en") -> None:
        self.as_json = as_json
        self.explain = explain
        self.language = language

    def add(self, record: Record) -> None:
        """Print one; of a withheld caption only the path, and the reason on standard error.

        "unsure" is for people: what goes into a pipe or a file keeps its two columns.
        """
        if self.as_json:
            print_json(record.as_dict())
        elif self.explain:
            print_explanation(record.path, record.as_caption(), withheld=record.abstained, language=self.language)
        else:
            flagged = record.unsure and sys.stdout.isatty()
            flag = click.style(f"\t? unsure, {record.caption['confidence']:.0%}", fg="yellow") if flagged else ""
            click.echo(f"{printable(record.path)}\t{printable(record.text)}{flag}")
            if record.abstained:
                warn(f"{record.path}: withheld, only {record.caption['confidence']:.0%} sure")


def print_summary(job: CaptionJob, summary: Summary, *, detailed: bool) -> None:
    """Say in a line what was done, if it is not on the screen already, and how many failed."""
    if job.out:
        click.echo(f"{job.out}: {summary}", err=True)
    elif summary.abstained:
        warn(f"{summary.abstained} of {summary.files} captions were withheld as not sure enough")
    if summary.unsure and not (job.out or detailed or sys.stdout.isatty()):
        count = f"{summary.unsure} of {summary.files} captions"
        warn(f"{count} are unsure, and probably wrong: --json and --explain say which")
    if summary.failed:
        where = f": see {job.errors_file}" if job.out else ""
        warn(f"{summary.failed} of {summary.files} pictures could not be read{where}")
    for reason, times in summary.reasons.most_common(REASONS):
        if times > 1:
            warn(f"{times:,} of them: {reason}")


def print_explanation(
    path: str | Path, caption: Caption, console: Console | None = None, *, withheld: bool = False, language: str = "en"
) -> None:
    """Print a caption with the captions its words come from, the best candidates, and how sure it is.

    Each word has the number of the retrieved caption it owes most to, so that nothing depends on colour alone.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    attribution = attribute(caption, language=language)
    numbers = _number_evidence(attribution)
    console.print(Text(printable(str(path)), style="bold"))
    console.print(Text("  ") + _flag(caption, withheld) + _caption(caption, attribution, numbers))
    console.print(Text(f"  {_facts(caption)}", style="dim"))
    if attribution.unsupported:
        named = ", ".join(map(printable, attribution.unsupported))
        console.print(Text(f"  in none of the retrieved captions: {named}", style="red"))
    for row in _evidence(attribution, numbers):
        console.print(row)
    for row in _candidates(caption):
        console.print(row)
    console.print()


def _number_evidence(attribution: Attribution) -> dict[int, int]:
    """Return numbers from 1 on for the retrieved captions that words owe most to, the nearest first."""
    used = sorted({word.sources[0].evidence for word in attribution.words if word.sources})
    return {place: number for number, place in enumerate(used, 1)}


def _caption(caption: Caption, attribution: Attribution, numbers: dict[int, int]) -> Text:
    line, done = Text(), 0
    for word in attribution.words:
        line.append(printable(caption.text[done : word.start]))
        if word.kind == "evidence":
            number = numbers[word.sources[0].evidence]
            line.append(printable(word.text), style=f"bold {_colour(number)}")
            line.append(_superscript(number), style=_colour(number))
        elif word.kind == "nowhere":
            line.append(printable(word.text), style="bold red underline")
            line.append("?", style="red")
        else:
            line.append(printable(word.text), style="dim")
        done = word.end
    return line.append(printable(caption.text[done:]))


def _flag(caption: Caption, withheld: bool) -> Text:
    """Return the warning before a caption that is not to be relied on."""
    if withheld:
        return Text("withheld: ", style="red")
    return Text("? unsure: " if caption.unsure else "", style="yellow")


def _facts(caption: Caption) -> str:
    sure = "" if caption.confidence is None else f"{caption.confidence:.0%} sure, "
    return f"{sure}aligned cosine {caption.score:.2f}, {describe_choice(caption.selection)}"


def _evidence(attribution: Attribution, numbers: dict[int, int]) -> list[Text]:
    """Return a line for each retrieved caption that words come from, and for the nearest others."""
    rows = [place for place in range(len(attribution.evidence)) if place in numbers or place < ROWS]
    best = max((item.similarity for item in attribution.evidence), default=1.0)
    lines = []
    for row, place in enumerate(rows):
        item, number = attribution.evidence[place], numbers.get(place)
        line = _start("evidence" if row == 0 else "", item.similarity, best)
        line.append(f"{number or '':>2} ", style=_colour(number) if number else "dim")
        owed = [word.text for word in attribution.words if word.sources and word.sources[0].evidence == place]
        line.append_text(_highlight(item.text, owed, _colour(number) if number else "", attribution.language))
        origin = ", ".join(
            part for part in (printable(item.source), "machine-written" if item.synthetic else "") if part
        )
        lines.append(line.append_text(Text(f"  ({origin})" if origin else "", style="dim")))
    return lines


def _highlight(text: str, words: Sequence[str], style: str, language: str) -> Text:
    """Return a retrieved caption with the words marked that the caption owes to it."""
    line, done = Text(), 0
    for word in surface_words(text):
        start = text.index(word, done)
        line.append(printable(text[done:start]))
        same = any(same_word(word.casefold(), other.casefold(), language) for other in words)
        line.append(printable(word), style=f"bold {style}" if same else "")
        done = start + len(word)
    return line.append(printable(text[done:]))


def _candidates(caption: Caption) -> list[Text]:
    best = max((item.score for item in caption.candidates), default=1.0)
    lines = []
    for row, item in enumerate(caption.candidates[:ROWS]):
        line = _start("candidates" if row == 0 else "", item.score, best).append(f"   {printable(item.text)}")
        lines.append(line.append_text(Text("  (by the model)" if item.origin == "lm" else "", style="dim")))
    return lines


def _start(title: str, value: float, best: float) -> Text:
    filled = round(_BAR * max(0.0, min(1.0, value / best))) if best > 0 else 0
    line = Text().append(f"  {title:<10} {value:5.2f} ", style="dim")
    return line.append("━" * filled, style="blue").append("╌" * (_BAR - filled), style="dim")


def _colour(number: int) -> str:
    return COLOURS[(number - 1) % len(COLOURS)]


def _superscript(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))
