"""Every way to align: does what retrieves better also caption better?"""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import Judge, recap_captions, unimodal_captions
from recap.experiments.data import TITLES, Bench, Split
from recap.experiments.methods import Fitted, fit_all, left_out
from recap.experiments.paper import paper_section
from recap.experiments.recall import mean_cell, retrieve
from recap.experiments.retrieval import fitting_times
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.language import load_language_model
from recap.settings import Settings

OPTIONS = ("maps",)

COLUMNS = (
    Column("i2t R@1"),
    Column("t2i R@1"),
    Column("cos", 3),
    *(Column(name) for name in Judge.METRICS),
)

JUDGE = "ols"
"""The map behind aCLIP-S and RefaCLIP-S, whatever map wrote the captions: as ``recap score`` has it."""


def run(setup: Setup) -> Outcome:
    """Fit every map on train, retrieve and caption test with each."""
    bench = Bench(setup)
    train, test = bench.load(setup.on, "train"), bench.load(setup.on, "test")
    store = train.store(bench.encoder)
    judge = Judge(bench.encoder, train.fit(JUDGE), test)
    model = load_language_model(setup.language_model or "none")
    fitted = list(fit_all(train, bench.encoder, setup))
    settings = Settings().but(seed=setup.seed)
    unimodal = unimodal_captions(train, store, test.images, language_model=model, settings=settings)
    rows = [Row("UM", (Cell(), Cell(), Cell(), *judge.cells(unimodal)))]
    for item in fitted:
        captions = recap_captions(
            bench.encoder, item.alignment, store, test.images, language_model=model, settings=settings
        )
        rows.append(Row(item.label, (*_recall(item, test), *judge.cells(captions))))
    writer = model.name if model else "no language model"
    title = f"{TITLES[setup.on]} test, {bench.encoder.name}, {writer}, {len(test.ids):,} pictures"
    paper = paper_section("alignment", "MS-COCO", [column.name for column in COLUMNS], setting="RN50x64, FLAN-T5-Large")
    notes = (f"aCLIP-S and RefaCLIP-S are judged by the {JUDGE} map in every row.", *left_out(bench.encoder))
    table = Table("Ways to align", COLUMNS, (Section(title, tuple(rows)), paper), notes)
    return Outcome({"alignment": table}, times=fitting_times(fitted))


def _recall(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall at 1 both ways, and the mean cosine of pairs."""
    images, texts = item.alignment.transform(test.images), item.alignment.transform_texts(test.texts)
    found = retrieve(images, texts, test.owners)
    return found.to_text(1), found.to_image(1), mean_cell(found.text_cosines)
