"""A caption with its reasons, laid out for a reader at a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recap.types import Caption

ROWS = 5


def print_explanation(path: Path, caption: Caption) -> None:
    """Print one caption with its score, the best candidates and the nearest captions."""
    console = Console(highlight=False)
    console.print(Text(str(path), style="bold"))
    console.print(Text.assemble("  ", (caption.text, "bold green")))
    console.print(Text(f"  aligned cosine {caption.score:.2f}, chosen by {caption.selection}", style="dim"))
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    table.add_column("  candidates", overflow="fold", ratio=1)
    table.add_column("score", justify="right")
    table.add_column("from")
    table.add_column("evidence", overflow="fold", ratio=1)
    table.add_column("cosine", justify="right")
    left = [
        (f"  {item.text}", f"{item.score:.2f}", "model" if item.origin == "lm" else "store")
        for item in caption.candidates[:ROWS]
    ]
    right = [(item.text, f"{item.similarity:.2f}") for item in caption.evidence[:ROWS]]
    for row in range(max(len(left), len(right))):
        table.add_row(
            *(left[row] if row < len(left) else ("", "", "")), *(right[row] if row < len(right) else ("", ""))
        )
    console.print(table)
    console.print()
