"""The tables of captions that systems write, and how metrics see them; captions are made as ``Study`` says.

``captioning``: every metric, for ReCap with every map, for retrieval alone, and for other systems. ``--option
results=NAME=FILE,NAME=FILE`` adds systems from their files of captions: COCO results, or anything else that ``recap
score`` reads. ``metrics=bleu,cider-d`` takes these metrics only, ``pictures=1000`` the first so many test pictures,
whatever was fitted on. The captions of VizWiz's test split are with its server: what it wants to be sent is written
below ``--out``, for each of our systems.
``alignment``: every way to align: does what retrieves better also caption better?
``transfer``: the map comes from one data set (``source=NAME``), the pictures from another; the datastore holds the
captions of the target, of the source, or of both.
``metric-correlation``: which metrics say the same: Pearson correlation over test pictures; a heat map and its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from recap.datasets.captions import by_stem, read_candidates, stem
from recap.datasets.published import write_vizwiz_submission
from recap.datastore import CaptionStore, DatastoreView
from recap.errors import InputError
from recap.experiments.base import Outcome, Runs, Setup
from recap.experiments.data import TITLES, Split
from recap.experiments.retrieval import fitting_times, mean_cell, retrieve_test
from recap.experiments.search import FLAN, REPORTED
from recap.experiments.study import (
    METHODS,
    PAPER_BEST,
    SETTINGS_OPTIONS,
    Fitted,
    Study,
    fit_all,
    model_name,
    score_cells,
    score_systems,
    unavailable_maps,
    unimodal_captions,
)
from recap.experiments.table import Cell, Column, Row, Section, Table, paper_section, paper_table
from recap.files import progress_bar
from recap.metrics.registry import METRICS, parse_metrics
from recap.metrics.report import Report
from recap.metrics.significance import heatmap, pearson
from recap.packs.settings import Settings

SHOWN = (
    *("bleu-1", "bleu-4", "meteor", "rouge-l", "cider-d", "spice", "spice-java", "chair"),
    *("clip-s", "refclip-s", "clip+dn", "clip+dn-ref", "aclip-s", "refaclip-s", "mid"),
)
RETRIEVED = {"nearest": "cosine", "consensus": "consensus"}
"""Ways to caption without a language model, and the rule that chooses."""
CLOSED = ("PR", "OLS")
"""The maps that retrieval alone is shown with, where a model writes with all of them."""


def run_captioning(setup: Setup) -> Outcome:
    """Caption test with every map, and score all systems."""
    study = Study(setup)
    test = chosen_pictures(setup, study.load(setup.on, "test"))
    others = read_results(setup.option("results", ""), test)
    fitted = list(fit_all(study.train, study.encoder, setup))
    ours = dict(progress_bar(_ours(study, test, fitted), progress=setup.progress, unit="row"))
    metrics = parse_metrics(setup.option("metrics", ",".join(SHOWN)))
    reports = score_systems(study, test, {**ours, **others}, metrics)
    notes = (*study.notes(map="of the row"), *unavailable_maps(study.encoder))
    table = caption_table(study.titled(test), reports, setup.on, notes)
    return Outcome({"captioning": table}, files=_submissions(setup, test, ours), times=fitting_times(fitted))


def caption_table(title: str, reports: dict[str, Report], on: str, notes: Sequence[str] = ()) -> Table:
    """Return the systems above those of the paper, under every metric that either has."""
    first = next(iter(reports.values()))
    # SigLIP has its own names for the same metrics
    shown = [row.name for row in first] + [missing.name for missing in first.unavailable]
    titles = [metric.title for metric in METRICS]
    order = {title.replace("CLIP", family): place for place, title in enumerate(titles) for family in _FAMILIES}
    names = sorted(shown, key=lambda name: order[name])
    ours = Section(title, tuple(Row(label, cells) for label, cells in score_cells(reports, names).items()))
    sections = (ours, *_paper_sections(on, names))
    kept = [
        place
        for place in range(len(names))
        if any(row.cells[place].value is not None for section in sections for row in section.rows)
    ]
    cut = [
        Section(section.title, tuple(Row(row.label, tuple(row.cells[p] for p in kept)) for row in section.rows))
        for section in sections
    ]
    reasons = tuple(f"{', '.join(missing)}: {reason}." for reason, missing in first.reasons().items())
    columns = tuple(Column(names[place], better="lower" if names[place] == "CHAIR" else "higher") for place in kept)
    return Table("Captioning", columns, tuple(cut), ("In hundredths, MID apart.", *reasons, *notes), first="system")


def _paper_sections(on: str, names: Sequence[str]) -> list[Section]:
    """Return the paper's systems; of chest x-rays it has the best settings of its two searches, on validation."""
    if on == "xrays":
        theirs = {ours: name for name, ours in REPORTED.items()}
        asked = [theirs.get(name, name) for name in names]
        k, temperature, samples = PAPER_BEST[on]
        best = {"k": (str(k), f"k = {k}, greedily")}
        best["temperature"] = (f"{temperature} x {samples}", f"k = {k}, {temperature} x {samples}")
        rows = {table: {row.label: row for row in paper_section(f"{table}-{on}", "", asked).rows} for table in best}
        kept = tuple(Row(shown, rows[table][label].cells) for table, (label, shown) in best.items())
        return [Section(f"the paper: {TITLES[on]} validation, {FLAN}", kept)]
    in_paper = paper_table("captioning")["sections"]
    there = [TITLES[on]] if TITLES[on] in in_paper else ["MS-COCO", "Flickr30k"]
    return [paper_section("captioning", section, names, setting=FLAN) for section in there]


def read_results(option: str, test: Split) -> dict[str, list[str]]:
    """Return the captions of other systems, ``NAME=FILE,NAME=FILE``, in the order of the test pictures."""
    found = {}
    for part in filter(None, option.split(",")):
        name, equals, file = part.partition("=")
        if not equals:
            raise InputError(f"results={option}: expected NAME=FILE, several joined by commas")
        if name in found:
            raise InputError(f"results={option}: two systems are called {name}")
        captions = read_candidates(Path(file))
        stems = by_stem(captions, file)
        texts = [captions.get(image, stems.get(stem(image))) for image in test.ids]
        missing = [image for image, text in zip(test.ids, texts, strict=True) if text is None]
        if missing:
            raise InputError(
                f"{file}: no caption for {len(missing):,} of {len(test.ids):,} test pictures, such as {missing[0]}; "
                "systems are compared on the same pictures"
            )
        found[name] = [text for text in texts if text is not None]
    return found


def chosen_pictures(setup: Setup, test: Split) -> Split:
    """Return the first pictures, as many as the option ``pictures`` says."""
    return test.first(setup.number("pictures", len(test.ids), least=2))


_FAMILIES = ("CLIP", "SigLIP")


def _submissions(
    setup: Setup, test: Split, systems: Mapping[str, Sequence[str]]
) -> dict[str, Callable[[Path], object]]:
    """Return the files for the evaluation server, where there is one and it can be told about all pictures."""
    if setup.on != "vizwiz" or test.has_captions or setup.limit or "pictures" in setup.options:
        return {}

    def writes(captions: Sequence[str]) -> Callable[[Path], object]:
        given = dict(zip(test.ids, captions, strict=True))
        return lambda path: write_vizwiz_submission(path, given, setup.data / setup.on)

    return {f"submission-{_file_name(label)}.json": writes(captions) for label, captions in systems.items()}


def _file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _ours(study: Study, test: Split, fitted: Sequence[Fitted]) -> Iterator[tuple[str, list[str]]]:
    """Yield the captions of every system of ours under its label."""
    retrieving = Settings().but(seed=study.setup.seed, pool=study.setup.number("pool", Settings().pool))
    if study.model is not None:
        yield "ReCap, UM", unimodal_captions(study, test.images)
        for item in fitted:
            yield f"ReCap, {item.label}", study.caption(item.alignment, test)
    yield "consensus, UM", unimodal_captions(study, test.images, write=False)
    for label, rule in RETRIEVED.items():
        for item in fitted:
            if study.model is None or item.label in CLOSED:
                chosen = retrieving.but(selection=rule)
                yield f"{label}, {item.label}", study.caption(item.alignment, test, None, chosen)


ALIGNMENT_METRICS = {"CIDEr-D": "cider-d", "SPICE": "spice", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
ALIGNMENT_REPORTED = [{"SPICE": "SPICE-py"}.get(name, name) for name in ALIGNMENT_METRICS]
ALIGNMENT_COLUMNS = (Column("i2t R@1"), Column("t2i R@1"), Column("cos", 3), *map(Column, ALIGNMENT_METRICS))


def run_alignment(setup: Setup) -> Outcome:
    """Fit every map on train, retrieve and caption test with each."""
    study = Study(setup, "none")
    test = study.measured(setup.on)
    fitted = list(fit_all(study.train, study.encoder, setup))
    systems = {"UM": unimodal_captions(study, test.images)}
    systems |= {item.label: study.caption(item.alignment, test) for item in fitted}
    metrics = setup.listed("metrics", ",".join(ALIGNMENT_METRICS.values()))
    scores = score_cells(score_systems(study, test, systems, metrics), ALIGNMENT_REPORTED)
    rows = [Row("UM", (Cell(), Cell(), Cell(), *scores["UM"]))]
    rows += [Row(item.label, (*_recall(item, test), *scores[item.label])) for item in fitted]
    paper = paper_section("alignment", "MS-COCO", [column.name for column in ALIGNMENT_COLUMNS], setting=FLAN)
    notes = (*study.notes(map="of the row"), "Our SPICE is SPICE-py.", *unavailable_maps(study.encoder))
    table = Table("Ways to align", ALIGNMENT_COLUMNS, (Section(study.titled(test), tuple(rows)), paper), notes)
    return Outcome({"alignment": table}, times=fitting_times(fitted))


def _recall(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall at 1 both ways, and the mean cosine of pairs."""
    found = retrieve_test(item, test)
    return found.to_text(1), found.to_image(1), mean_cell(found.text_cosines)


TRANSFER_METRICS = {"CIDEr-D": "cider-d", "aCLIP-S": "aclip-s", "RefaCLIP-S": "refaclip-s"}
TRANSFER_COLUMNS = tuple(map(Column, TRANSFER_METRICS))


def run_transfer(setup: Setup) -> Outcome:
    """Caption the target's test pictures with the source's map and three datastores, and with the target's own map."""
    study, origin = Study(setup, "none"), setup.option("source", "coco")
    if origin == setup.on:
        raise InputError(f"source and target are both {origin}: name another with --on or --option source=NAME")
    source, target, test = study.load(origin, "train"), study.train, study.measured(setup.on)
    near, far = study.store, source.store(study.encoder)
    stores: dict[str, CaptionStore] = {"target": near, "source + target": DatastoreView([near, far]), "source": far}
    systems: dict[str, list[str]] = {}
    for label in CLOSED:
        carried, own = source.fit(METHODS[label]), target.fit(METHODS[label])
        systems |= {f"{label}, {name}": study.caption(carried, test, store) for name, store in stores.items()}
        systems[f"{label} of the target, target"] = study.caption(own, test)
    reports = score_systems(study, test, systems, list(TRANSFER_METRICS.values()))
    rows = tuple(Row(label, cells) for label, cells in score_cells(reports, list(TRANSFER_METRICS)).items())
    title = f"{TITLES[origin]} to {study.titled(test)}"
    paper = [
        paper_section("transfer", section, list(TRANSFER_METRICS), setting=f"from MS-COCO, {FLAN}")
        for section in paper_table("transfer")["sections"]
    ]
    notes = ("The map is the source's unless said otherwise.", *study.notes(map="of the row"))
    table = Table("Transfer", TRANSFER_COLUMNS, (Section(title, rows), *paper), notes, first="map, datastore")
    return Outcome({"transfer": table})


LEFT_OUT = ("cider-plain", "clip+dn*", "acos", "refacos", "clipscore-100")
"""Variants that repeat another metric."""


def run_metric_correlation(setup: Setup) -> Outcome:
    """Caption test as ReCap does, score with every metric, and correlate."""
    study = Study(setup)
    test, method = chosen_pictures(setup, study.measured(setup.on)), setup.option("method", study.settings.method)
    captions = study.caption(study.train.fit(method, seed=setup.seed), test)
    wanted = parse_metrics(setup.option("metrics", ",".join(name for name in METRICS.names() if name not in LEFT_OUT)))
    report = score_systems(study, test, {"ReCap": captions}, wanted)["ReCap"]
    names, matrix = pearson(report)
    title = test.titled(study.encoder.name, method, model_name(study.model))
    rows = tuple(
        Row(name, tuple(Cell(float(value)) if np.isfinite(value) else Cell() for value in values))
        for name, values in zip(names, matrix, strict=True)
    )
    columns = tuple(Column(name, 2, "neither") for name in names)
    reasons = (f"{', '.join(missing)}: {reason}." for reason, missing in report.reasons().items())
    notes = (*study.notes(map=method), *reasons)
    table = Table("Correlation of metrics", columns, (Section(title, rows),), notes, first="metric")
    figure = heatmap(names, matrix)
    figure.suptitle(title, fontsize=9)
    return Outcome({"metric-correlation": table}, {"metric-correlation": figure})


RUNS: Runs = {
    "captioning": (run_captioning, ("maps", "metrics", "pictures", "results", *SETTINGS_OPTIONS)),
    "alignment": (run_alignment, ("maps", "metrics", *SETTINGS_OPTIONS)),
    "transfer": (run_transfer, ("source", *SETTINGS_OPTIONS)),
    "metric-correlation": (run_metric_correlation, ("method", "metrics", "pictures", *SETTINGS_OPTIONS)),
}
