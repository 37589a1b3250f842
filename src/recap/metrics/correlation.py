"""How well metrics agree with people: Kendall's tau, accuracy on pairs, agreement among the people; tables and a plot.

Tau needs the number of pairs of judgements that the two rankings order differently. It is counted from the bits of the
ranks, in O(n log n) for any data and in a few passes where people gave few different scores. The passes are planned
once; a bootstrap sample changes only how often each judgement counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType
from rich.table import Table

from recap.datasets.judgements import Judgements, Preferences
from recap.errors import InputError
from recap.metrics.ngrams import Floats, Ints, Mask
from recap.metrics.report import Report, unavailable_lines
from recap.metrics.significance import new_figure, save_figure

Variant = Literal["b", "c"]

REPLICATES = 500
"""Bootstrap samples behind an interval."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Kendall's tau of a metric with human judgement, both variants, with 95 % intervals."""

    metric: str
    tau_b: float
    tau_c: float
    interval_b: tuple[float, float]
    interval_c: tuple[float, float]
    standard_error_b: float
    standard_error_c: float
    judgements: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often a metric prefers the caption that people prefer."""

    metric: str
    mean: float
    """Over the categories, each weighing the same."""
    by_category: dict[str, float]
    pairs: int


def kendall_tau(first: npt.ArrayLike, second: npt.ArrayLike, variant: Variant = "b") -> float:
    """Return Kendall's tau of two lists of numbers; NaN when one of them is constant.

    Tau-b corrects for ties and suits two rankings of equal scale; tau-c suits a fine scale against a coarse one.
    """
    one, other = _checked(first, second)
    taus = _Ranking(one, other).taus(np.ones(len(one)))
    return taus[0] if variant == "b" else taus[1]


def correlate(
    metric: str,
    scores: npt.ArrayLike,
    human: npt.ArrayLike,
    images: Sequence[str] | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Correlation:
    """Return tau-b and tau-c of a metric with human scores, with intervals from a bootstrap over images.

    Judgements of one image are not independent, so whole images are drawn; without ``images`` single judgements are.
    """
    one, other = _checked(scores, human)
    ranking = _Ranking(one, other)
    tau_b, tau_c = ranking.taus(np.ones(len(one)))
    owners = np.arange(len(one)) if images is None else np.unique(np.asarray(images), return_inverse=True)[1]
    samples = _bootstrap(ranking, owners, replicates, seed)
    low, high = np.nanpercentile(samples, [2.5, 97.5], axis=0) if replicates > 1 else np.full((2, 2), np.nan)
    errors = np.nanstd(samples, axis=0, ddof=1) if replicates > 1 else np.full(2, np.nan)
    return Correlation(
        metric,
        tau_b,
        tau_c,
        (float(low[0]), float(high[0])),
        (float(low[1]), float(high[1])),
        float(errors[0]),
        float(errors[1]),
        len(one),
    )


def correlate_report(
    report: Report, judgements: Judgements, *, replicates: int = REPLICATES, seed: int = 0
) -> list[Correlation]:
    """Correlate each metric of a report with every single rating; captions without a value are left out.

    The report is one of ``recap.metrics.evaluate.evaluate_judgements``.
    """
    raters = [len(ratings) for ratings in judgements.ratings]
    human = np.array([rating for ratings in judgements.ratings for rating in ratings])
    images = np.repeat(np.array(judgements.images), raters)
    found = []
    for row in report:
        scores = np.repeat(row.per_image, raters)
        usable = np.isfinite(scores) & np.isfinite(human)
        owners = images[usable].tolist()
        found.append(correlate(row.name, scores[usable], human[usable], owners, replicates=replicates, seed=seed))
    return found


def accuracies(report: Report, preferences: Preferences) -> list[Accuracy]:
    """Return for each metric how often it prefers what people prefer; pairs without a majority are left out."""
    votes = np.array(preferences.votes)
    decided = votes[:, 0] != votes[:, 1]
    first_wins = votes[:, 0] > votes[:, 1]
    kinds = np.array(preferences.categories)
    found = []
    for row in report:
        first, second = row.per_image[: len(votes)], row.per_image[len(votes) :]
        winner, loser = np.where(first_wins, first, second), np.where(first_wins, second, first)
        usable = decided & np.isfinite(winner) & np.isfinite(loser)
        by_kind = {
            str(kind): pairwise_accuracy(winner[usable & (kinds == kind)], loser[usable & (kinds == kind)])
            for kind in np.unique(kinds[usable])
        }
        found.append(Accuracy(row.name, float(np.mean(list(by_kind.values()))), by_kind, int(usable.sum())))
    return found


def pairwise_accuracy(preferred: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Return how often the caption that people preferred scores higher; a tie counts half."""
    winners, losers = _checked(preferred, other)
    return float(np.mean((winners > losers) + 0.5 * (winners == losers)))


def rater_tau(ratings: npt.ArrayLike, variant: Variant = "b") -> float:
    """Return the mean tau over all pairs of raters; ``ratings`` has one row an item and one column a rater."""
    table = np.asarray(ratings, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise InputError("agreement needs a table of at least two raters: one row an item, one column a rater")
    pairs = combinations(range(table.shape[1]), 2)
    return float(np.mean([kendall_tau(table[:, one], table[:, other], variant) for one, other in pairs]))


def rater_agreement(counts: npt.ArrayLike) -> tuple[float, float]:
    """Return the share of pairs of raters that agree, and Fleiss' kappa, which takes chance off.

    ``counts`` has one row an item and one column a category, and says how many raters chose it; items may have
    different numbers of raters, those with fewer than two are left out.
    """
    table = np.asarray(counts, dtype=np.float64)
    raters = table.sum(axis=1)
    table, raters = table[raters > 1], raters[raters > 1]
    if not len(table):
        raise InputError("agreement needs items that at least two raters judged")
    agreeing = (table * (table - 1)).sum(axis=1) / (raters * (raters - 1))
    chance = float(((table.sum(axis=0) / table.sum()) ** 2).sum())
    observed = float(agreeing.mean())
    return observed, (observed - chance) / (1 - chance) if chance < 1 else float("nan")


@dataclass(frozen=True, slots=True)
class _Pass:
    """One bit of the ranks: pairs that agree in all higher bits and differ in this one."""

    order: Ints
    ones: Mask
    """Where the bit is set, in that order."""
    start: Ints
    """For each place, where its group (equal higher bits) starts."""


class _Ranking:
    """Two rankings of the same items, prepared so that tau under any weights takes a few cumulative sums."""

    def __init__(self, first: Floats, second: Floats) -> None:
        self._first = np.unique(first, return_inverse=True)[1]
        self._second = np.unique(second, return_inverse=True)[1]
        levels = int(self._second.max()) + 1
        self._both = np.unique(self._first * levels + self._second, return_inverse=True)[1]
        # among equals of the first, the second ascends: they never count as inverted
        order = np.lexsort((self._second, self._first))
        self._passes = [_plan(order, self._second, bit) for bit in reversed(range((levels - 1).bit_length()))]

    def taus(self, weights: Floats) -> tuple[float, float]:
        """Return tau-b and tau-c when item ``i`` occurs ``weights[i]`` times."""
        total = float(weights.sum())
        first, second = np.bincount(self._first, weights), np.bincount(self._second, weights)
        pairs = _pairs(np.array([total]))
        untied_first, untied_second = pairs - _pairs(first), pairs - _pairs(second)
        tied_both = _pairs(np.bincount(self._both, weights))
        discordant = sum(_inverted(plan, weights) for plan in self._passes)
        difference = untied_first + untied_second - pairs + tied_both - 2 * discordant
        classes = min(np.count_nonzero(first), np.count_nonzero(second))
        if classes < 2:
            return float("nan"), float("nan")
        tau_b = difference / np.sqrt(untied_first) / np.sqrt(untied_second)
        return float(tau_b), float(2 * difference * classes / (total**2 * (classes - 1)))


def _plan(order: Ints, ranks: Ints, bit: int) -> _Pass:
    order = order[np.argsort(ranks[order] >> (bit + 1), kind="stable")]
    sorted_ranks = ranks[order]
    group = sorted_ranks >> (bit + 1)
    heads = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    start = np.repeat(heads, np.diff(np.append(heads, len(order))))
    return _Pass(order, (sorted_ranks >> bit) % 2 == 1, start)


def _inverted(plan: _Pass, weights: Floats) -> float:
    """Return the weight of pairs in which a higher rank comes before a lower one."""
    drawn = weights[plan.order]
    before = np.concatenate([[0.0], np.cumsum(drawn * plan.ones)])
    zeros = np.flatnonzero(~plan.ones)
    return float(drawn[zeros] @ (before[zeros] - before[plan.start[zeros]]))


def _pairs(counts: Floats | Ints) -> float:
    return float((counts * (counts - 1)).sum() / 2)


def _bootstrap(ranking: _Ranking, owners: Ints, replicates: int, seed: int) -> Floats:
    generator = np.random.default_rng(seed)
    images = int(owners.max()) + 1
    samples = np.empty((replicates, 2))
    for replicate in range(replicates):
        drawn = np.bincount(generator.integers(0, images, images), minlength=images)
        samples[replicate] = ranking.taus(drawn[owners].astype(np.float64))
    return samples


def _checked(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Floats, Floats]:
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim != 1 or one.shape != other.shape or not len(one):
        raise InputError(
            f"expected two lists of equal length, at least one number each: got {one.shape}, {other.shape}"
        )
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise InputError("NaN or infinite scores: leave those judgements out first")
    return one, other


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
