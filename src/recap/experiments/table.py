"""Tables of values with standard errors, the best of each column marked, and the paper's numbers to stand beside ours.

``paper.json`` holds every table of "Linear Alignment of Vision-language Models for Image Captioning" by a short name:
its label there, its columns, and its rows in sections. A cell is a value, a value with its standard error, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from recap.errors import InputError, check_name
from recap.files import csv_text, html_table, latex_escaped, markdown_row

Better: TypeAlias = Literal["higher", "lower", "neither"]

ABSENT = "-"
BOLD = "Bold: the best, and all whose standard errors overlap with it."


@dataclass(frozen=True, slots=True)
class Cell:
    """A number with its standard error where there is one, a word, or nothing."""

    value: float | str | None = None
    error: float | None = None

    def shown(self, digits: int) -> str:
        """Return the cell for a reader."""
        if self.value is None:
            return ABSENT
        if isinstance(self.value, str):
            return self.value
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds, how many digits are shown, and which values are better."""

    name: str
    digits: int = 1
    better: Better = "higher"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that are compared with each other: one data set and encoder, or one table of the paper."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """Sections with the same columns."""

    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    first: str = "method"
    """What the labels of the rows are."""

    def best(self, section: Section, column: int) -> frozenset[int]:
        """Return the rows with the best value, and those whose standard errors overlap with the best one's.

        As in the paper, two are on a par when their 68 % intervals overlap: |a - b| <= error of a + error of b.
        """
        better = self.columns[column].better
        cells = [row.cells[column] for row in section.rows]
        values = {place: cell.value for place, cell in enumerate(cells) if isinstance(cell.value, float | int)}
        if better == "neither" or len(values) < 2:
            return frozenset()
        place = (max if better == "higher" else min)(values, key=lambda row: values[row])
        top, error = values[place], cells[place].error or 0.0
        return frozenset(
            row for row, value in values.items() if abs(top - value) <= error + (cells[row].error or 0.0) + 1e-12
        )

    @property
    def header(self) -> list[str]:
        """What stands above the labels and the columns."""
        return [self.first, *(column.name for column in self.columns)]

    @property
    def has_best(self) -> bool:
        """Whether anything is marked as the best."""
        return any(self.best(section, place) for section in self.sections for place in range(len(self.columns)))

    def to_text(self) -> str:
        """Return aligned columns; a star follows the best."""
        grid = [(section, self.marked_rows(section, lambda text: f"{text}*")) for section in self.sections]
        widths = [
            max(map(len, column))
            for column in zip(self.header, *(row for _, rows in grid for row in rows), strict=True)
        ]
        lines = [self.title, "", _aligned(self.header, widths)]
        for section, rows in grid:
            lines += ["", section.title] if section.title else [""]
            lines += [_aligned(row, widths) for row in rows]
        starred = ["* the best, and all whose standard errors overlap with it"] if self.has_best else []
        notes = [*starred, *self.notes]
        return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"

    def to_markdown(self) -> str:
        """Return a table in markdown; the best is bold."""
        lines = [
            f"**{self.title}**",
            "",
            markdown_row(self.header),
            markdown_row(["---", *("---:" for _ in self.columns)]),
        ]
        for section in self.sections:
            if section.title:
                lines.append(markdown_row([f"*{section.title}*", *("" for _ in self.columns)]))
            lines += map(markdown_row, self.marked_rows(section, lambda text: f"**{text}**"))
        notes = [*([BOLD] if self.has_best else []), *self.notes]
        return "\n".join([*lines, *(["", " ".join(notes)] if notes else [])]) + "\n"

    def to_latex(self) -> str:
        """Return a table for LaTeX with the package booktabs; the best is bold."""
        count = len(self.columns)
        header = " & ".join(map(latex_escaped, self.header))
        caption = latex_escaped(" ".join((self.title + ".", *self.notes)))
        lines = [r"\begin{table}", rf"\caption{{{caption}}}", r"\centering"]
        lines += [rf"\begin{{tabular}}{{l{'c' * count}}}", r"\toprule", header + r" \\"]
        for section in self.sections:
            lines.append(r"\midrule")
            if section.title:
                lines += [rf"\multicolumn{{{count + 1}}}{{c}}{{{latex_escaped(section.title)}}} \\", r"\midrule"]
            rows = self.marked_rows(section, lambda text: rf"\textbf{{{text}}}", latex_escaped)
            lines += [" & ".join(row) + r" \\" for row in rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"

    def to_csv(self) -> str:
        """Return one line a row, not rounded, each value with its standard error."""
        header = ["section", self.first, *(name for c in self.columns for name in (c.name, f"{c.name} standard error"))]
        rows = [
            [section.title, row.label, *(value for cell in row.cells for value in (cell.value, cell.error))]
            for section in self.sections
            for row in section.rows
        ]
        return csv_text(header, rows)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, not rounded, ready for json."""
        sections = []
        for section in self.sections:
            best = [self.best(section, place) for place in range(len(self.columns))]
            rows = [
                {
                    "label": row.label,
                    "cells": {
                        column.name: {"value": cell.value, "error": cell.error, "best": number in best[place]}
                        for place, (column, cell) in enumerate(zip(self.columns, row.cells, strict=True))
                    },
                }
                for number, row in enumerate(section.rows)
            ]
            sections.append({"title": section.title, "rows": rows})
        return {"title": self.title, "sections": sections, "notes": list(self.notes)}

    def _repr_html_(self) -> str:
        rows: list[Sequence[str]] = []
        for section in self.sections:
            rows += [[section.title]] if section.title else []
            rows += self.marked_rows(section, lambda text: f"{text}*")
        return html_table(self.header, rows, self.title)

    def to_json(self) -> str:
        """Return the table as json."""
        return json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"

    def render(self, kind: str) -> str:
        """Return the table in one of ``FORMATS``."""
        check_name("format", kind, FORMATS)
        return FORMATS[kind](self)

    def marked_rows(
        self, section: Section, mark: Callable[[str], str], written: Callable[[str], str] = str
    ) -> list[list[str]]:
        """Return the label and the cells of each row for a reader, ``written`` as the format needs, the best marked."""
        best = [self.best(section, place) for place in range(len(self.columns))]
        found = []
        for number, row in enumerate(section.rows):
            shown = [written(cell.shown(column.digits)) for column, cell in zip(self.columns, row.cells, strict=True)]
            cells = [mark(text) if number in best[place] else text for place, text in enumerate(shown)]
            found.append([written(row.label), *cells])
        return found


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "table": Table.to_text,
    "json": Table.to_json,
    "csv": Table.to_csv,
    "markdown": Table.to_markdown,
    "latex": Table.to_latex,
}

SUFFIXES = {"table": ".txt", "json": ".json", "csv": ".csv", "markdown": ".md", "latex": ".tex"}
"""How files of each format end."""


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([first, *rest]).rstrip()


ENCODER = "RN50x64"
"""The CLIP encoder behind the paper's results, where it names no other."""


JUDGED = {"flickr8k-expert": "Flickr8k-E", "flickr8k-crowdflower": "Flickr8k-CF", "thumb": "THumB"}
"""Data sets of judgements as ``recap correlate`` names them, and the paper's columns."""
OURS = {"BLEU@1": "BLEU-1", "BLEU@4": "BLEU-4", "CIDEr": "CIDEr-D", "aCLIP": "aCLIP-S"}
"""What the paper calls a metric in these tables, and its name in a report."""


def paper_section(
    table: str, section: str, columns: Sequence[str], *, setting: str = ENCODER, also: str = ""
) -> Section:
    """Return the rows of one section of the paper's table under our columns; what it does not report stays empty.

    ``also`` names a second table, which may have more columns of the same rows.
    """
    rows = _section(table, section)
    more = _section(also, section) if also else {}
    found = tuple(
        Row(label, tuple(_cell({**more.get(label, {}), **cells}.get(name)) for name in columns))
        for label, cells in rows.items()
    )
    return Section(f"the paper: {', '.join(part for part in (section, setting) if part)}", found)


def retrieval_sections(section: str, columns: Sequence[str], encoder: str) -> tuple[Section, ...]:
    """Return what the paper says of retrieval on one data set: ways to align, and this encoder as it is."""
    tables = ("retrieval", "retrieval-encoders")
    plain = paper_section(tables[1], section, columns, setting="encoders without alignment", also=tables[0])
    same = tuple(row for row in plain.rows if _plain(row.label.removeprefix("CLIP ")) == _backbone(encoder))
    aligned = paper_section(tables[0], section, columns, also=tables[1])
    return (aligned, replace(plain, rows=same)) if same else (aligned,)


def paper_judgements(data: str, encoder: str = "") -> dict[str, float]:
    """Return the paper's correlations with human judgement in percent, by our names of metrics.

    Nothing is known of other data than ``JUDGED``. What looks at the picture does so with ``ENCODER``; aCLIP-S and
    RefaCLIP-S of another CLIP, and the metrics of SigLIP, are those of ``encoder`` where the paper has it.
    """
    if data not in JUDGED:
        return {}
    place = list(JUDGED).index(data)
    found: dict[str, float | None] = {}
    for label, cells in _labelled("judgement"):
        metric, is_siglip, size = label.partition("SigLIP-")
        if not is_siglip:
            found[OURS.get(label, label)] = cells[place]
        elif f"ViT-{_plain(size)}-SigLIP" in encoder:
            found[f"{metric}SigLIP-S"] = cells[place]
    for label, cells in _labelled("judgement-encoders"):
        metric, _, backbone = label.partition(" ")
        if _plain(backbone) == _backbone(encoder):
            found[OURS.get(metric, metric)] = cells[place]
    return {metric: value for metric, value in found.items() if value is not None}


def paper_table(table: str) -> Mapping[str, Any]:
    """Return a table of the paper: ``label``, ``columns``, and ``sections`` of rows by label."""
    tables = _tables()
    if table not in tables:
        raise InputError(f"the paper has no table {table!r}; there are {', '.join(tables)}")
    found: Mapping[str, Any] = tables[table]
    return found


def _section(table: str, section: str) -> dict[str, dict[str, Any]]:
    """Return the cells of one section by row and column."""
    content = paper_table(table)
    if section not in content["sections"]:
        raise InputError(f"the paper's table {table} has no section {section!r}: {', '.join(content['sections'])}")
    rows = content["sections"][section].items()
    return {label: dict(zip(content["columns"], values, strict=True)) for label, values in rows}


def _labelled(table: str) -> list[tuple[str, list[Any]]]:
    """Return the rows of all sections of a table."""
    return [row for rows in paper_table(table)["sections"].values() for row in rows.items()]


def _backbone(encoder: str) -> str:
    """Return the model in a name such as ``open_clip:ViT-B-32-quickgelu/openai``."""
    return _plain(encoder.partition(":")[2].rpartition("/")[0]).removesuffix("-quickgelu")


def _plain(backbone: str) -> str:
    """Return one spelling for ``ViT-L/14@336px`` and ``ViT-L-14-336``."""
    return backbone.replace("/", "-").replace("@", "-").removesuffix("px")


@cache
def _tables() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
    return content


def _cell(value: Any) -> Cell:
    return Cell(*value) if isinstance(value, list) else Cell(value)
