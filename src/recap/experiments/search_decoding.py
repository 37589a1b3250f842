"""How should the language model be sampled? Greedily, from all words, from the likeliest, or from the nucleus."""

from __future__ import annotations

from typing import Any

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS
from recap.experiments.search import COLUMNS, FLAN, SEARCH_OPTIONS, Search, beside, draw_rows, judged_notes
from recap.experiments.table import Section, Table

OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)

DECODINGS: dict[str, dict[str, Any]] = {
    "Sampling": {"top_p": 1.0},
    "Topk": {"top_k": 50, "top_p": 1.0},
    "Greedy": {"temperature": 0.0},
    "Nucleus, l=1": {"samples": 1},
    "Nucleus": {},
}
"""The paper's rows; it does not say how many words its top-k holds."""


def run(setup: Setup) -> Outcome:
    """Caption dev with every decoding."""
    new_figure(1, 1)  # says at once what is not installed
    search = Search(setup)
    rows = search.rows({name: search.texts(search.k, **settings) for name, settings in DECODINGS.items()})
    drawing = search.captioner.settings.decoding
    how = f"temperature {drawing.temperature:g}, {drawing.samples} samples, nucleus {drawing.top_p:g}"
    sections = (
        Section(f"{search.title}, k = {search.k}, {how}", rows),
        beside("decoding", "MS-COCO validation", f"{FLAN}, temperature 0.1, 10 samples"),
    )
    table = Table("Decoding", COLUMNS, sections, judged_notes(), first="decoding")
    return Outcome({"search-decoding": table}, {"search-decoding": draw_rows(search.title, rows)})
