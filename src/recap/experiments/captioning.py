"""The captioning table: every metric, for ReCap with every map, for retrieval alone, and for other systems.

``--option results=NAME=FILE,NAME=FILE`` adds systems from their files of captions: COCO results, or anything else that
``recap score`` reads. ``--option metrics=bleu,cider-d`` takes these metrics only, ``--option pictures=1000`` the first
so many test pictures, whatever was fitted on. How captions are made is said by ``settings``, ``k``, ``pool``,
``temperature``, ``samples`` and ``selection``: see ``recap.experiments.choices``. The captions of VizWiz's test split
are with its server: what it wants to be sent is written below ``--out``, for each of our systems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from recap.datasets.captions import by_stem, read_candidates, stem
from recap.datasets.published import write_vizwiz_submission
from recap.errors import InputError
from recap.experiments.base import Outcome, Setup
from recap.experiments.captions import Study, score_cells, score_systems, unimodal_captions
from recap.experiments.choices import PAPER_BEST, SETTINGS_OPTIONS, Fitted, fit_all, unavailable_maps
from recap.experiments.data import TITLES, Split
from recap.experiments.paper import paper_section, paper_table
from recap.experiments.retrieval import fitting_times
from recap.experiments.search import FLAN, REPORTED
from recap.experiments.table import Column, Row, Section, Table
from recap.files import progress_bar
from recap.metrics.registry import METRICS, parse_metrics
from recap.metrics.report import Report
from recap.packs.settings import Settings

OPTIONS = ("maps", "metrics", "pictures", "results", *SETTINGS_OPTIONS)

SHOWN = (
    *("bleu-1", "bleu-4", "meteor", "rouge-l", "cider-d", "spice", "spice-java", "chair"),
    *("clip-s", "refclip-s", "clip+dn", "clip+dn-ref", "aclip-s", "refaclip-s", "mid"),
)
RETRIEVED = {"nearest": "cosine", "consensus": "consensus"}
"""Ways to caption without a language model, and the rule that chooses."""
CLOSED = ("PR", "OLS")
"""The maps that retrieval alone is shown with, where a model writes with all of them."""


def run(setup: Setup) -> Outcome:
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
