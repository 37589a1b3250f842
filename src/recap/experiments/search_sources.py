"""Do captions of other data sets help? The map stays, the datastore grows.

``--option sources=coco,flickr30k`` names the others; by default all that are in the data folder.
"""

from __future__ import annotations

import numpy as np

from recap.datastore import CaptionStore, Datastore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS
from recap.experiments.data import READERS, TITLES
from recap.experiments.search import COLUMNS, FLAN, SEARCH_OPTIONS, Search, beside, draw_rows, judged_notes
from recap.experiments.table import Cell, Column, Row, Section, Table

OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "sources")


def run(setup: Setup) -> Outcome:
    """Caption test with the captions of train, and with those of other data sets beside them."""
    new_figure(1, 1)  # says at once what is not installed
    search = Search(setup, split="test")
    own = search.train.store(search.bench.encoder)
    others, missing = _others(search)
    stores: dict[str, CaptionStore] = {TITLES[setup.on]: own}
    for name, other in others.items():
        stores[f"{TITLES[setup.on]} + {name}"] = DatastoreView([own, other])
    if len(others) > 1:
        stores[" + ".join((TITLES[setup.on], *others))] = DatastoreView([own, *others.values()])
    systems, extra = {}, []
    for label, store in stores.items():
        captions = search.captions(search.k, search.captioner_of(store))
        systems[label] = [caption.text for caption in captions]
        foreign = [item.source != setup.on for caption in captions for item in caption.evidence]
        extra.append((Cell(len(store)), Cell(100 * float(np.mean(foreign)))))
    columns = (*COLUMNS, Column("captions", 0, "neither"), Column("retrieved from others, %", 1, "neither"))
    rows = search.rows(systems)
    ours = tuple(Row(row.label, (*row.cells, *more)) for row, more in zip(rows, extra, strict=True))
    paper = beside("sources", "MS-COCO", f"test, {FLAN}", columns)
    sections = (Section(f"{search.title}, k = {search.k}", ours), paper)
    table = Table("More sources of captions", columns, sections, (*judged_notes(), *missing), first="datastore")
    return Outcome({"search-sources": table}, {"search-sources": draw_rows(search.title, rows)})


def _others(search: Search) -> tuple[dict[str, Datastore], tuple[str, ...]]:
    """Return the captions of other data sets, and a note about those that are not there."""
    setup, found, missing = search.setup, {}, []
    asked = "sources" in setup.options
    for name in setup.listed("sources", ",".join(name for name in READERS if name != setup.on)):
        try:
            found[TITLES.get(name, name)] = search.bench.load(name, "train").store(search.bench.encoder)
        except InputError:
            if asked:
                raise
            missing.append(TITLES[name])
    if not found:
        raise InputError(
            f"{setup.data} holds no other data set to take captions from: {', '.join(missing)} are missing"
        )
    return found, ((f"Not in the data folder: {', '.join(missing)}.",) if missing else ())
