"""Which language model? ``--option models=none,writer,smollm2`` names them; ``none`` takes a retrieved caption."""

from __future__ import annotations

from dataclasses import replace

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS
from recap.experiments.paper import paper_table
from recap.experiments.search import COLUMNS, SEARCH_OPTIONS, Search, beside, draw_rows, judged_notes
from recap.experiments.table import Section, Table
from recap.settings import Settings

OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "models")

MODELS = "none,writer"


def run(setup: Setup) -> Outcome:
    """Caption dev with every language model."""
    new_figure(1, 1)  # says at once what is not installed
    systems: dict[str, list[str]] = {}
    for name in setup.listed("models", MODELS):
        search = Search(replace(setup, language_model=name))
        k = search.k if search.model else Settings().pool
        systems[f"{name}, k = {k}"] = search.texts(k)
    rows = search.rows(systems)
    title = search.titled(search.bench.encoder.name)
    paper = [beside("language-models", section, "RN50x64") for section in paper_table("language-models")["sections"]]
    table = Table("Language models", COLUMNS, (Section(title, rows), *paper), judged_notes(), first="model")
    return Outcome({"search-lm": table}, {"search-lm": draw_rows(title, rows)})
