"""Transfer: the map comes from one data set, the pictures from another.

The datastore holds the captions of the target, of the source, or of both; ``--option source=NAME`` names the source.
How captions are made is said by ``settings``, ``k``, ``temperature``, ``samples`` and ``selection``: see
``recap.experiments.choices``.
"""

from __future__ import annotations

from recap.datastore import CaptionStore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import Study, score_cells, score_systems
from recap.experiments.choices import METHODS, SETTINGS_OPTIONS
from recap.experiments.data import TITLES
from recap.experiments.paper import paper_section, paper_table
from recap.experiments.table import Column, Row, Section, Table

OPTIONS = ("source", *SETTINGS_OPTIONS)

METRICS = {"CIDEr-D": "cider-d", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
COLUMNS = tuple(map(Column, METRICS))
MAPS = ("PR", "OLS")


def run(setup: Setup) -> Outcome:
    """Caption the target's test pictures with the source's map and three datastores, and with the target's own map."""
    study, origin = Study(setup, "none"), setup.option("source", "coco")
    if origin == setup.on:
        raise InputError(f"source and target are both {origin}: name another with --on or --option source=NAME")
    source, target, test = study.load(origin, "train"), study.train, study.measured(setup.on)
    near, far = study.store, source.store(study.encoder)
    stores: dict[str, CaptionStore] = {"target": near, "source + target": DatastoreView([near, far]), "source": far}
    systems: dict[str, list[str]] = {}
    for label in MAPS:
        carried, own = source.fit(METHODS[label]), target.fit(METHODS[label])
        systems |= {f"{label}, {name}": study.caption(carried, test, store) for name, store in stores.items()}
        systems[f"{label} of the target, target"] = study.caption(own, test)
    reports = score_systems(study, test, systems, list(METRICS.values()))
    rows = tuple(Row(label, cells) for label, cells in score_cells(reports, list(METRICS)).items())
    title = f"{TITLES[origin]} to {study.titled(test)}"
    paper = [
        paper_section("transfer", section, list(METRICS), setting="from MS-COCO, RN50x64, FLAN-T5-Large")
        for section in paper_table("transfer")["sections"]
    ]
    notes = ("The map is the source's unless said otherwise.", *study.notes(map="of the row"))
    table = Table("Transfer", COLUMNS, (Section(title, rows), *paper), notes, first="map, datastore")
    return Outcome({"transfer": table})
