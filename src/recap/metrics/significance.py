"""Is one system better than another, and which metrics say the same? Paired bootstrap and Pearson correlation."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from recap.errors import InputError, MissingExtraError
from recap.files import atomic_write, csv_text
from recap.metrics.corpus import MetricResult, bootstrap_sums, in_points
from recap.metrics.ngrams import Floats
from recap.metrics.overlap import bleu_of_counts
from recap.metrics.report import Report, number, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLICATES = 1000
"""Bootstrap samples behind a p-value: the smallest one it can show is 0.002."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems on the same images under one metric."""

    metric: str
    value: float
    other: float
    difference: float
    """``value`` minus ``other``."""
    interval: tuple[float, float]
    """95 % of the differences when images are drawn again."""
    p_value: float
    """Two-sided: how often a difference of the other sign, or none, would be seen; small means the sign is sure."""

    def points(self) -> tuple[float, ...]:
        """Return both values, their difference and its interval in points."""
        return tuple(in_points(self.metric, n) for n in (self.value, self.other, self.difference, *self.interval))


def compare(report: Report, other: Report, *, replicates: int = REPLICATES, seed: int = 0) -> list[Comparison]:
    """Compare two systems under every metric that both reports hold, by a paired bootstrap over images.

    Means are drawn again from their values, BLEU from its counts. A metric whose corpus value is neither has no
    interval and no p-value (NaN).
    """
    if report.ids != other.ids:
        raise InputError("two systems are compared on the same images in the same order: score them together")
    theirs = {row.name: row for row in other}
    return [
        _compared(row, theirs[row.name], _differences(row, theirs[row.name], report, other, replicates, seed))
        for row in report
        if row.name in theirs
    ]


def pearson(report: Report) -> tuple[list[str], Floats]:
    """Return the names of metrics and the correlation of their values over images; NaN where a metric is constant."""
    names = [row.name for row in report]
    columns = np.array([row.per_image for row in report])
    if not len(columns):
        raise InputError("there is no metric to correlate")
    usable = columns[:, np.isfinite(columns).all(axis=0)]
    if usable.shape[1] < 2:
        raise InputError("a correlation between metrics needs at least two images that all of them could score")
    centred = usable - usable.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1))
    scale = lengths[:, np.newaxis] * lengths
    products = centred @ centred.T
    return names, np.divide(products, scale, out=np.full_like(products, np.nan), where=scale > 0)


def save_heatmap(report: Report, path: str | Path) -> None:
    """Draw the correlation between metrics into a picture; the suffix says which kind."""
    save_figure(heatmap(*pearson(report)).savefig, path)


def heatmap(names: Sequence[str], matrix: Floats) -> Figure:
    """Return a figure of the correlation between metrics."""
    size = 2 + 0.55 * len(names)
    figure = new_figure(size + 1, size, "the heat map")
    axes = figure.add_subplot()
    image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    for (row, column), value in np.ndenumerate(matrix):
        colour = "white" if abs(value) > 0.6 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="Pearson correlation over images")
    return figure


def new_figure(width: float, height: float, what: str = "drawing figures", extra: str = "plot") -> Figure:
    """Return an empty figure, its size in inches; ``what`` needs ``extra`` to be installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(what, extra) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(save: Callable[..., None], path: str | Path) -> None:
    """Write a figure atomically, in the kind its suffix names."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in ("png", "pdf", "svg"):
        raise InputError(f"{path}: a plot is written as .png, .pdf or .svg")
    with atomic_write(path) as file:
        save(file, format=kind, dpi=150)


def _differences(
    row: MetricResult, theirs: MetricResult, report: Report, other: Report, replicates: int, seed: int
) -> Floats | None:
    """Return the difference in each bootstrap sample, or None where the metric allows no such sample."""
    if row.name.startswith("BLEU-"):
        if report.bleu_counts is None or other.bleu_counts is None:
            return None
        place, width = int(row.name[-1]) - 1, report.bleu_counts.shape[1]

        def statistic(sums: Floats) -> Floats:
            return bleu_of_counts(sums[:, :width])[:, place] - bleu_of_counts(sums[:, width:])[:, place]

        both = np.hstack([report.bleu_counts, other.bleu_counts])
        return bootstrap_sums(both, statistic, replicates=replicates, seed=seed)
    if not (_is_mean(row) and _is_mean(theirs)):
        return None
    differences = row.per_image - theirs.per_image
    return _resampled_mean(differences[np.isfinite(differences)], replicates, seed)


def _compared(row: MetricResult, theirs: MetricResult, samples: Floats | None) -> Comparison:
    nan = float("nan")
    interval, p_value = ((nan, nan), nan) if samples is None else (_interval(samples), _p_value(samples))
    return Comparison(row.name, row.value, theirs.value, row.value - theirs.value, interval, p_value)


def _resampled_mean(values: Floats, replicates: int, seed: int) -> Floats:
    rows = values[:, np.newaxis]
    return bootstrap_sums(rows, lambda sums: sums[:, 0] / len(values), replicates=replicates, seed=seed)


def _is_mean(row: MetricResult) -> bool:
    return math.isclose(row.value, float(np.nanmean(row.per_image)), rel_tol=1e-6, abs_tol=1e-9)


def _interval(samples: Floats) -> tuple[float, float]:
    low, high = np.percentile(samples, [2.5, 97.5])
    return float(low), float(high)


def _p_value(samples: Floats) -> float:
    below, above = np.count_nonzero(samples <= 0), np.count_nonzero(samples >= 0)
    return float(min(1.0, 2 * (min(below, above) + 1) / (len(samples) + 1)))


def in_common(systems: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the captions of images that every system has, in the order of the first."""
    shared = [image for image in systems[0] if all(image in system for system in systems)]
    if not shared:
        raise InputError("the two files of candidates have no image in common")
    left_out = max(len(system) for system in systems) - len(shared)
    if left_out:
        warnings.warn(f"{left_out} images are in one file of candidates only and are left out", stacklevel=2)
    return [{image: system[image] for image in shared} for system in systems]


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons as csv."""
    header = ["metric", "points", "other", "difference", "low", "high", "p_value"]
    rows = [(c.metric, *c.points(), c.p_value) for c in comparisons]
    return csv_text(header, rows)


def reports_json(reports: Sequence[Report], comparisons: Sequence[Comparison], *, per_image: bool = False) -> str:
    """Return a report as json, with the other one and the comparison where there is one."""
    values = reports[0].as_dict(per_image=per_image)
    if comparisons:
        values["other"] = reports[1].as_dict(per_image=per_image)
        values["comparison"] = [
            {
                "metric": item.metric,
                "difference": number(item.points()[2]),
                "interval": [number(bound) for bound in item.points()[3:]],
                "p_value": number(item.p_value),
            }
            for item in comparisons
        ]
    return json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2)


def comparisons_table(comparisons: Sequence[Comparison]) -> list[RenderableType]:
    """Return what ``rich.print`` shows of comparisons: nothing if there are none."""
    if not comparisons:
        return []
    title = "first minus other, 95 % interval and p-value of a paired bootstrap"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("metric", "first", "other", "difference", "interval", "p"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for item in comparisons:
        value, other, difference, low, high = map(shown, item.points())
        table.add_row(item.metric, value, other, difference, f"{low} to {high}", f"{item.p_value:.4f}")
    return ["", table]
