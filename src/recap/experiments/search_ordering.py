"""Where in the prompt should the nearest caption stand? Last, first, or anywhere.

The writer inside the package reads captions with their rank, not a prompt, so that their order changes nothing but the
draw; SmolLM2 reads prompts, and is what is tried unless ``--lm`` names another. It takes seconds for a sentence on a
CPU, so unless options say otherwise it writes one, greedily, for each of 100 pictures, with the paper's k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS, paper_best
from recap.experiments.search import COLUMNS, SEARCH_OPTIONS, Search, beside, draw_rows, judged_notes
from recap.experiments.table import Section, Table
from recap.language.prompt import Order

OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)

READER = "smollm2"
DEFAULTS = {"temperature": "0", "pictures": "100"}


def run(setup: Setup) -> Outcome:
    """Caption dev with every order."""
    new_figure(1, 1)  # says at once what is not installed
    given = {**DEFAULTS, "k": str(paper_best(setup)[0]), **setup.options}
    search = Search(replace(setup, options=given), model_name=READER)
    completes = search.model.completes if search.model else False
    template = search.captioner.settings.template(completes=completes)
    systems = {order: search.texts(search.k, prompt=replace(template, order=order)) for order in get_args(Order)}
    rows = search.rows(systems)
    sections = (Section(f"{search.title}, k = {search.k}", rows), beside("ordering", "MS-COCO validation"))
    table = Table("Order of captions in the prompt", COLUMNS, sections, judged_notes(), first="order")
    return Outcome({"search-ordering": table}, {"search-ordering": draw_rows(search.title, rows)})
