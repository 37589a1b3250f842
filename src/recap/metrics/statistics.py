"""What a metric returns, and how sure one may be of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recap.errors import RecapWarning
from recap.metrics.ngrams import Floats

NO_POINTS = ("MID", "CLIPScore (100 cos)")
"""Metrics that are no fractions, and are shown as they are."""


def in_points(name: str, value: float) -> float:
    """Return a score as it is shown everywhere: in points, a hundred times the fraction that a metric computes."""
    return value if name in NO_POINTS else 100 * value


class MetricWarning(RecapWarning):
    """A metric was computed, but the number means less than it seems to."""


@dataclass(frozen=True, slots=True, repr=False)
class MetricResult:
    """A metric over a corpus and for each candidate."""

    name: str
    value: float
    """The corpus value."""
    per_image: Floats
    """One value for each candidate, in the order they were given."""
    standard_error: float
    """Of ``value``, from the spread over candidates; NaN when there is only one."""

    def __repr__(self) -> str:
        value, error = (in_points(self.name, number) for number in (self.value, self.standard_error))
        return f"MetricResult({self.name!r}, {value:.1f} ± {error:.1f} points, {len(self.per_image):,} captions)"


def mean_result(name: str, per_image: Floats) -> MetricResult:
    """Make the result of a metric whose corpus value is the mean over candidates."""
    return MetricResult(name, float(per_image.mean()), per_image, mean_standard_error(per_image))


def mean_standard_error(values: Floats) -> float:
    """Return the standard error of the mean: the sample deviation over the root of the number of values."""
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def bootstrap_sums(rows: Floats, statistic: Callable[[Floats], Floats], *, replicates: int, seed: int) -> Floats:
    """Apply ``statistic`` to column sums of ``rows`` drawn again with replacement.

    ``statistic`` takes (replicates, columns) sums and returns one row for each; all replicates together are returned.
    A corpus value that depends on the rows through their sums only needs no second look at the sentences.
    """
    generator = np.random.default_rng(seed)
    count = len(rows)
    sums = np.empty((replicates, rows.shape[1]))
    for replicate in range(replicates):
        drawn = generator.integers(0, count, count)
        sums[replicate] = np.bincount(drawn, minlength=count) @ rows
    return statistic(sums)
