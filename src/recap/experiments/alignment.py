"""Every way to align: does what retrieves better also caption better?

``--option metrics=cider-d,aclip-s`` computes these columns only. How captions are made is said by ``settings``, ``k``,
``temperature``, ``samples`` and ``selection``: see ``recap.experiments.choices``.
"""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import judged_note, recap_captions, score_cells, score_systems, unimodal_captions
from recap.experiments.choices import (
    SETTINGS_OPTIONS,
    Fitted,
    caption_settings,
    fit_all,
    model_name,
    settings_note,
    unavailable_maps,
)
from recap.experiments.data import Bench, Split
from recap.experiments.paper import paper_section
from recap.experiments.retrieval import fitting_times, mean_cell, retrieve
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.language import load_language_model

OPTIONS = ("maps", "metrics", *SETTINGS_OPTIONS)

METRICS = {"CIDEr-D": "cider-d", "SPICE": "spice", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
REPORTED = [{"SPICE": "SPICE-py"}.get(name, name) for name in METRICS]
COLUMNS = (Column("i2t R@1"), Column("t2i R@1"), Column("cos", 3), *map(Column, METRICS))


def run(setup: Setup) -> Outcome:
    """Fit every map on train, retrieve and caption test with each."""
    bench = Bench(setup)
    train, test = bench.load(setup.on, "train"), bench.measured(setup.on)
    store = train.store(bench.encoder)
    model = load_language_model(setup.language_model or "none")
    fitted = list(fit_all(train, bench.encoder, setup))
    settings = caption_settings(setup, model)
    systems = {"UM": unimodal_captions(train, store, test.images, language_model=model, settings=settings)}
    for item in fitted:
        parts = (bench.encoder, item.alignment, store, test.images)
        systems[item.label] = recap_captions(*parts, language_model=model, settings=settings)
    metrics = setup.listed("metrics", ",".join(METRICS.values()))
    scores = score_cells(score_systems(bench, test, systems, metrics), REPORTED)
    rows = [Row("UM", (Cell(), Cell(), Cell(), *scores["UM"]))]
    rows += [Row(item.label, (*_recall(item, test), *scores[item.label])) for item in fitted]
    title = test.titled(bench.encoder.name, model_name(model))
    paper = paper_section("alignment", "MS-COCO", [column.name for column in COLUMNS], setting="RN50x64, FLAN-T5-Large")
    made = settings_note(settings, model, map="of the row")
    notes = (made, judged_note(bench), "Our SPICE is SPICE-py.", *unavailable_maps(bench.encoder))
    table = Table("Ways to align", COLUMNS, (Section(title, tuple(rows)), paper), notes)
    return Outcome({"alignment": table}, times=fitting_times(fitted))


def _recall(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall at 1 both ways, and the mean cosine of pairs."""
    images, texts = item.alignment.transform(test.images), item.alignment.transform_texts(test.texts)
    found = retrieve(images, texts, test.owners)
    return found.to_text(1), found.to_image(1), mean_cell(found.text_cosines)
