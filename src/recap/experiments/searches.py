"""The searches of the paper: how captions change with one choice after the other.

``docs/experiments.md`` says what each tries and which options it has. For each temperature the largest number of
sentences is drawn once; fewer samples are the first of them. The writer reads captions with their rank, not a prompt,
so ``search-ordering`` takes SmolLM2, which needs seconds for a sentence on a CPU: unless ``--lm`` or options say
otherwise it writes one, greedily, for each of 100 pictures. The map of ``search-level`` is that of single captions.

See ``recap.experiments.search`` for the other options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from recap.datasets.captions import stem
from recap.datasets.published import read_narratives
from recap.datastore import CaptionStore, Datastore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Runs, Setup, new_figure
from recap.experiments.data import READERS, TITLES, photo_number
from recap.experiments.search import (
    COLUMNS,
    FLAN,
    SEARCH_OPTIONS,
    DrawnOnce,
    Search,
    best_k,
    draw_lines,
    draw_rows,
    ks,
    paper_rows,
    value,
)
from recap.experiments.study import DRAWING_OPTIONS, paper_best, paper_data, settings_note
from recap.experiments.table import Cell, Column, Row, Section, Table, paper_table
from recap.language.prompt import Order
from recap.packs.settings import Settings

DECODINGS: dict[str, dict[str, Any]] = {
    "Sampling": {"top_p": 1.0},
    "Topk": {"top_k": 50, "top_p": 1.0},
    "Greedy": {"temperature": 0.0},
    "Nucleus, l=1": {"samples": 1},
    "Nucleus": {},
}
"""The paper's rows; it does not say how many words its top-k holds."""

ENCODERS = "builtin-fast;builtin"
MODELS = "none,writer"
READER = "smollm2"
"""Language model of search-ordering."""
QUICK = {"temperature": "0", "pictures": "100"}
"""Options of search-ordering with that model."""
LONG_KS = (1, 2, 3, 4, 5, 6)
"""Values of k for long texts."""
PAPER_SOURCES = {"coco": "flickr30k,vizwiz,msrvtt"}
"""The paper's additional sources of captions."""
SAME_PHOTOS = {"flickr8k", "flickr30k"}
"""Two data sets that have photographs in common."""
SYNTHETIC = "DAL"
"""Source of synthetic captions."""

SIZES = (Column("k", 0, "neither"), Column("|theta|", better="neither"))
SHARES = (Column("captions", 0, "neither"), Column("retrieved from others, %", 1, "neither"))


@dataclass(frozen=True)
class Tried:
    """What a search has tried: the captions of each row, and what is to be said about them."""

    search: Search
    captions: Mapping[str, Sequence[str]]
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Where there are several: by title, the labels of rows and their names in ``captions``."""
    lines: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    """What is drawn as lines: by series, numbers and names in ``captions``."""
    extra: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)
    """More cells of rows."""
    stated: Mapping[str, str] = field(default_factory=dict)
    """What the note about settings says of those that differ between rows."""
    notes: Callable[[Mapping[str, Row]], Iterable[str]] = lambda rows: ()
    rows: Mapping[str, Row] = field(default_factory=dict)
    """Where each was judged by itself."""


@dataclass(frozen=True)
class Kind:
    """One search: its table, what it tries, and the paper's rows."""

    title: str
    first: str
    run: Callable[[Setup], Tried]
    paper: Callable[[Setup], Sequence[Section]]
    options: tuple[str, ...] = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)
    columns: tuple[Column, ...] = COLUMNS


def run_search(name: str, setup: Setup) -> Outcome:
    """Run a search by its name: score what it tried, and set the paper's rows beside it."""
    new_figure(1, 1)  # says at once what is not installed
    kind = SEARCHES[name]
    tried = kind.run(setup)
    search, title = tried.search, tried.search.title
    rows = tried.rows or search.rows(tried.captions)
    ours = tried.sections or {title: {label: label for label in rows}}
    cells = {key: (*row.cells, *tried.extra.get(key, ())) for key, row in rows.items()}
    sections = [
        Section(heading, tuple(Row(shown, cells[key]) for shown, key in part.items())) for heading, part in ours.items()
    ]
    notes = (*tried.notes(rows), *search.notes(**tried.stated))
    table = Table(kind.title, kind.columns, (*sections, *kind.paper(setup)), notes, first=kind.first)
    lines = {label: {x: rows[key] for x, key in line.items()} for label, line in tried.lines.items()}
    figure = draw_lines(title, kind.first.split(" x ")[0], lines) if lines else draw_rows(title, list(rows.values()))
    return Outcome({name: table}, {name: figure})


def _try_ks(setup: Setup) -> Tried:
    """Caption dev greedily with every k; the paper's is tried too."""
    search, theirs = Search(setup), paper_best(setup)[0]
    tried, best = search.tried_ks, best_k(search.some("dev"), search.tried_ks)

    def gain(rows: Mapping[str, Row]) -> Iterable[str]:
        points = value(rows[str(best)], "CIDEr-D") - value(rows[str(theirs)], "CIDEr-D")
        yield f"Best by CIDEr-D: k = {best}, {points:+.1f} against the paper's k = {theirs} for {paper_data(setup)}."

    captions = {str(k): texts for k, texts in tried.items()}
    stated = {"k": "of the row", "temperature": "0", "samples": "1"}
    return Tried(search, captions, lines={"": {float(k): str(k) for k in tried}}, stated=stated, notes=gain)


def _try_temperatures(setup: Setup) -> Tried:
    """Caption dev with every temperature and number of samples, with the paper's choice and with a pack's defaults."""
    search = Search(setup)
    temperatures = setup.reals("temperatures", (0.1, 0.3, 0.5, 0.7, 1.0))
    numbers = setup.numbers("numbers", (10, 20, 30))
    grid = {f"{t:g} x {n}": (t, n) for n in numbers for t in temperatures}
    drawing = search.captioner.configured()
    if drawing.language_model is not None:
        drawing.language_model = DrawnOnce(drawing.language_model, max(numbers))
    captions = {"0 x 1": search.texts(search.k, temperature=0.0)}
    captions |= {label: search.texts(search.k, drawing, temperature=t, samples=n) for label, (t, n) in grid.items()}
    (k, t, n), pack = paper_best(setup), Settings()
    own = pack.decoding
    paper_label, pack_label = f"paper: k {k}, {t:g} x {n}", f"pack: k {pack.k}, {own.temperature:g} x {own.samples}"
    captions[paper_label] = search.texts(k, temperature=t, samples=n)
    packs = search.captioner.configured(
        candidates=pack.candidates, k=pack.k, pool=pack.pool, temperature=own.temperature, samples=own.samples
    )
    captions[pack_label] = [caption.text for caption in packs.caption_vectors(search.rows_of(search.pictures, packs))]

    def gains(rows: Mapping[str, Row]) -> Iterable[str]:
        best = max((rows[label] for label in grid), key=lambda row: value(row, "CIDEr-D"))
        theirs, ours = (
            f"{value(best, 'CIDEr-D') - value(rows[label], 'CIDEr-D'):+.1f}" for label in (paper_label, pack_label)
        )
        yield (
            f"Best by CIDEr-D: {best.label} with k = {search.k}, {theirs} against the paper's values and {ours} "
            f"against those of a new pack, which retrieves {pack.pool} captions and takes them for candidates, too."
        )

    lines = {f"{n} samples": {t: f"{t:g} x {n}" for t in temperatures} for n in numbers}
    stated = {"k": str(search.k), "temperature": "of the row", "samples": "of the row"}
    return Tried(search, captions, lines=lines, stated=stated, notes=gains)


def _try_decodings(setup: Setup) -> Tried:
    """Caption dev with every decoding."""
    search = Search(setup)
    captions = {name: search.texts(search.k, **settings) for name, settings in DECODINGS.items()}
    nucleus = f"The nucleus holds {search.settings.decoding.top_p:g} of the probability."
    return Tried(search, captions, stated={"k": str(search.k)}, notes=lambda rows: (nucleus,))


def _try_orders(setup: Setup) -> Tried:
    """Caption dev with every order."""
    quick = {} if setup.language_model else QUICK
    given = {**quick, "k": str(paper_best(setup)[0]), **setup.options}
    search = Search(replace(setup, options=given), default_model=READER)
    template = search.settings.template(completes=search.model is not None and search.model.completes)
    orders = get_args(Order)
    return Tried(search, {order: search.texts(search.k, prompt=replace(template, order=order)) for order in orders})


def _try_encoders(setup: Setup) -> Tried:
    """Caption dev with every encoder."""
    rows: dict[str, Row] = {}
    extra: dict[str, tuple[Cell, ...]] = {}
    for name in setup.option("encoders", ENCODERS).split(";"):
        search = Search(replace(setup, encoder=name))
        rows |= search.rows({name: search.texts(search.k)})
        extra[name] = (Cell(search.k), Cell(f"{search.captioner.alignment.W_.size / 1000:,.0f}K"))
    own = "aCLIP-S and RefaCLIP-S are judged with each encoder's own vectors: compare them within a row only."
    notes = () if setup.judge_encoder else (own,)
    return Tried(search, {}, extra=extra, stated={"k": "of the row"}, notes=lambda rows: notes, rows=rows)


def _try_models(setup: Setup) -> Tried:
    """Caption dev with every language model, each with its own settings."""
    captions: dict[str, list[str]] = {}
    notes: list[str] = []
    for name in setup.listed("models", MODELS):
        search = Search(replace(setup, language_model=name))
        k = search.k if search.model else Settings().pool
        captions[f"{name}, k = {k}"] = search.texts(k)
        notes.append(f"{name}: {settings_note(search.settings, search.model, k=str(k))}")
    return Tried(search, captions, stated={"k": str(k)}, notes=lambda rows: notes[:-1])


def _try_levels(setup: Setup) -> Tried:
    """Caption dev greedily from datastores of every level."""
    search = Search(setup)
    told = narratives(setup.data / "narratives", search.train.ids)
    single, joined = search.train.captions, [[" ".join(texts)] for texts in search.train.captions]
    levels: dict[str, tuple[Sequence[Sequence[str]], Sequence[int]]] = {
        "Single Captions": (single, ks(setup)),
        "All Captions": (joined, LONG_KS),
        **({"Localized Narratives": (told, LONG_KS)} if any(told) else {}),
    }
    captions: dict[str, list[str]] = {}
    for level, (texts, values) in levels.items():
        captioner = search.captioner_of(_level_store(search, texts))
        captions |= {f"{level}, {k}": search.texts(k, captioner, temperature=0.0) for k in values}
    sections = {
        f"{search.title}, greedy: {level}": {str(k): f"{level}, {k}" for k in values}
        for level, (_, values) in levels.items()
    }
    lines = {level: {float(k): f"{level}, {k}" for k in values} for level, (_, values) in levels.items()}
    missing = f"Localized narratives of these pictures are not in {setup.data / 'narratives'}."
    stated = {"k": "of the row", "temperature": "0", "samples": "1"}
    return Tried(search, captions, sections, lines, stated=stated, notes=lambda rows: () if any(told) else (missing,))


def narratives(folder: Path, ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what was told about each picture; nothing where there is no such folder, or nothing about a picture."""
    known: Mapping[str, tuple[str, ...]] = {}
    if folder.is_dir():
        known = {stem(pair.id): pair.captions for pair in read_narratives(folder, folder)}
    return [known.get(stem(name), ()) for name in ids]


def _level_store(search: Search, captions: Sequence[Sequence[str]]) -> Datastore:
    flat = [text for texts in captions for text in texts]
    vectors = search.encoder.encode_texts(flat, progress=search.setup.progress)
    return replace(search.train, captions=tuple(map(tuple, captions)), texts=vectors).store(search.encoder)


def _try_sources(setup: Setup) -> Tried:
    """Caption test with the captions of train, and with those of other sources beside them."""
    search = Search(setup, split="test")
    own = search.store
    others, missing = _other_stores(search)
    captions: dict[str, list[str]] = {}
    extra: dict[str, tuple[Cell, ...]] = {}
    for names in source_rows(list(others)):
        store: CaptionStore = DatastoreView([own, *(others[name] for name in names)]) if names else own
        found = search.captions(search.k, search.captioner_of(store))
        label = " + ".join((TITLES[setup.on], *names))
        captions[label] = [caption.text for caption in found]
        foreign = [item.source != setup.on for caption in found for item in caption.evidence]
        extra[label] = (Cell(len(store)), Cell(100 * float(np.mean(foreign))))
    return Tried(search, captions, extra=extra, stated={"k": str(search.k)}, notes=lambda rows: missing)


def source_rows(others: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the paper's rows: no other source, the first, the first with each one more, all; synthetic ones apart."""
    people, synthetic = [name for name in others if name != SYNTHETIC], [SYNTHETIC] if SYNTHETIC in others else []
    pairs = [(people[0], name) for name in people[1:]]
    rows = [(), tuple(people[:1]), *pairs, tuple(people), *((*names, *synthetic) for names in ((), tuple(people)))]
    return list(dict.fromkeys(rows))


def _other_stores(search: Search) -> tuple[dict[str, Datastore], tuple[str, ...]]:
    """Return the captions of other sources, and a note about those that are not there."""
    setup, found, missing = search.setup, {}, []
    notes: list[str] = []
    default = PAPER_SOURCES.get(setup.on, ",".join(name for name in READERS if name != setup.on))
    for name in setup.listed("sources", default):
        known = _known_photos(search, name)
        try:
            found[TITLES.get(name, name)] = search.caption_store(name, without=known)
        except InputError:
            if "sources" in setup.options:
                raise
            missing.append(TITLES[name])
    if pack := setup.option("synthetic", ""):
        found[SYNTHETIC] = _synthetic_store(search, Path(pack))
    if not found:
        raise InputError(
            f"{setup.data} holds no other data set to take captions from: {', '.join(missing)} are missing"
        )
    if setup.on in SAME_PHOTOS and found.keys() & {TITLES[name] for name in SAME_PHOTOS - {setup.on}}:
        notes.append("Of photographs that both data sets have, those of dev and test are left out.")
    if missing:
        notes.append(f"Not in the data folder: {', '.join(missing)}.")
    return found, tuple(notes)


def _known_photos(search: Search, name: str) -> set[str]:
    """Return the photographs of dev and test that are also in another data set."""
    on = search.setup.on
    if {on, name} != SAME_PHOTOS:
        return set()
    return {photo_number(one) for split in ("dev", "test") for one in search.load(on, split).ids} - {""}


def _synthetic_store(search: Search, pack: Path) -> Datastore:
    """Return the synthetic captions of a pack."""
    known, text = Datastore.load(pack / "datastore"), search.encoder.text
    texts = [row.text for row in known.rows(known.find(synthetic=True))]
    if not texts:
        raise InputError(f"{pack} holds no synthetic captions: make some with recap augment, or with packs= of dal")
    store = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint, dtype="float16")
    store.add(texts, search.encoder.encode_texts(texts), source=SYNTHETIC, synthetic=True)
    return store


def _paper_ks(setup: Setup, sections: int | None = None) -> list[Section]:
    name = f"k-{paper_data(setup)}"
    return [paper_rows(name, section) for section in list(paper_table(name)["sections"])[:sections]]


def _paper_models(setup: Setup) -> list[Section]:
    return [paper_rows("language-models", section, "RN50x64") for section in paper_table("language-models")["sections"]]


_VALIDATION = "MS-COCO validation"
_ALL_OPTIONS = (*SEARCH_OPTIONS, *DRAWING_OPTIONS)

SEARCHES: dict[str, Kind] = {
    "search-k": Kind("Search for k", "k", _try_ks, lambda setup: _paper_ks(setup, 1), SEARCH_OPTIONS),
    "search-temperature": Kind(
        "Search for temperature and number of samples",
        "temperature x samples",
        _try_temperatures,
        lambda setup: [paper_rows(f"temperature-{paper_data(setup)}", "")],
        (*SEARCH_OPTIONS, "k", "selection", "temperatures", "numbers"),
    ),
    "search-decoding": Kind(
        "Decoding",
        "decoding",
        _try_decodings,
        lambda setup: [paper_rows("decoding", _VALIDATION, f"{FLAN}, temperature 0.1, 10 samples")],
    ),
    "search-ordering": Kind(
        "Order of captions in the prompt", "order", _try_orders, lambda setup: [paper_rows("ordering", _VALIDATION)]
    ),
    "search-encoder": Kind(
        "Encoders",
        "encoder",
        _try_encoders,
        lambda setup: [paper_rows("encoders", _VALIDATION, "FLAN-T5-Large", (*COLUMNS, *SIZES))],
        (*_ALL_OPTIONS, "encoders"),
        (*COLUMNS, *SIZES),
    ),
    "search-lm": Kind("Language models", "model", _try_models, _paper_models, (*_ALL_OPTIONS, "models")),
    "search-level": Kind("Levels of language", "k", _try_levels, _paper_ks, SEARCH_OPTIONS),
    "search-sources": Kind(
        "More sources of captions",
        "datastore",
        _try_sources,
        lambda setup: [paper_rows("sources", "MS-COCO", f"test, {FLAN}", (*COLUMNS, *SHARES))],
        (*_ALL_OPTIONS, "sources", "synthetic"),
        (*COLUMNS, *SHARES),
    ),
}
"""Every search by its name."""

RUNS: Runs = {name: (partial(run_search, name), kind.options) for name, kind in SEARCHES.items()}
