"""The datastore-augmentation loop: what becomes of metrics, k and prompts when a pack learns from its own captions.

``--option filter=refaclip-s,aclip-s`` names what captions are filtered by, ``rounds=5`` how often, ``ks=4,13,100`` the
values of k that are tried. ``state=FOLDER`` keeps finished parts, so that a run that was killed goes on;
``packs=FOLDER`` saves the packs, one for each metric. ``pictures=500`` validates and tests with the first so many;
the other options of searches hold too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from recap.captioner import ReCap
from recap.errors import InputError, check_name
from recap.experiments.base import Outcome, Runs, Setup, new_figure
from recap.experiments.data import TITLES, Bench, Split, read_pixels
from recap.experiments.search import SEARCH_OPTIONS, Search, draw_panels
from recap.experiments.study import points, score_systems
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.fitting.augmentation import KS, METRICS, ROUNDS, Augmented, Judge, Round, augment, retrieve_only
from recap.fitting.fit import Validation
from recap.metrics.report import Report
from recap.types import ImageLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = (*SEARCH_OPTIONS, "temperature", "samples", "selection", "filter", "rounds", "state", "packs")

REPORTED = {"cider-d": "CIDEr-D", "spice": "SPICE-py", "aclip-s": "aCLIP-S", "refaclip-s": "RefaCLIP-S"}
"""The metrics of the paper's figure, and their names in a report."""

COUNTS = (
    Column("k", 0, "neither"),
    Column("added", 0, "neither"),
    Column("in the store", 0, "neither"),
    Column("in the prompt", 2, "neither"),
    Column("share, %", 1, "neither"),
)
SCORES = tuple(Column(METRICS[name]) for name in REPORTED)
EXAMPLES = 6
"""Pictures that are shown with both captions."""

NOTE = (
    "Added, in the store, in the prompt: synthetic captions. A caption is added if it is the best for its picture and "
    "its score is above the mean of the round before."
)
PAPER = (
    "The paper, on MS-COCO with RN50x64 and FLAN-T5-Large, filtered by RefaCLIP-S: aCLIP-S and RefaCLIP-S rise in "
    "every round, CIDEr-D falls, SPICE stays; k goes from 13 to 4, half of the prompt is synthetic, and a round adds "
    "42,320 captions (Flickr30k: 35,288)."
)


def run(setup: Setup) -> Outcome:
    """Augment the datastore of train by each metric, measured on dev; test what comes out."""
    new_figure(1, 1)  # says at once what is not installed
    search = Search(setup)
    bench, train, dev, test = search, search.train, search.pictures, search.some("test")
    plain = search.plain(search.store)
    loops = {metric: _augmented(bench, plain, train, dev, metric) for metric in _filters(setup)}
    captions = {f"{name} {r.number}": r.captions for name, loop in loops.items() for r in loop.rounds}
    wanted = setup.listed("metrics", ",".join(REPORTED))
    reports = score_systems(bench, dev, captions, wanted)
    tested = score_systems(bench, test, _test_captions(search, plain, loops, test), wanted)
    writer = plain.language_model.name if plain.language_model else "none"
    what = f"{bench.encoder.name}, {writer}, {len(train.ids):,} training pictures"
    title = f"{TITLES[setup.on]} dev, {len(dev.ids):,} pictures, {what}"
    made = search.notes(k="of the row")
    tested_on = f"{TITLES[setup.on]} test, {len(test.ids):,} pictures, {what}"
    tables = {
        "dal": development(title, loops, reports, (NOTE, *made, PAPER)),
        "dal-test": comparison(tested_on, loops, tested, made),
    }
    figures = {"dal-metrics": draw_metrics(title, loops, reports), "dal-prompt": draw_prompts(title, loops)}
    shown = draw_examples(dev, next(iter(loops.values())).rounds)
    return Outcome(tables, figures | ({"dal-examples": shown} if shown else {}))


def development(
    title: str, loops: Mapping[str, Augmented], reports: Mapping[str, Report], notes: tuple[str, ...]
) -> Table:
    """Return the metrics of every round, a section for each metric that filtered."""
    sections = [
        Section(
            f"filtered by {METRICS[metric]}",
            tuple(Row(str(r.number), (*_counts(r), *_scores(reports[f"{metric} {r.number}"]))) for r in loop.rounds),
        )
        for metric, loop in loops.items()
    ]
    return Table(f"DAL: {title}", (*COUNTS, *SCORES), tuple(sections), notes, first="round")


def comparison(
    title: str, loops: Mapping[str, Augmented], reports: Mapping[str, Report], notes: tuple[str, ...]
) -> Table:
    """Return what the packs before and after the loop reach on pictures that chose nothing."""
    sections = []
    for metric, loop in loops.items():
        rows = [
            Row(label, (Cell(r.k), *_scores(reports[f"{metric} {r.number}"])))
            for label, r in (("ReCap", loop.rounds[0]), ("ReCap+DAL", loop.rounds[-1]))
        ]
        sections.append(Section(f"filtered by {METRICS[metric]}", tuple(rows)))
    return Table(f"DAL: {title}", (COUNTS[0], *SCORES), tuple(sections), notes)


def draw_metrics(title: str, loops: Mapping[str, Augmented], reports: Mapping[str, Report]) -> Figure:
    """Draw each metric over the rounds, a line for each metric that filtered."""
    panels = {
        METRICS[shown]: {
            METRICS[metric]: {float(r.number): _score(reports[f"{metric} {r.number}"], name) for r in loop.rounds}
            for metric, loop in loops.items()
        }
        for shown, name in REPORTED.items()
    }
    return draw_panels(title, "round", panels, legend="filtered by")


def draw_prompts(title: str, loops: Mapping[str, Augmented]) -> Figure:
    """Draw k, and how many of the retrieved captions are synthetic, over the rounds."""
    counts: dict[str, Callable[[Round], float]] = {
        "synthetic captions in the prompt": lambda r: r.in_prompt,
        "their share, %": lambda r: 100 * r.in_prompt / r.k,
        "k": lambda r: r.k,
    }
    panels = {
        name: {
            METRICS[metric]: {float(r.number): Cell(count(r)) for r in loop.rounds} for metric, loop in loops.items()
        }
        for name, count in counts.items()
    }
    figure = draw_panels(title, "round", panels, legend="filtered by")
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    return figure


def draw_examples(dev: Split, rounds: Sequence[Round]) -> Figure | None:
    """Show some pictures whose captions the loop has changed; None where there are no pictures, or no changes."""
    before, after = rounds[0].captions, rounds[-1].captions
    changed = [place for place in range(len(dev.ids)) if before[place] != after[place]]
    # from all over the split, and where one of them cannot be read, another
    spread = changed[:: max(1, len(changed) // EXAMPLES)]
    readable = (
        (place, seen) for place in dict.fromkeys(spread + changed) if (seen := read_pixels(dev, place)) is not None
    )
    shown = list(islice(readable, EXAMPLES))
    if not shown:
        return None
    figure = new_figure(11, 8)
    for axes, (place, picture) in zip(figure.subplots(2, EXAMPLES // 2).flat, shown, strict=False):
        axes.imshow(picture)
        lines = (fill(f"{label}: {text[place]}", 44) for label, text in (("DAL", after), ("ReCap", before)))
        axes.set_title("\n".join(lines).replace("$", r"\$"), fontsize=9, loc="left")
    for axes in figure.axes:
        axes.axis("off")
    return figure


def _filters(setup: Setup) -> list[str]:
    names = setup.listed("filter", "refaclip-s")
    for name in names:
        check_name("metric to filter by", name, METRICS)
    return names


def _at_hand(split: Split) -> tuple[ImageLike, ...]:
    return tuple(split.pictures) if split.can_be_seen else ()


def _judge(bench: Bench, train: Split, dev: Split) -> Judge:
    """Return who judges here; another encoder than the captioner's knows the same pictures."""
    if bench.judge is bench:
        return Judge(train.fit(bench.setup.judge_method))
    theirs, ours = (bench.judge.load(split.name, split.part) for split in (train, dev))
    if theirs.ids != train.ids or ours.ids[: len(dev.ids)] != dev.ids:
        raise InputError(f"{bench.judge.encoder.name} does not know the same pictures as {bench.encoder.name}")
    vectors = theirs.images, ours.first(len(dev.ids)).images
    return Judge(theirs.fit(bench.setup.judge_method), bench.judge.encoder, *vectors)


def _augmented(bench: Bench, plain: ReCap, train: Split, dev: Split, metric: str) -> Augmented:
    setup = bench.setup
    state, packs = setup.option("state", ""), setup.option("packs", "")
    found = augment(
        plain,
        *(Validation(part.ids, part.captions, part.images, _at_hand(part)) for part in (train, dev)),
        metric=metric,
        rounds=setup.number("rounds", ROUNDS),
        ks=setup.numbers("ks", KS),
        judge=_judge(bench, train, dev),
        state=Path(state) / metric if state else None,
        progress=setup.progress,
    )
    if packs:
        found.captioner.save_pretrained(Path(packs) / metric)
    return found


def _test_captions(search: Search, plain: ReCap, loops: Mapping[str, Augmented], test: Split) -> dict[str, list[str]]:
    """Return the captions of the test pictures before the first round and after the last."""
    found, rows = {}, search.rows_of(test, plain)
    for metric, loop in loops.items():
        first, last = loop.rounds[0], loop.rounds[-1]
        for number, captioner in ((first.number, retrieve_only(plain, first.k)), (last.number, loop.captioner)):
            found[f"{metric} {number}"] = [caption.text for caption in captioner.caption_vectors(rows)]
    return found


def _counts(r: Round) -> tuple[Cell, ...]:
    return Cell(r.k), Cell(r.added), Cell(r.synthetic), Cell(r.in_prompt), Cell(100 * r.in_prompt / r.k)


def _scores(report: Report) -> tuple[Cell, ...]:
    return tuple(_score(report, name) for name in REPORTED.values())


def _score(report: Report, name: str) -> Cell:
    """Return a metric, or nothing where it is not available, as SPICE without its parser."""
    return next((points(row) for row in report.rows if row.name == name), Cell())


RUNS: Runs = {"dal": (run, OPTIONS)}
