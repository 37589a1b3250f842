"""All metrics in one call: each caption is tokenised once, each distinct picture and text is encoded once.

Metrics that cannot be computed (no references, no pictures, an encoder without a shared space, a part that is not
installed) are in the report with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recap.alignment import LinearAlignment
from recap.datasets.captions import Given, find_pictures
from recap.datasets.judgements import Judgements, Preferences
from recap.encoders.base import Encoder
from recap.errors import RecapError
from recap.files import progress_bar
from recap.metrics.corpus import MetricResult
from recap.metrics.overlap import bleu_counts
from recap.metrics.registry import BLEU, Judge, Metric, NotAvailableError, OwnMetric, choose_metrics
from recap.metrics.report import Report, Unavailable
from recap.types import ImageLike

PASCAL_SHOWN = 5
"""References of a preference that metrics see, of the 48 there are: the number other data sets have."""


def evaluate(
    candidates: Sequence[str] | Mapping[str, str],
    references: Sequence[Sequence[str]] | Mapping[str, Sequence[str]] | None = None,
    images: Sequence[ImageLike | None] | Mapping[str, ImageLike] | str | Path | None = None,
    *,
    encoder: Encoder | None = None,
    alignment: LinearAlignment | None = None,
    metrics: str | OwnMetric | Sequence[str | OwnMetric] = "all",
    image_index: Sequence[int] | npt.NDArray[np.integer] | None = None,
    progress: bool = False,
) -> Report:
    """Judge captions with any number of metrics.

    Args:
        candidates: one caption for each image, as a list, or by image id.
        references: what people wrote about each image, in the same order, or by image id.
        images: the pictures in the same order, by image id, or (with ids) the folder they lie in.
        encoder: for metrics that look at the picture; ``recap.load_encoder`` makes one.
        alignment: for aCLIP-S, RefaCLIP-S and CLIP+DN: the one of a pack, or fitted to pairs with the same encoder.
        metrics: names of ``METRICS``, ``"all"``, or several joined by commas; or functions of your own, which take the
            captions and their references and return a score for each, or one for all.
        image_index: for lists only: the image of each candidate, where an image has several or none.
        progress: whether to show bars.
    """
    wanted = choose_metrics(metrics)
    given = Given.of(candidates, references, images, image_index)
    judge = Judge(given, encoder, alignment, progress)
    rows: list[MetricResult] = []
    unavailable: list[Unavailable] = []
    bar = progress_bar(wanted, unit="metric", leave=False, progress=progress)
    for metric in bar:
        bar.set_description(metric.title, refresh=sys.stderr.isatty())
        try:
            rows.append(_score(judge, metric))
        except NotAvailableError as problem:
            unavailable.append(Unavailable(judge.display_name(metric.title), str(problem)))
    return Report(
        given.ids,
        tuple(rows),
        tuple(unavailable),
        encoder=encoder.name if encoder and judge.looked else "",
        alignment=f"{alignment.method} on {alignment.n_pairs_:,.0f} pairs" if alignment and judge.looked else "",
        problems=judge.problems,
        bleu_counts=bleu_counts(judge.corpus).astype(np.float64)
        if {metric.name for metric in wanted} & set(BLEU) and given.references is not None
        else None,
    )


def evaluate_judgements(
    judged: Judgements | Preferences,
    images: str | Path | None = None,
    *,
    encoder: Encoder | None = None,
    alignment: LinearAlignment | None = None,
    metrics: str | Sequence[str] = "all",
    progress: bool = False,
) -> Report:
    """Score captions that people judged, in their order; of preferences all first captions, then all second ones.

    ``images`` is the folder of the pictures. Metrics that need references are not available unless every judged
    picture has some.
    """
    if isinstance(judged, Preferences):
        captions, names = (*judged.first, *judged.second), judged.images
        references: Sequence[Sequence[str]] | None = [texts[:PASCAL_SHOWN] for texts in judged.references]
        index = [*range(len(names)), *range(len(names))]
    else:
        captions, names = judged.captions, tuple(dict.fromkeys(judged.images))
        place = {name: row for row, name in enumerate(names)}
        index = [place[name] for name in judged.images]
        complete = all(judged.references.get(name) for name in names)
        references = [judged.references[name] for name in names] if complete else None
    return evaluate(
        captions,
        references,
        None if images is None else find_pictures(names, images),
        encoder=encoder,
        alignment=alignment,
        metrics=metrics,
        image_index=index,
        progress=progress,
    )


def _score(judge: Judge, metric: Metric) -> MetricResult:
    try:
        result = metric.score(judge)
    except RecapError as error:
        if not metric.optional:
            raise
        raise NotAvailableError(str(error)) from error
    return replace(result, name=judge.display_name(result.name or metric.title))
