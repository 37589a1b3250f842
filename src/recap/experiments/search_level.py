"""What should the datastore hold: single captions, all captions of a picture as one text, or localized narratives?

Narratives are read from ``narratives/`` below the data folder (``*_localized_narratives*.jsonl``). The map is that of
single captions in all cases. ``--option ks=13`` names the values of k for single captions; the texts of other levels
are long, so that one to six are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recap.datasets.captions import stem
from recap.datasets.narratives import read_narratives
from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import like
from recap.experiments.paper import paper_table
from recap.experiments.search import COLUMNS, SEARCH_OPTIONS, Search, beside, draw_lines, judged_notes, ks
from recap.experiments.table import Row, Section, Table

OPTIONS = SEARCH_OPTIONS

LONG_KS = (1, 2, 3, 4, 5, 6)


def run(setup: Setup) -> Outcome:
    """Caption dev greedily from datastores of every level."""
    new_figure(1, 1)  # says at once what is not installed
    search = Search(setup)
    told = narratives(setup.data / "narratives", search.train.ids)
    levels: dict[str, Sequence[Sequence[str]]] = {
        "Single Captions": search.train.captions,
        "All Captions": [[" ".join(texts)] for texts in search.train.captions],
        **({"Localized Narratives": told} if any(told) else {}),
    }
    systems = {
        (level, k): texts
        for level, captions in levels.items()
        for k, texts in _captions(search, captions, ks(setup) if level == "Single Captions" else LONG_KS).items()
    }
    rows = dict(
        zip(systems, search.rows({f"{level}, {k}": texts for (level, k), texts in systems.items()}), strict=True)
    )
    sections = [
        Section(
            f"{search.title}, greedy: {level}", tuple(_label(k, row) for (own, k), row in rows.items() if own == level)
        )
        for level in levels
    ]
    name = f"k-{like(setup)}"
    paper = [beside(name, section) for section in paper_table(name)["sections"]]
    table = Table(
        "Levels of language", COLUMNS, (*sections, *paper), (*judged_notes(), *_missing(setup, told)), first="k"
    )
    lines = {level: {float(k): row for (own, k), row in rows.items() if own == level} for level in levels}
    return Outcome({"search-level": table}, {"search-level": draw_lines(search.title, "k", lines)})


def narratives(folder: Path, ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what was told about each picture; nothing where there is no such folder, or nothing about a picture."""
    known: Mapping[str, tuple[str, ...]] = {}
    if folder.is_dir():
        known = {stem(pair.id): pair.captions for pair in read_narratives(folder, folder)}
    return [known.get(stem(name), ()) for name in ids]


def _captions(search: Search, captions: Sequence[Sequence[str]], values: Sequence[int]) -> dict[int, list[str]]:
    flat = [text for texts in captions for text in texts]
    vectors = search.bench.encoder.encode_texts(flat, progress=search.setup.progress)
    level = replace(search.train, captions=tuple(map(tuple, captions)), texts=vectors)
    captioner = search.captioner_of(level.store(search.bench.encoder))
    return {k: search.texts(k, captioner, temperature=0.0) for k in values}


def _label(k: int, row: Row) -> Row:
    return Row(str(k), row.cells)


def _missing(setup: Setup, told: Sequence[Sequence[str]]) -> tuple[str, ...]:
    if any(told):
        return ()
    return (f"Localized narratives of these pictures are not in {setup.data / 'narratives'}.",)
