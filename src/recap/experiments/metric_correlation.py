"""Which metrics say the same: Pearson correlation over test pictures of every metric. A heat map and its numbers.

``--option method=ols`` takes another map than Procrustes, ``--option pictures=1000`` fewer test pictures.
"""

from __future__ import annotations

import numpy as np

from recap.experiments.base import Outcome, Setup
from recap.experiments.captioning import chosen_pictures
from recap.experiments.captions import recap_captions, score_systems
from recap.experiments.choices import JUDGE, SETTINGS_OPTIONS, WRITER, caption_settings, model_name
from recap.experiments.data import Bench
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.language import load_language_model
from recap.metrics.registry import METRICS, parse_metrics
from recap.metrics.significance import heatmap, pearson

OPTIONS = ("method", "metrics", "pictures", *SETTINGS_OPTIONS)

LEFT_OUT = ("cider-plain", "clip+dn*", "acos", "refacos", "clipscore-100")
"""Variants that repeat another metric."""


def run(setup: Setup) -> Outcome:
    """Caption test as ReCap does, score with every metric, and correlate."""
    bench = Bench(setup)
    train, test = bench.load(setup.on, "train"), chosen_pictures(setup, bench.measured(setup.on))
    model, method = load_language_model(setup.language_model or WRITER), setup.option("method", "procrustes")
    captions = recap_captions(
        bench.encoder,
        train.fit(method, seed=setup.seed),
        train.store(bench.encoder),
        test.images,
        language_model=model,
        settings=caption_settings(setup, model),
    )
    wanted = parse_metrics(setup.option("metrics", ",".join(name for name in METRICS.names() if name not in LEFT_OUT)))
    report = score_systems(bench.encoder, train.fit(JUDGE), test, {"ReCap": captions}, wanted)["ReCap"]
    names, matrix = pearson(report)
    title = test.titled(bench.encoder.name, method, model_name(model))
    rows = tuple(
        Row(name, tuple(Cell(float(value)) if np.isfinite(value) else Cell() for value in values))
        for name, values in zip(names, matrix, strict=True)
    )
    columns = tuple(Column(name, 2, "neither") for name in names)
    notes = tuple(f"{', '.join(missing)}: {reason}." for reason, missing in report.reasons().items())
    table = Table("Correlation of metrics", columns, (Section(title, rows),), notes, first="metric")
    figure = heatmap(names, matrix)
    figure.suptitle(title, fontsize=9)
    return Outcome({"metric-correlation": table}, {"metric-correlation": figure})
