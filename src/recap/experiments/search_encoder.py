"""Which encoder? Captions with the vectors of one after the other, each with its own map and its own best k.

``--option encoders=builtin;builtin-large`` names them, between semicolons.
"""

from __future__ import annotations

from dataclasses import replace

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS, model_name
from recap.experiments.search import COLUMNS, SEARCH_OPTIONS, Search, beside, draw_rows
from recap.experiments.table import Cell, Column, Row, Section, Table

OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "encoders")

ENCODERS = "builtin;builtin-large"


def run(setup: Setup) -> Outcome:
    """Caption dev with every encoder."""
    new_figure(1, 1)  # says at once what is not installed
    rows: list[Row] = []
    sizes: list[tuple[Cell, Cell]] = []
    for name in setup.option("encoders", ENCODERS).split(";"):
        search = Search(replace(setup, encoder=name))
        rows += search.rows({name: search.texts(search.k)})
        sizes.append((Cell(search.k), Cell(f"{search.captioner.alignment.W_.size / 1000:,.0f}K")))
    title = search.titled(model_name(search.model))
    columns = (*COLUMNS, Column("k", 0, "neither"), Column("|theta|", better="neither"))
    ours = tuple(Row(row.label, (*row.cells, *more)) for row, more in zip(rows, sizes, strict=True))
    sections = (Section(title, ours), beside("encoders", "MS-COCO validation", "FLAN-T5-Large", columns))
    notes = ("aCLIP-S and RefaCLIP-S are judged with each encoder's own vectors: compare them within a row only.",)
    table = Table("Encoders", columns, sections, notes, first="encoder")
    return Outcome({"search-encoder": table}, {"search-encoder": draw_rows(title, rows)})
