"""Transfer: the map comes from one data set, the pictures from another.

The datastore holds the captions of the target, of the source, or of both; ``--option source=NAME`` names the source.
"""

from __future__ import annotations

from recap.datastore import CaptionStore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import Judge, recap_captions
from recap.experiments.data import TITLES, Bench
from recap.experiments.paper import paper_section, paper_table
from recap.experiments.table import Column, Row, Section, Table
from recap.language import load_language_model

OPTIONS = ("source",)

COLUMNS = tuple(Column(name) for name in Judge.METRICS)
METHODS = {"PR": "procrustes", "OLS": "ols"}
JUDGE = "ols"


def run(setup: Setup) -> Outcome:
    """Caption the target's test pictures with the source's map and three datastores, and with the target's own map."""
    bench, origin = Bench(setup), setup.option("source", "coco")
    if origin == setup.on:
        raise InputError(f"source and target are both {origin}: name another with --on or --option source=NAME")
    source, target = bench.load(origin, "train"), bench.load(setup.on, "train")
    test = bench.load(setup.on, "test")
    near, far = target.store(bench.encoder), source.store(bench.encoder)
    stores: dict[str, CaptionStore] = {"target": near, "source + target": DatastoreView([near, far]), "source": far}
    judge = Judge(bench.encoder, target.fit(JUDGE), test)
    model = load_language_model(setup.language_model or "none")
    rows = []
    for label, method in METHODS.items():
        carried = source.fit(method)
        cases = [(f"{label}, {name}", carried, store) for name, store in stores.items()]
        cases.append((f"{label} of the target, target", target.fit(method), stores["target"]))
        for case, alignment, store in cases:
            captions = recap_captions(bench.encoder, alignment, store, test.images, language_model=model)
            rows.append(Row(case, judge.cells(captions)))
    writer = model.name if model else "no language model"
    title = f"{TITLES[origin]} to {TITLES[setup.on]} test, {bench.encoder.name}, {writer}, {len(test.ids):,} pictures"
    names = [column.name for column in COLUMNS]
    paper = [
        paper_section("transfer", section, names, setting="from MS-COCO, RN50x64, FLAN-T5-Large")
        for section in paper_table("transfer")["sections"]
    ]
    notes = (
        f"The map is the source's unless said otherwise. aCLIP-S and RefaCLIP-S are judged by the {JUDGE} map of the "
        "target in every row.",
    )
    table = Table("Transfer", COLUMNS, (Section(title, tuple(rows)), *paper), notes, first="map, datastore")
    return Outcome({"transfer": table})
