"""The outcome of an evaluation: one row a metric, as a table, json, csv, markdown or LaTeX, in points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from recap.errors import InputError
from recap.files import csv_text, html_table, latex_text, markdown_text
from recap.metrics.corpus import MetricResult, in_points
from recap.metrics.ngrams import Floats

DIGITS = 1
UNIT = "points: 100 times the fraction; MID and CLIPScore (100 cos) as they are"


HEADER = ("metric", "points (x 100)", "standard error")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A metric that was asked for and could not be computed here."""

    name: str
    reason: str


@dataclass(frozen=True, repr=False)
class Report:
    """Metrics of one system over some images."""

    ids: tuple[str, ...]
    """What each candidate is of, in the order of every ``per_image``."""
    rows: tuple[MetricResult, ...]
    unavailable: tuple[Unavailable, ...] = ()
    encoder: str = ""
    """Whose vectors the metrics on images were computed from."""
    alignment: str = ""
    """How images were aligned with captions."""
    problems: tuple[str, ...] = ()
    """Pictures that could not be read; their candidates have no value where a metric looks at the picture."""
    bleu_counts: Floats | None = None
    """What corpus BLEU is computed from, one row a candidate, so that two systems can be compared."""

    def __getitem__(self, name: str) -> MetricResult:
        """Return the row of a metric by its name, such as ``CIDEr-D``."""
        for row in self.rows:
            if row.name.lower() == name.lower():
                return row
        for missing in self.unavailable:
            if missing.name.lower() == name.lower():
                raise InputError(f"{missing.name} is not available: {missing.reason}")
        raise InputError(f"there is no {name!r} in this report; there are {', '.join(row.name for row in self)}")

    def __iter__(self) -> Iterator[MetricResult]:
        """Yield the rows."""
        return iter(self.rows)

    def as_dict(self, *, per_image: bool = False) -> dict[str, Any]:
        """Return plain values, ready for json; a number that does not exist is None."""
        values: dict[str, Any] = {
            "images": len(self.ids),
            "unit": UNIT,
            "encoder": self.encoder or None,
            "alignment": self.alignment or None,
            "metrics": [
                {"metric": name, "value": number(value), "standard_error": number(error)}
                for name, value, error in self._points()
            ],
            "unavailable": [{"metric": missing.name, "reason": missing.reason} for missing in self.unavailable],
            "problems": list(self.problems),
        }
        if per_image:
            columns = [(row.name, row.per_image) for row in self.rows]
            values["per_image"] = [
                {"id": image, **{name: number(in_points(name, column[place])) for name, column in columns}}
                for place, image in enumerate(self.ids)
            ]
        return values

    def to_json(self, *, per_image: bool = False) -> str:
        """Return the report as json."""
        return json.dumps(self.as_dict(per_image=per_image), ensure_ascii=False, allow_nan=False, indent=2)

    def to_csv(self, *, per_image: bool = False) -> str:
        """Return one line a metric, or with ``per_image`` one line an image and one column a metric."""
        if per_image:
            header = ["id", *(row.name for row in self.rows)]
            lines = [
                [image, *(_cell(in_points(row.name, row.per_image[i])) for row in self.rows)]
                for i, image in enumerate(self.ids)
            ]
        else:
            header = ["metric", "points", "standard_error", "note"]
            lines = [[name, _cell(value), _cell(error), ""] for name, value, error in self._points()]
            lines += [[missing.name, "", "", missing.reason] for missing in self.unavailable]
        return csv_text(header, lines)

    def to_markdown(self) -> str:
        """Return a table in markdown."""
        return markdown_text(HEADER, self._lines())

    def to_latex(self) -> str:
        """Return a table for LaTeX with the package booktabs."""
        return latex_text(HEADER, self._lines(), f"{len(self.ids):,} captions.")

    def _points(self) -> Iterator[tuple[str, float, float]]:
        """Yield each metric with its value and standard error in points."""
        for row in self.rows:
            yield row.name, in_points(row.name, row.value), in_points(row.name, row.standard_error)

    def _lines(self) -> list[list[str]]:
        """Return the rows for a reader, and what is not available below them."""
        lines = [[name, shown(value), shown(error)] for name, value, error in self._points()]
        return lines + [[missing.name, f"not available: {missing.reason}", ""] for missing in self.unavailable]

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {shown(value)}" for name, value, _ in self._points()) or "nothing"
        return f"Report({len(self.ids):,} captions: {values})"

    def _repr_html_(self) -> str:
        return html_table(HEADER, self._lines(), f"{len(self.ids):,} captions")

    def __rich__(self) -> Group:
        """Return what ``rich.print`` shows: a table, and what is not available below it."""
        title = f"{len(self.ids):,} captions" + "".join(f", {part}" for part in (self.encoder, self.alignment) if part)
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("metric")
        table.add_column("points (x 100)", justify="right")
        table.add_column("std. error", justify="right")
        table.add_column("")
        for row, (name, value, error) in zip(self.rows, self._points(), strict=True):
            left_out = int(np.isnan(row.per_image).sum())
            note = f"{left_out:,} without a readable picture" if left_out else ""
            table.add_row(name, shown(value), shown(error), Text(note, style="dim"))
        return Group(table, *unavailable_lines(self))

    def reasons(self) -> dict[str, list[str]]:
        """Return the metrics that are not available, by the reason."""
        found: dict[str, list[str]] = {}
        for missing in self.unavailable:
            found.setdefault(missing.reason, []).append(missing.name)
        return found


def unavailable_lines(report: Report) -> list[Text]:
    """Return one line for each reason why metrics are not available."""
    reasons = report.reasons().items()
    return [Text(f"not available: {', '.join(names)}: {reason}", style="dim") for reason, names in reasons]


def number(value: float) -> float | None:
    """Return a number as json knows it: None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def shown(value: float) -> str:
    """Return a number for a reader."""
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "-"


def _cell(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""
