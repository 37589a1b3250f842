"""A caption with its reasons, laid out for a reader at a terminal."""

from __future__ import annotations

from pathlib import Path

import click

from recap.types import Caption

ROWS = 4
"""So many candidates and captions are shown."""


def print_explanation(path: Path, caption: Caption) -> None:
    """Print one caption with its score, the best candidates and the nearest captions."""
    click.secho(str(path), bold=True)
    click.secho(f"  {caption.text}", bold=True, fg="green")
    click.secho(f"  aligned cosine {caption.score:.2f}, chosen by {caption.selection}", dim=True)
    written = {"lm": "  (by the model)", "retrieved": ""}
    candidates = [(item.score, item.text + written[item.origin]) for item in caption.candidates[:ROWS]]
    evidence = [(item.similarity, item.text) for item in caption.evidence[:ROWS]]
    for title, rows in (("candidates", candidates), ("evidence", evidence)):
        for number, (value, text) in enumerate(rows):
            click.echo(click.style(f"  {title if number == 0 else '':<10} {value:.2f}  ", dim=True) + text)
    click.echo()
