"""How many captions should be retrieved? The search for k, with greedy decoding as in the paper.

``--option ks=4,8,13`` names the values. See ``recap.experiments.search`` for the other options.
"""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import like, paper_best
from recap.experiments.paper import paper_table
from recap.experiments.search import (
    COLUMNS,
    SEARCH_OPTIONS,
    Search,
    beside,
    draw_lines,
    judged_notes,
    value,
)
from recap.experiments.table import Section, Table

OPTIONS = SEARCH_OPTIONS


def run(setup: Setup) -> Outcome:
    """Caption dev greedily with every k; the paper's is tried too."""
    new_figure(1, 1)  # says at once what is not installed
    search, theirs = Search(setup), paper_best(setup)[0]
    tried, best = search.tried_ks, search.k
    rows = dict(zip(tried, search.rows({str(k): texts for k, texts in tried.items()}), strict=True))
    gain = value(rows[best], "CIDEr-D") - value(rows[theirs], "CIDEr-D")
    notes = (
        f"Best by CIDEr-D: k = {best}, {gain:+.1f} against the paper's k = {theirs} for {like(setup)}.",
        *judged_notes(),
    )
    name = f"k-{like(setup)}"
    paper = beside(name, next(iter(paper_table(name)["sections"])))
    sections = (Section(f"{search.title}, greedy", tuple(rows.values())), paper)
    table = Table("Search for k", COLUMNS, sections, notes, first="k")
    lines = {"": {float(k): row for k, row in rows.items()}}
    return Outcome({"search-k": table}, {"search-k": draw_lines(search.title, "k", lines)})
