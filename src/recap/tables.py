"""Tables as csv, markdown, LaTeX or HTML; nothing heavy is imported."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape


def markdown_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in markdown."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(markdown_row([str(cell) for cell in line]) + "\n" for line in lines)


def markdown_row(cells: Sequence[str]) -> str:
    """Return a line of a table in markdown."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def latex_text(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table for LaTeX with the package booktabs."""
    lines = [" & ".join(latex_escaped(str(cell)) for cell in row) + r" \\" for row in (header, *rows)]
    above = [r"\begin{table}", rf"\caption{{{latex_escaped(caption)}}}", r"\centering"]
    above += [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
    below = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*above, lines[0], r"\midrule", *lines[1:], *below]) + "\n"


def latex_escaped(text: str) -> str:
    """Return a text without characters that command LaTeX."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    return "".join(named.get(letter, "\\" + letter if letter in "&%$#_{}" else letter) for letter in text)


def csv_text(header: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Return rows as csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return a table for a notebook; texts are escaped, and numbers stand on the right."""
    start = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
    lines = ["".join(map(_html_cell, row)) for row in rows]
    return f"<table>{start}<tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _html_cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td style="text-align:right">{value:.2f}</td>'
    return f'<td style="text-align:left">{escape(str(value))}</td>'
