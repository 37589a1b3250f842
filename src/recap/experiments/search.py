"""What the searches share: a captioner of the training captions whose settings are tried on validation pictures.

As in the paper every caption is written by the language model, from the k nearest captions and nothing else, and k is
searched for with greedy decoding. What is retrieved, embedded or written once is remembered, so that settings which
differ in one thing share the rest.

Options of all searches: ``pictures=500`` tries with the first so many pictures, ``method=ols`` takes another map,
``ks=4,8,13`` are the values of k, ``metrics=cider-d,aclip-s`` computes only some of the columns, ``settings=paper`` or
``pack`` says whose map, rule, temperature, samples and k are taken (see ``recap.experiments.study``). Searches over
other things than k draw sentences: ``k=13`` spares them the search for k, ``temperature=0.5`` and ``samples=10`` say
how, ``selection=cosine`` how one of them is selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recap.captioner import ReCap
from recap.datastore import CaptionStore
from recap.experiments.base import Setup, new_figure
from recap.experiments.data import Split
from recap.experiments.study import ALIKE, WRITER, Study, paper_best, score_cells, score_systems, settings_kind
from recap.experiments.table import Cell, Column, Row, Section, paper_section, paper_table
from recap.fitting.augmentation import retrieve_only
from recap.fitting.tuning import add_cache
from recap.language import Decoding, LanguageModel
from recap.metrics.cider import cider_d
from recap.packs.settings import Settings
from recap.types import Caption, Draft, Prompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEARCH_OPTIONS = ("pictures", "method", "ks", "metrics", "settings")
"""Those that all searches have."""

METRICS = {
    "BLEU@1": "bleu-1",
    "BLEU@4": "bleu-4",
    "ROUGE-L": "rouge-l",
    "CIDEr-D": "cider-d",
    "SPICE": "spice",
    "aCLIP-S": "aclip-s",
    "RefaCLIP-S": "refaclip-s",
}
"""Columns, under the paper's names."""
REPORTED = {"BLEU@1": "BLEU-1", "BLEU@4": "BLEU-4", "SPICE": "SPICE-py"}
"""What a report calls those it has other names for."""
COLUMNS = tuple(Column(name) for name in METRICS)
DRAWN = ("CIDEr-D", "RefaCLIP-S")

KS = (1, 4, 8, 13, 18, 30, 60, 100)
"""Values of k where the paper tried none."""
FLAN = "RN50x64, FLAN-T5-Large"

_known_ks: dict[tuple[object, ...], int] = {}


class Search(Study):
    """The training captions as a datastore, a split to try settings on, and a language model."""

    def __init__(self, setup: Setup, split: str = "dev", default_model: str = WRITER) -> None:
        super().__init__(setup, default_model)
        self._split = split

    @cached_property
    def pictures(self) -> Split:
        """What the settings are tried on."""
        return self.some(self._split)

    def some(self, split: str) -> Split:
        """Return a split, as far as the option ``pictures`` wants it."""
        whole, count = self.load(self.setup.on, split), self.setup.number("pictures", 0, least=0)
        return whole.first(count) if count else whole

    @cached_property
    def settings(self) -> Settings:
        """How captions are made: by the language model alone where there is one."""
        chosen = super().settings
        method, candidates = self.setup.option("method", chosen.method), "lm" if self.model else "retrieved"
        return chosen.but(method=method, candidates=candidates)

    @cached_property
    def captioner(self) -> ReCap:
        """The captioner of the training captions."""
        return self.captioner_of(self.store)

    def captioner_of(self, store: CaptionStore) -> ReCap:
        """Return a captioner with another datastore; it remembers what it has looked up, embedded and written."""
        return add_cache(self.plain(store))

    def plain(self, store: CaptionStore) -> ReCap:
        """Return a captioner that does everything anew."""
        return self.make_captioner(self.train.fit(self.settings.method, seed=self.setup.seed), store)

    @cached_property
    def k(self) -> int:
        """That of the option or the paper, or what does best on dev with greedy decoding, searched for once."""
        setup, model = self.setup, self.model.name if self.model else ""
        if "k" in setup.options or settings_kind(setup, self.model) == "paper":
            return self.settings.k
        options = sorted((name, value) for name, value in setup.options.items() if name in SEARCH_OPTIONS)
        key = (setup.data, setup.on, setup.encoder, model, setup.limit, setup.seed, *options)
        if key not in _known_ks:
            _known_ks[key] = best_k(self.some("dev"), self.tried_ks)
        return _known_ks[key]

    @cached_property
    def tried_ks(self) -> dict[int, list[str]]:
        """The captions of dev for each k to try, and for the paper's, written greedily."""
        dev = self.rows_of(self.some("dev"), self.captioner)
        values = sorted({*ks(self.setup), paper_best(self.setup)[0]})
        captioners = {k: retrieve_only(self.captioner, k, temperature=0.0) for k in values}
        return {k: [caption.text for caption in one.caption_vectors(dev)] for k, one in captioners.items()}

    def texts(self, k: int, captioner: ReCap | None = None, **settings: Any) -> list[str]:
        """Return the captions with some settings."""
        return [caption.text for caption in self.captions(k, captioner, **settings)]

    def captions(self, k: int, captioner: ReCap | None = None, **settings: Any) -> list[Caption]:
        """Return the captions with their evidence."""
        chosen = retrieve_only(captioner or self.captioner, k, **settings)
        return chosen.caption_vectors(self.rows_of(self.pictures, chosen))

    def rows(self, systems: Mapping[str, Sequence[str]]) -> dict[str, Row]:
        """Return one row of all metrics for each list of captions."""
        wanted = self.setup.listed("metrics", ",".join(METRICS.values()))
        cells = score_cells(
            score_systems(self, self.pictures, systems, wanted), [REPORTED.get(name, name) for name in METRICS]
        )
        return {label: Row(label, values) for label, values in cells.items()}

    @property
    def title(self) -> str:
        """What the captions are of, and who wrote them."""
        return self.titled(self.pictures)


def ks(setup: Setup) -> tuple[int, ...]:
    """Return the values of k to try: those of the option, those the paper tried, or ``KS``."""
    if "ks" in setup.options or setup.on in ALIKE:
        return setup.numbers("ks", KS)
    sections = paper_table(f"k-{setup.on}")["sections"]
    return tuple(int(k) for k in sections[next(iter(sections))])


def best_k(pictures: Split, tried: Mapping[int, Sequence[str]]) -> int:
    """Return the k with the highest CIDEr-D, the smallest of several."""
    scores = {k: cider_d(captions, pictures.captions).value for k, captions in tried.items()}
    return max(scores, key=lambda k: (scores[k], -k))


def cell_of(row: Row, name: str) -> Cell:
    """Return the cell of a metric."""
    return row.cells[list(METRICS).index(name)]


def value(row: Row, name: str) -> float:
    """Return a metric of a row, in points; NaN where there is none."""
    found = cell_of(row, name).value
    return float(found) if isinstance(found, float | int) else float("nan")


def paper_rows(table: str, section: str, setting: str = FLAN, columns: Sequence[Column] = COLUMNS) -> Section:
    """Return the paper's rows under our columns."""
    return paper_section(table, section, [column.name for column in columns], setting=setting)


@dataclass
class DrawnOnce:
    """A language model that draws as many sentences as are ever wanted once, and gives the first of them.

    The first ten of thirty are ten independent sentences too, so a grid over their number need not draw anew.
    """

    model: LanguageModel
    most: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt."""
        drawn = self.model.write(prompts, replace(decoding, samples=self.most))
        return [drafts[: decoding.samples] for drafts in drawn]


def draw_lines(title: str, xlabel: str, lines: Mapping[str, Mapping[float, Row]]) -> Figure:
    """Draw metrics over a number, a line for each of several series."""
    panels = {
        name: {label: {x: cell_of(row, name) for x, row in line.items()} for label, line in lines.items()}
        for name in DRAWN
    }
    known = {
        name: panel
        for name, panel in panels.items()
        if any(cell.value is not None for line in panel.values() for cell in line.values())
    }
    return draw_panels(title, xlabel, known or panels)


def draw_panels(
    title: str, xlabel: str, panels: Mapping[str, Mapping[str, Mapping[float, Cell]]], legend: str = ""
) -> Figure:
    """Draw a panel for each name, with a line for each series in it; values of x stand at equal distances."""
    figure = new_figure(3 + 3 * len(panels), 3.8)
    figure.suptitle(title)
    for axes, (name, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        places = {x: place for place, x in enumerate(sorted({x for line in lines.values() for x in line}))}
        for label, line in lines.items():
            known = {places[x]: cell for x, cell in line.items() if cell.value is not None}
            values, errors = [cell.value for cell in known.values()], [cell.error or 0.0 for cell in known.values()]
            axes.errorbar(list(known), values, yerr=errors, capsize=3, label=label, marker="o")
        axes.set_title(name)
        axes.set_xticks(list(places.values()), [f"{x:g}" for x in places])
        axes.set_xlabel(xlabel)
    if legend or len(lines) > 1:
        axes.legend(title=legend or None)
    return figure


def draw_rows(title: str, rows: Sequence[Row]) -> Figure:
    """Draw metrics of rows that no number orders."""
    figure = new_figure(9, 1.4 + 0.4 * len(rows))
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(DRAWN), sharey=True), DRAWN, strict=True):
        known = {place: cell for place, row in enumerate(rows) if (cell := cell_of(row, name)).value is not None}
        values, errors = [cell.value for cell in known.values()], [cell.error or 0.0 for cell in known.values()]
        axes.errorbar(values, list(known), xerr=errors, fmt="o", capsize=3)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_title(name)
    axes.invert_yaxis()
    return figure
