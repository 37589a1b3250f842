"""Which metrics say the same: Pearson correlation over test pictures of every metric. A heat map and its numbers.

``--option method=ols`` takes another map, ``--option pictures=1000`` fewer test pictures.
"""

from __future__ import annotations

import numpy as np

from recap.experiments.base import Outcome, Setup
from recap.experiments.captioning import chosen_pictures
from recap.experiments.captions import Study, score_systems
from recap.experiments.choices import SETTINGS_OPTIONS, model_name
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.metrics.registry import METRICS, parse_metrics
from recap.metrics.significance import heatmap, pearson

OPTIONS = ("method", "metrics", "pictures", *SETTINGS_OPTIONS)

LEFT_OUT = ("cider-plain", "clip+dn*", "acos", "refacos", "clipscore-100")
"""Variants that repeat another metric."""


def run(setup: Setup) -> Outcome:
    """Caption test as ReCap does, score with every metric, and correlate."""
    study = Study(setup)
    test, method = chosen_pictures(setup, study.measured(setup.on)), setup.option("method", study.settings.method)
    captions = study.caption(study.train.fit(method, seed=setup.seed), test)
    wanted = parse_metrics(setup.option("metrics", ",".join(name for name in METRICS.names() if name not in LEFT_OUT)))
    report = score_systems(study, test, {"ReCap": captions}, wanted)["ReCap"]
    names, matrix = pearson(report)
    title = test.titled(study.encoder.name, method, model_name(study.model))
    rows = tuple(
        Row(name, tuple(Cell(float(value)) if np.isfinite(value) else Cell() for value in values))
        for name, values in zip(names, matrix, strict=True)
    )
    columns = tuple(Column(name, 2, "neither") for name in names)
    reasons = (f"{', '.join(missing)}: {reason}." for reason, missing in report.reasons().items())
    notes = (*study.notes(map=method), *reasons)
    table = Table("Correlation of metrics", columns, (Section(title, rows),), notes, first="metric")
    figure = heatmap(names, matrix)
    figure.suptitle(title, fontsize=9)
    return Outcome({"metric-correlation": table}, {"metric-correlation": figure})
