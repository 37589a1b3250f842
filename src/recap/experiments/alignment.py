"""Every way to align: does what retrieves better also caption better?

``--option metrics=cider-d,aclip-s`` computes these columns only. How captions are made is said by ``settings``, ``k``,
``temperature``, ``samples`` and ``selection``: see ``recap.experiments.choices``.
"""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import Study, score_cells, score_systems, unimodal_captions
from recap.experiments.choices import SETTINGS_OPTIONS, Fitted, fit_all, unavailable_maps
from recap.experiments.data import Split
from recap.experiments.paper import paper_section
from recap.experiments.retrieval import fitting_times, mean_cell, retrieve
from recap.experiments.table import Cell, Column, Row, Section, Table

OPTIONS = ("maps", "metrics", *SETTINGS_OPTIONS)

METRICS = {"CIDEr-D": "cider-d", "SPICE": "spice", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
REPORTED = [{"SPICE": "SPICE-py"}.get(name, name) for name in METRICS]
COLUMNS = (Column("i2t R@1"), Column("t2i R@1"), Column("cos", 3), *map(Column, METRICS))


def run(setup: Setup) -> Outcome:
    """Fit every map on train, retrieve and caption test with each."""
    study = Study(setup, "none")
    test = study.measured(setup.on)
    fitted = list(fit_all(study.train, study.encoder, setup))
    systems = {"UM": unimodal_captions(study, test.images)}
    systems |= {item.label: study.caption(item.alignment, test) for item in fitted}
    metrics = setup.listed("metrics", ",".join(METRICS.values()))
    scores = score_cells(score_systems(study, test, systems, metrics), REPORTED)
    rows = [Row("UM", (Cell(), Cell(), Cell(), *scores["UM"]))]
    rows += [Row(item.label, (*_recall(item, test), *scores[item.label])) for item in fitted]
    paper = paper_section("alignment", "MS-COCO", [column.name for column in COLUMNS], setting="RN50x64, FLAN-T5-Large")
    notes = (*study.notes(map="of the row"), "Our SPICE is SPICE-py.", *unavailable_maps(study.encoder))
    table = Table("Ways to align", COLUMNS, (Section(study.titled(test), tuple(rows)), paper), notes)
    return Outcome({"alignment": table}, times=fitting_times(fitted))


def _recall(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall at 1 both ways, and the mean cosine of pairs."""
    images, texts = item.alignment.transform(test.images), item.alignment.transform_texts(test.texts)
    found = retrieve(images, texts, test.owners)
    return found.to_text(1), found.to_image(1), mean_cell(found.text_cosines)
