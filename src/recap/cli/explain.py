"""A caption with its reasons, laid out for a reader at a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recap.types import Caption

ROWS = 4
"""So many candidates and captions are shown."""


def print_explanation(path: Path, caption: Caption) -> None:
    """Print one caption with its score, the best candidates and the nearest captions."""
    console = Console(highlight=False)
    console.print(Text(str(path), style="bold"))
    console.print(Padding(Text(caption.text, style="bold green"), (0, 0, 0, 2)))
    console.print(Text(f"  aligned cosine {caption.score:.2f}, chosen by {caption.selection}", style="dim"))
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right", style="dim")
    table.add_column(overflow="fold")
    for row, item in enumerate(caption.candidates[:ROWS]):
        written = " (model)" if item.origin == "lm" else ""
        table.add_row("candidates" if row == 0 else "", f"{item.score:.2f}", Text(item.text + written))
    for row, found in enumerate(caption.evidence[:ROWS]):
        table.add_row("evidence" if row == 0 else "", f"{found.similarity:.2f}", Text(found.text))
    console.print(Padding(table, (0, 0, 1, 2)))
