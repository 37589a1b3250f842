"""What every experiment is given and gives back, and where its results are written.

An experiment is a function ``run(setup) -> Outcome`` with the names of its options in ``RUNS`` of a module of this
package, and an entry in ``EXPERIMENTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from recap.errors import InputError
from recap.experiments.table import FORMATS, SUFFIXES, Table
from recap.registry import Entry, Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Experiment(Entry):
    """An experiment that users choose by name."""

    module: str
    """The module of this package whose ``RUNS`` has it."""


EXPERIMENTS = Registry(
    "experiment",
    (
        Experiment("alignment", "every way to align, by recall, cosine and captions", "captioning"),
        Experiment(
            "captioning", "every metric, for ReCap with every map, retrieval alone and other systems", "captioning"
        ),
        Experiment("retrieval", "cross-modal retrieval, both ways, for every map", "retrieval"),
        Experiment("efficiency", "parameters, training and inference time, beside ClipCap and SmallCap", "efficiency"),
        Experiment("transfer", "a map from one data set, captions for another", "captioning"),
        Experiment("dal", "a datastore that grows by its own captions, round by round", "dal"),
        Experiment("search-k", "how many captions to retrieve", "searches"),
        Experiment("search-temperature", "temperature and number of samples", "searches"),
        Experiment("search-decoding", "greedy, sampling, top-k, nucleus", "searches"),
        Experiment("search-ordering", "where in the prompt the nearest caption stands", "searches"),
        Experiment("search-encoder", "captions with one encoder after the other", "searches"),
        Experiment("search-lm", "captions with one language model after the other", "searches"),
        Experiment("search-level", "single captions, all of a picture as one, narratives", "searches"),
        Experiment("search-sources", "captions of other data sets in the datastore", "searches"),
        Experiment("modality-gap", "where images and captions lie, before and after", "retrieval"),
        Experiment("metric-correlation", "which metrics say the same about ReCap's captions", "captioning"),
        Experiment("examples", "captions retrieved with and without alignment", "retrieval"),
    ),
)


@dataclass(frozen=True)
class Setup:
    """What an experiment runs on."""

    data: Path
    """The folder with the data sets; see ``recap.experiments.data``."""
    on: str = "flickr8k"
    """The data set."""
    encoder: str = "builtin"
    language_model: str | None = None
    seed: int = 0
    limit: int | None = None
    """Pictures taken of each split, to try something out."""
    progress: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """What only one experiment knows, such as ``source`` of the transfer."""
    judge_encoder: str | None = None
    """Compares captions with pictures in aCLIP-S and the like; None takes ``encoder``."""
    judge_method: str = "procrustes"
    """The map behind aCLIP-S and RefaCLIP-S."""

    def option(self, name: str, default: str) -> str:
        """Return an option of this experiment."""
        return self.options.get(name, default)

    def listed(self, name: str, default: str) -> list[str]:
        """Return an option that is names between commas."""
        return [part.strip() for part in self.option(name, default).split(",")]

    def number(self, name: str, default: int, least: int = 1) -> int:
        """Return an option that is a whole number."""
        return self._numbers(name, [self.option(name, str(default))], least)[0]

    def numbers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """Return an option that is whole numbers between commas."""
        return self._numbers(name, self.listed(name, ",".join(map(str, default))), 1)

    def real(self, name: str, default: float) -> float:
        """Return an option that is a number such as 0.1."""
        return self.reals(name, [default])[0]

    def reals(self, name: str, default: Sequence[float]) -> tuple[float, ...]:
        """Return an option that is such numbers between commas."""
        given = self.listed(name, ",".join(map(str, default)))
        try:
            values = tuple(map(float, given))
        except ValueError as error:
            raise InputError(f"{name}={','.join(given)}: expected a number such as 0.1") from error
        if not all(isfinite(value) and value >= 0 for value in values):
            raise InputError(f"{name}={','.join(given)}: expected numbers from 0 on")
        return values

    def _numbers(self, name: str, given: Sequence[str], least: int) -> tuple[int, ...]:
        if not all(part.isdecimal() and int(part) >= least for part in given):
            raise InputError(f"{name}={','.join(given)}: expected a whole number, at least {least}")
        return tuple(map(int, given))


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    """By a short name; the same in every run with one seed, to the last byte."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    """What else is written, by name: each is given its path."""
    times: Table | None = None
    """How long things took: no two runs agree, so it is no part of ``tables``."""


Runs: TypeAlias = Mapping[str, tuple[Callable[[Setup], Outcome], Sequence[str]]]
"""By the name of an experiment: what runs it, and the names of its options."""


def run_experiment(name: str, setup: Setup) -> Outcome:
    """Run an experiment by its name."""
    run, known = _experiment(name)
    if not setup.data.is_dir():
        raise InputError(f"{setup.data}: no such folder of data sets")
    unknown = sorted(set(setup.options) - set(known))
    if unknown:
        raise InputError(f"{name} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return run(setup)


def options_of(name: str) -> frozenset[str]:
    """Return the names of the options that an experiment has."""
    return frozenset(_experiment(name)[1])


def _experiment(name: str) -> tuple[Callable[[Setup], Outcome], Sequence[str]]:
    runs: Runs = import_module(f"recap.experiments.{EXPERIMENTS.get(name).module}").RUNS
    return runs[name]


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Write every table in every format and every figure as png and svg; return the files."""
    from recap.files import atomic_write

    folder.mkdir(parents=True, exist_ok=True)
    tables = {**outcome.tables, **({"times": outcome.times} if outcome.times else {})}
    written = []
    for name, table in tables.items():
        for kind, render in FORMATS.items():
            written.append(folder / f"{name}{SUFFIXES[kind]}")
            with atomic_write(written[-1]) as file:
                file.write(render(table).encode())
    for name, figure in outcome.figures.items():
        written += save_both(figure, folder / name)
    for name, write in outcome.files.items():
        write(folder / name)
        written.append(folder / name)
    return written


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, its size in inches."""
    from recap.metrics import significance

    return significance.new_figure(width, height, extra="experiments")


def save_both(figure: Figure, path: Path) -> list[Path]:
    """Write a figure beside ``path`` as png and as svg, the same bytes every time."""
    from matplotlib import rc_context

    from recap.metrics.significance import save_figure

    files = [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    facts: list[dict[str, Any]] = [{}, {"metadata": {"Date": None}}]
    with rc_context({"svg.hashsalt": "recap"}):
        for file, arguments in zip(files, facts, strict=True):
            save_figure(partial(figure.savefig, **arguments), file)
    return files
