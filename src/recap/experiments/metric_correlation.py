"""Which metrics say the same: Pearson correlation over test pictures of every metric. A heat map and its numbers.

``--option method=ols`` takes another map, ``--option pictures=1000`` fewer test pictures.
"""

from __future__ import annotations

import numpy as np

from recap.experiments.base import Outcome, Setup
from recap.experiments.captioning import chosen_pictures
from recap.experiments.captions import judged_note, recap_captions, score_systems
from recap.experiments.choices import SETTINGS_OPTIONS, WRITER, caption_settings, model_name, settings_note
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
    model = load_language_model(setup.language_model or WRITER)
    settings = caption_settings(setup, model)
    settings = settings.but(method=setup.option("method", settings.method))
    parts = (bench.encoder, train.fit(settings.method, seed=setup.seed), train.store(bench.encoder), test.images)
    captions = recap_captions(*parts, language_model=model, settings=settings)
    wanted = parse_metrics(setup.option("metrics", ",".join(name for name in METRICS.names() if name not in LEFT_OUT)))
    report = score_systems(bench, test, {"ReCap": captions}, wanted)["ReCap"]
    names, matrix = pearson(report)
    title = test.titled(bench.encoder.name, settings.method, model_name(model))
    rows = tuple(
        Row(name, tuple(Cell(float(value)) if np.isfinite(value) else Cell() for value in values))
        for name, values in zip(names, matrix, strict=True)
    )
    columns = tuple(Column(name, 2, "neither") for name in names)
    reasons = (f"{', '.join(missing)}: {reason}." for reason, missing in report.reasons().items())
    notes = (settings_note(settings, model), judged_note(bench), *reasons)
    table = Table("Correlation of metrics", columns, (Section(title, rows),), notes, first="metric")
    figure = heatmap(names, matrix)
    figure.suptitle(title, fontsize=9)
    return Outcome({"metric-correlation": table}, {"metric-correlation": figure})
