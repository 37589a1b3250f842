"""Transfer: the map comes from one data set, the pictures from another.

The datastore holds the captions of the target, of the source, or of both; ``--option source=NAME`` names the source.
How captions are made is said by ``settings``, ``k``, ``temperature``, ``samples`` and ``selection``: see
``recap.experiments.choices``.
"""

from __future__ import annotations

from recap.datastore import CaptionStore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import judged_note, recap_captions, score_cells, score_systems
from recap.experiments.choices import METHODS, SETTINGS_OPTIONS, caption_settings, model_name, settings_note
from recap.experiments.data import TITLES, Bench
from recap.experiments.paper import paper_section, paper_table
from recap.experiments.table import Column, Row, Section, Table
from recap.language import load_language_model

OPTIONS = ("source", *SETTINGS_OPTIONS)

METRICS = {"CIDEr-D": "cider-d", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
COLUMNS = tuple(map(Column, METRICS))
MAPS = ("PR", "OLS")


def run(setup: Setup) -> Outcome:
    """Caption the target's test pictures with the source's map and three datastores, and with the target's own map."""
    bench, origin = Bench(setup), setup.option("source", "coco")
    if origin == setup.on:
        raise InputError(f"source and target are both {origin}: name another with --on or --option source=NAME")
    source, target, test = bench.load(origin, "train"), bench.load(setup.on, "train"), bench.measured(setup.on)
    near, far = target.store(bench.encoder), source.store(bench.encoder)
    stores: dict[str, CaptionStore] = {"target": near, "source + target": DatastoreView([near, far]), "source": far}
    model = load_language_model(setup.language_model or "none")
    settings, systems = caption_settings(setup, model), {}
    for label in MAPS:
        carried, own = source.fit(METHODS[label]), target.fit(METHODS[label])
        cases = [(f"{label}, {name}", carried, store) for name, store in stores.items()]
        for case, alignment, store in [*cases, (f"{label} of the target, target", own, near)]:
            parts = (bench.encoder, alignment, store, test.images)
            systems[case] = recap_captions(*parts, language_model=model, settings=settings)
    reports = score_systems(bench, test, systems, list(METRICS.values()))
    rows = tuple(Row(label, cells) for label, cells in score_cells(reports, list(METRICS)).items())
    title = f"{TITLES[origin]} to {test.titled(bench.encoder.name, model_name(model))}"
    paper = [
        paper_section("transfer", section, list(METRICS), setting="from MS-COCO, RN50x64, FLAN-T5-Large")
        for section in paper_table("transfer")["sections"]
    ]
    notes = (
        "The map is the source's unless said otherwise.",
        settings_note(settings, model, map="of the row"),
        judged_note(bench),
    )
    table = Table("Transfer", COLUMNS, (Section(title, rows), *paper), notes, first="map, datastore")
    return Outcome({"transfer": table})
