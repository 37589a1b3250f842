"""How warm, and how many? Temperature and number of samples of nucleus sampling, with the best k.

``--option temperatures=0.1,0.3,0.5`` and ``numbers=10,20,30`` name the grid. For each temperature the largest number of
sentences is drawn once; fewer samples are the first of them.
"""

from __future__ import annotations

from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import like, paper_best
from recap.experiments.search import (
    COLUMNS,
    SEARCH_OPTIONS,
    DrawnOnce,
    Search,
    beside,
    best_row,
    draw_lines,
    judged_notes,
    value,
)
from recap.experiments.table import Row, Section, Table
from recap.settings import Settings

OPTIONS = (*SEARCH_OPTIONS, "k", "selection", "temperatures", "numbers")


def run(setup: Setup) -> Outcome:
    """Caption dev with every temperature and number of samples, with the paper's choice and with a pack's defaults."""
    new_figure(1, 1)  # says at once what is not installed
    search = Search(setup)
    k = search.k
    temperatures = setup.reals("temperatures", (0.1, 0.3, 0.5, 0.7, 1.0))
    many = setup.numbers("numbers", (10, 20, 30))
    grid = {f"{t:g} x {n}": (t, n) for n in many for t in temperatures}
    systems = {"0 x 1": search.texts(k, temperature=0.0), **_drawn(search, k, grid)}
    theirs, default = paper_best(setup), Settings()
    own = (default.k, default.decoding.temperature, default.decoding.samples)
    labels = [f"{name}: k {given[0]}, {given[1]:g} x {given[2]}" for name, given in (("paper", theirs), ("pack", own))]
    systems[labels[0]] = search.texts(theirs[0], temperature=theirs[1], samples=theirs[2])
    packs = search.captioner.configured(
        candidates=default.candidates, k=own[0], pool=default.pool, temperature=own[1], samples=own[2]
    )
    systems[labels[1]] = [caption.text for caption in packs.caption_vectors(search.pictures.images)]
    rows = {row.label: row for row in search.rows(systems)}
    tried = [rows[label] for label in grid]
    table = Table(
        "Search for temperature and number of samples",
        COLUMNS,
        (Section(f"{search.title}, k = {k}", tuple(rows.values())), beside(f"temperature-{like(setup)}", "")),
        (_gains(best_row(tried), k, rows[labels[0]], rows[labels[1]]), *judged_notes()),
        first="temperature x samples",
    )
    lines = {f"{n} samples": {t: rows[f"{t:g} x {n}"] for t in temperatures} for n in many}
    return Outcome(
        {"search-temperature": table}, {"search-temperature": draw_lines(search.title, "temperature", lines)}
    )


def _drawn(search: Search, k: int, grid: dict[str, tuple[float, int]]) -> dict[str, list[str]]:
    captioner = search.captioner.configured()
    if captioner.language_model is not None:
        captioner.language_model = DrawnOnce(captioner.language_model, max(n for _, n in grid.values()))
    return {label: search.texts(k, captioner, temperature=t, samples=n) for label, (t, n) in grid.items()}


def _gains(best: Row, k: int, paper: Row, pack: Row) -> str:
    score = value(best, "CIDEr-D")
    ours, theirs = (f"{score - value(row, 'CIDEr-D'):+.1f}" for row in (pack, paper))
    return (
        f"Best by CIDEr-D: {best.label} with k = {k}, {theirs} against the paper's values and {ours} against those of "
        f"a new pack, which retrieves {Settings().pool} captions and takes them for candidates, too."
    )
