"""Cross-modal retrieval: image to text and text to image, for every map."""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup
from recap.experiments.data import TITLES, Bench, Split
from recap.experiments.methods import Fitted, fit_all, left_out
from recap.experiments.paper import retrieval_sections
from recap.experiments.recall import mean_cell, retrieve
from recap.experiments.table import Cell, Column, Row, Section, Table

OPTIONS = ("maps",)

KS = (1, 5, 10)

COLUMNS = (
    *(Column(f"i2t R@{k}") for k in KS),
    Column("i2t cos", 3),
    *(Column(f"t2i R@{k}") for k in KS),
    Column("t2i cos", 3),
)

NOTES = (
    "Recall in percent. i2t: the picture finds one of its captions; cos: that of a picture with the closest of them. "
    "t2i: the caption finds its picture; cos: that of a caption with its picture.",
)

IN_PAPER = ("coco", "flickr30k")


def run(setup: Setup) -> Outcome:
    """Fit every map on train, and let pictures and captions of test find each other."""
    bench = Bench(setup)
    train, test = bench.load(setup.on, "train"), bench.measured(setup.on)
    fitted = list(fit_all(train, bench.encoder, setup))
    title = test.titled(bench.encoder.name)
    ours = Section(title, tuple(Row(item.label, recall_cells(item, test)) for item in fitted))
    names = [column.name for column in COLUMNS]
    known = [setup.on] if setup.on in IN_PAPER else IN_PAPER
    paper = [part for name in known for part in retrieval_sections(TITLES[name], names)]
    notes = (*NOTES, *left_out(bench.encoder))
    table = Table("Cross-modal retrieval", COLUMNS, (ours, *paper), notes)
    return Outcome({"retrieval": table}, times=fitting_times(fitted))


def recall_cells(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall and cosine of a map, both ways."""
    images, texts = item.alignment.transform(test.images), item.alignment.transform_texts(test.texts)
    found = retrieve(images, texts, test.owners)
    to_text, to_image = [found.to_text(k) for k in KS], [found.to_image(k) for k in KS]
    return (*to_text, mean_cell(found.image_cosines), *to_image, mean_cell(found.text_cosines))


def fitting_times(fitted: list[Fitted]) -> Table:
    """Return the CPU seconds each map took, and how many times as long as the quickest that is."""
    quickest = min(item.seconds for item in fitted)
    columns = (Column("CPU seconds", 2, "lower"), Column("times the quickest", 1, "lower"))
    rows = tuple(Row(item.label, (Cell(item.seconds), Cell(item.seconds / quickest))) for item in fitted)
    return Table("Time to fit the map, vectors given", columns, (Section("", rows),))
