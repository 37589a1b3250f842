"""The searches of the paper: how captions change with one choice after the other.

search-k            how many captions to retrieve, with greedy decoding as in the paper; ``--option ks=4,8,13``
search-temperature  temperature and number of samples of nucleus sampling, with the best k; ``temperatures=0.1,0.3,0.5``
                    and ``numbers=10,20,30`` name the grid. For each temperature the largest number of sentences is
                    drawn once; fewer samples are the first of them.
search-decoding     greedily, from all words, from the likeliest, or from the nucleus
search-ordering     where in the prompt the nearest caption stands: last, first, or anywhere. The writer inside the
                    package reads captions with their rank, not a prompt, so that their order changes nothing but the
                    draw; SmolLM2 reads prompts, and is what is tried unless ``--lm`` names another. It takes seconds
                    for a sentence on a CPU, so unless options say otherwise it writes one, greedily, for each of 100
                    pictures, with the paper's k.
search-encoder      one encoder after the other, each with its own map and its own best k; ``encoders=`` names them,
                    between semicolons
search-lm           one language model after the other; ``models=none,writer,smollm2``; ``none`` takes a caption
search-level        single captions, all captions of a picture as one text, or localized narratives, which are read from
                    ``narratives/`` below the data folder (``*_localized_narratives*.jsonl``). The map is that of single
                    captions in all cases. ``ks=13`` names the values of k for single captions; the texts of other
                    levels are long, so that one to six are tried.
search-sources      captions of other data sets: the map stays, the datastore grows; ``sources=coco,flickr30k``, by
                    default all that are in the data folder

See ``recap.experiments.search`` for the other options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from recap.datasets.captions import stem
from recap.datasets.narratives import read_narratives
from recap.datastore import CaptionStore, Datastore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.choices import DRAWING_OPTIONS, like, model_name, paper_best
from recap.experiments.data import READERS, TITLES
from recap.experiments.paper import paper_table
from recap.experiments.search import (
    COLUMNS,
    FLAN,
    SEARCH_OPTIONS,
    DrawnOnce,
    Search,
    beside,
    best_row,
    draw_lines,
    draw_rows,
    judged_notes,
    ks,
    value,
)
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.language.prompt import Order
from recap.settings import Settings

K_OPTIONS = SEARCH_OPTIONS


def search_k(setup: Setup) -> Outcome:
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


TEMPERATURE_OPTIONS = (*SEARCH_OPTIONS, "k", "selection", "temperatures", "numbers")


def search_temperature(setup: Setup) -> Outcome:
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


DECODING_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)

DECODINGS: dict[str, dict[str, Any]] = {
    "Sampling": {"top_p": 1.0},
    "Topk": {"top_k": 50, "top_p": 1.0},
    "Greedy": {"temperature": 0.0},
    "Nucleus, l=1": {"samples": 1},
    "Nucleus": {},
}
"""The paper's rows; it does not say how many words its top-k holds."""


def search_decoding(setup: Setup) -> Outcome:
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


ORDERING_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)

READER = "smollm2"
DEFAULTS = {"temperature": "0", "pictures": "100"}


def search_ordering(setup: Setup) -> Outcome:
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


ENCODER_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "encoders")

ENCODERS = "builtin;builtin-large"


def search_encoder(setup: Setup) -> Outcome:
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


LM_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "models")

MODELS = "none,writer"


def search_lm(setup: Setup) -> Outcome:
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


LEVEL_OPTIONS = SEARCH_OPTIONS

LONG_KS = (1, 2, 3, 4, 5, 6)


def search_level(setup: Setup) -> Outcome:
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


SOURCES_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS, "sources")


def search_sources(setup: Setup) -> Outcome:
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


SEARCHES: dict[str, tuple[Callable[[Setup], Outcome], tuple[str, ...]]] = {
    "search-k": (search_k, K_OPTIONS),
    "search-temperature": (search_temperature, TEMPERATURE_OPTIONS),
    "search-decoding": (search_decoding, DECODING_OPTIONS),
    "search-ordering": (search_ordering, ORDERING_OPTIONS),
    "search-encoder": (search_encoder, ENCODER_OPTIONS),
    "search-lm": (search_lm, LM_OPTIONS),
    "search-level": (search_level, LEVEL_OPTIONS),
    "search-sources": (search_sources, SOURCES_OPTIONS),
}
"""Each search by its name, and its options."""
