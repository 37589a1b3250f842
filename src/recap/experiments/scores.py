"""Every metric of ``recap.metrics`` for captions of one encoded split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from recap.alignment import LinearAlignment
from recap.encoders import Encoder
from recap.errors import InputError
from recap.experiments.data import Split
from recap.experiments.table import Cell
from recap.metrics.evaluate import evaluate
from recap.metrics.report import Report
from recap.metrics.statistics import MetricResult, mean_result
from recap.types import ImageLike, Vectors

PARSED = ("spice", "softspice")
"""Metrics that parse all references: done once for all systems, their corpus value being a mean."""

NO_POINTS = ("MID", "CLIPScore (100 cos)")
"""What is not shown in hundredths."""


def score_systems(
    encoder: Encoder,
    alignment: LinearAlignment,
    test: Split,
    systems: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
) -> dict[str, Report]:
    """Return a report for each system, whose captions are in the order of the split; one map judges all of them.

    Where the split has no captions of people, the metrics that need none are left.
    """
    references = test.captions if test.is_told else None
    known = replace(encoder, image=_Known(encoder, test))
    judge = partial(evaluate, encoder=known, alignment=alignment)
    parsed = [name for name in metrics if name in PARSED]
    others = [name for name in metrics if name not in PARSED]
    together = judge(
        [text for captions in systems.values() for text in captions],
        references,
        test.ids,
        metrics=parsed,
        image_index=np.tile(np.arange(len(test.ids)), len(systems)),
    )
    reports = {}
    for number, (name, captions) in enumerate(systems.items()):
        own = slice(number * len(test.ids), (number + 1) * len(test.ids))
        report = judge(captions, references, test.ids, metrics=others)
        rows = (*report.rows, *(mean_result(row.name, row.per_image[own]) for row in together.rows))
        reports[name] = replace(report, rows=rows, unavailable=(*report.unavailable, *together.unavailable))
    return reports


def score_cells(reports: Mapping[str, Report], names: Sequence[str]) -> dict[str, tuple[Cell, ...]]:
    """Return for each system the cells of some metrics, by their names in a report."""
    found = {}
    for label, report in reports.items():
        known = {row.name: points(row) for row in report.rows}
        found[label] = tuple(known.get(name, Cell()) for name in names)
    return found


def points(result: MetricResult) -> Cell:
    """Return a metric for a table: in hundredths, with its standard error where there is one."""
    scale = 1 if result.name in NO_POINTS else 100
    if not np.isfinite(result.value):
        return Cell()
    return Cell(scale * result.value, scale * result.standard_error if np.isfinite(result.standard_error) else None)


class _Known:
    """An image encoder that knows the pictures of a split by their ids."""

    def __init__(self, encoder: Encoder, split: Split) -> None:
        self.name, self.fingerprint = encoder.image.name, encoder.image.fingerprint
        self.dimension = encoder.image.dimension
        self._vectors = dict(zip(split.ids, split.images, strict=True))

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return the rows of pictures by id."""
        return np.stack(list(self.encode_each(images)))

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors]:
        """Yield the row of each picture by id."""
        for image in images:
            if not isinstance(image, str) or image not in self._vectors:
                raise InputError(f"{image!r} is no picture of this split")
            yield self._vectors[image]
