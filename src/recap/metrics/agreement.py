"""How metrics agree with people, for readers: rows, json, a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from recap.datasets.judgements import Judgements, Preferences
from recap.metrics.correlation import (
    Accuracy,
    Correlation,
    accuracies,
    correlate_report,
    rater_agreement,
    rater_tau,
)
from recap.metrics.report import Report, unavailable_lines
from recap.metrics.significance import new_figure, save_figure

Rows: TypeAlias = Sequence[Correlation | Accuracy]
"""One row a metric."""


def correlate_judgements(report: Report, judged: Judgements | Preferences, *, replicates: int) -> Rows:
    """Return how well each metric agrees with people: correlations with ratings, accuracies on preferences."""
    if isinstance(judged, Preferences):
        return accuracies(report, judged)
    return correlate_report(report, judged, replicates=replicates)


def correlation_rows(rows: Rows) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one line a metric, in percent."""
    lines: list[list[Any]] = []
    header = ["metric", "tau_b", "tau_b_low", "tau_b_high", "tau_c", "tau_c_low", "tau_c_high", "judgements"]
    for row in rows:
        if isinstance(row, Accuracy):
            header = ["metric", *row.by_category, "mean", "pairs"]
            lines.append([row.metric, *map(_percent, (*row.by_category.values(), row.mean)), row.pairs])
        else:
            taus = (row.tau_b, *row.interval_b, row.tau_c, *row.interval_c)
            lines.append([row.metric, *map(_percent, taus), row.judgements])
    return header, lines


def correlations_json(rows: Rows, judged: Judgements | Preferences, report: Report, paper: Mapping[str, float]) -> str:
    """Return everything as json; ``paper`` has the paper's correlations by metric."""
    header, lines = correlation_rows(rows)
    values = {
        "data": judged.name,
        "judged": len(judged),
        "encoder": report.encoder,
        "alignment": report.alignment,
        "metrics": [dict(zip(header, line, strict=True)) for line in lines],
        "unavailable": [{"metric": item.name, "reason": item.reason} for item in report.unavailable],
        "paper": dict(paper),
        **rater_facts(judged),
    }
    return json.dumps(values, indent=2)


def rater_facts(judged: Judgements | Preferences) -> dict[str, Any]:
    """Return how well the people agree with each other, as far as the data say."""
    if isinstance(judged, Judgements) and len({len(ratings) for ratings in judged.ratings}) == 1:
        if len(judged.ratings[0]) > 1:
            return {
                "between_raters": {f"tau_{v}": _percent(rater_tau(np.array(judged.ratings), v)) for v in ("b", "c")}
            }
        if judged.votes:
            observed, kappa = rater_agreement(judged.votes)
            return {"between_raters": {"agreement": _percent(observed), "kappa": _percent(kappa)}}
    return {}


def correlations_table(
    rows: Rows, judged: Judgements | Preferences, report: Report, paper: Mapping[str, float], paper_encoder: str
) -> list[RenderableType]:
    """Return what ``rich.print`` shows: a table, and below it what the paper, the people and missing metrics say."""
    title = ", ".join(part for part in (f"{judged.name}: {len(judged):,}", report.encoder, report.alignment) if part)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("metric")
    for row in rows:
        cells = _cells(row, paper)
        for column in list(cells)[len(table.columns) - 1 :]:
            table.add_column(column, justify="right")
        table.add_row(row.metric, *cells.values())
    below: list[RenderableType] = []
    if paper and isinstance(judged, Judgements):
        below.append(
            f"the paper: tau-{judged.variant}; what looks at the picture, with {paper_encoder} or this encoder"
        )
    for what, figures in rater_facts(judged).items():
        named = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in figures.items())
        below.append(f"{what.replace('_', ' ')}: {named}")
    return [table, *below, *unavailable_lines(report)]


def _cells(row: Correlation | Accuracy, paper: Mapping[str, float]) -> dict[str, str]:
    if isinstance(row, Accuracy):
        return {**{kind: _shown(value) for kind, value in row.by_category.items()}, "mean": _shown(row.mean)}
    return {
        "tau-b": _shown(row.tau_b),
        "95 %": " to ".join(map(_shown, row.interval_b)),
        "tau-c": _shown(row.tau_c),
        "95 % ": " to ".join(map(_shown, row.interval_c)),
        **({"the paper": f"{paper.get(row.metric, '-')}"} if paper else {}),
    }


def save_plot(rows: Rows, judged: Judgements | Preferences, path: str) -> None:
    """Draw one bar a metric: the tau that is usual on these data with its interval, or the accuracy."""
    variant = judged.variant if isinstance(judged, Judgements) else ""
    figure = new_figure(7, 1 + 0.35 * len(rows), "the plot")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        if isinstance(row, Accuracy):
            axes.barh(place, 100 * row.mean, color="steelblue")
        else:
            value, (low, high) = (row.tau_b, row.interval_b) if variant == "b" else (row.tau_c, row.interval_c)
            axes.barh(place, 100 * value, color="steelblue")
            axes.plot([100 * low, 100 * high], [place, place], color="black")
    axes.set_yticks(range(len(rows)), [row.metric for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"Kendall's tau-{variant}, percent" if variant else "accuracy, percent")
    axes.set_title(judged.name)
    save_figure(figure.savefig, path)


def _percent(value: float) -> float | None:
    return round(100 * value, 2) if value == value else None


def _shown(value: float) -> str:
    return f"{100 * value:.1f}" if value == value else "-"
