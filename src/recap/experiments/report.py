"""``recap experiment all``: every experiment on every data set that is there, on one page.

    OUT/index.html               the page
    OUT/DATASET/EXPERIMENT/      its tables and figures as files, and ``part.json``, so that a run goes on where it was

What an earlier run with the same setup has finished is taken from its folder; what failed is tried again. The steps of
experiments that take hours are kept in ``state`` and ``checkpoints`` beside it, so that these go on, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from recap import __version__
from recap.errors import InputError, RecapError
from recap.experiments.base import EXPERIMENTS, Setup, options_of, run_experiment, write_outcome
from recap.experiments.data import READERS, TITLES, Bench
from recap.experiments.page import Part, Shown, outcome_html, page_html
from recap.files import atomic_write, write_json

PAGE = "index.html"
PART = "part.json"
KEPT = ("state", "checkpoints")
"""Options that name a folder of finished steps, which changes nothing in what comes out;"""
WRITTEN = ("packs", "captions")
"""and those that name one for something more to be written."""

_ALL = ("coco", "flickr30k", "vizwiz", "msrvtt")
_SEARCHED = (*_ALL, "xrays")
_BESIDE = "which prints the paper's numbers beside ours"


def _each(name: str) -> tuple[str, ...]:
    return tuple(f"{name}-{on}" for on in _SEARCHED)


PAPER = (
    Shown("table: lightweight captioning", "captioning", _ALL, tables=("captioning",)),
    Shown("table: parameters and times", "efficiency", ("coco",), tables=("efficiency",)),
    Shown("table: transfer from MS-COCO", "transfer", ("flickr30k", "vizwiz", "msrvtt"), tables=("transfer",)),
    Shown("table: metrics and human judgement", "", (), f"recap correlate FILE, {_BESIDE}", ("judgement",)),
    Shown(
        "table: metrics and human judgement, other encoders",
        "",
        (),
        f"recap correlate FILE --encoder NAME, once for each encoder, {_BESIDE}",
        ("judgement-encoders",),
    ),
    Shown("table: cross-modal retrieval", "retrieval", ("coco", "flickr30k"), tables=("retrieval",)),
    Shown(
        "table: cross-modal retrieval, other encoders",
        "retrieval",
        ("coco", "flickr30k"),
        "recap experiment retrieval --encoder NAME, once for each encoder: here are this run's and the paper's",
        ("retrieval-encoders",),
    ),
    Shown("table: ways to align", "alignment", ("coco",), tables=("alignment",)),
    Shown("table: sources of captions", "search-sources", ("coco", "flickr30k"), tables=("sources",)),
    Shown("table: encoders", "search-encoder", ("coco",), tables=("encoders",)),
    Shown("tables: number of retrieved captions", "search-k", _SEARCHED, tables=_each("k")),
    Shown("table: language models", "search-lm", ("coco",), tables=("language-models",)),
    Shown("tables: temperature and number of samples", "search-temperature", _SEARCHED, tables=_each("temperature")),
    Shown("table: ways to decode", "search-decoding", ("coco",), tables=("decoding",)),
    Shown("table: order in the prompt", "search-ordering", ("coco",), tables=("ordering",)),
    Shown("figure: the modality gap", "modality-gap", ("flickr30k",)),
    Shown("figure: correlation of metrics", "metric-correlation", ("coco",)),
    Shown("figures: metrics, k and synthetic captions in each round of DAL", "dal", ("coco", "flickr30k")),
    Shown("figures: captions with and without DAL", "dal", ("coco",)),
    Shown("figure: retrieval with and without alignment", "examples", ("coco",)),
)


def write_report(
    setup: Setup,
    out: Path,
    data_sets: Sequence[str] = tuple(READERS),
    *,
    experiments: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Run all experiments on all data sets that are there, write the page after each, and return its path."""
    unknown = [name for name in experiments if name not in EXPERIMENTS]
    if unknown:
        raise InputError(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    chosen = experiments or tuple(EXPERIMENTS)
    strange = set(setup.options).difference(*map(options_of, chosen))
    if strange:
        raise InputError(f"no experiment here has an option {min(strange)!r}")
    bench, absent = Bench(setup), {}
    for on in data_sets:
        try:
            bench.pairs(on, "train")
        except InputError as error:
            absent[on] = str(error)
            tell(f"{TITLES.get(on, on)}: {error}")
    there = [on for on in data_sets if on not in absent]
    if not there:
        raise InputError(f"{setup.data} holds none of the data sets: {'; '.join(absent.values())}")
    wanted = [(on, name) for on in there for name in chosen]
    parts: list[Part] = []
    for number, (on, name) in enumerate(wanted, 1):
        tell(f"{number} of {len(wanted)}: {name} on {TITLES[on]}")
        parts.append(_part(name, replace(setup, on=on, options=_own_options(setup, name, on)), out))
        if parts[-1].reason:
            tell(f"  not possible: {parts[-1].reason}")
        _write_page(setup, out, parts, absent, len(wanted) - number)
    return out / PAGE


def _part(name: str, setup: Setup, out: Path) -> Part:
    """Run an experiment, or take what an earlier run with the same setup has left."""
    folder, key = out / setup.on / name, _key(setup)
    known = _known(folder / PART)
    if known.get("setup") == key:
        return Part(name, setup.on, known["html"])
    try:
        outcome = run_experiment(name, replace(setup, options=_kept(name, key, folder) | dict(setup.options)))
        write_outcome(outcome, folder)
    except RecapError as error:
        return Part(name, setup.on, reason=str(error))
    html = outcome_html(outcome, folder, f"{setup.on}/{name}")
    write_json(folder / PART, {"setup": key, "html": html})
    return Part(name, setup.on, html)


def _own_options(setup: Setup, name: str, on: str) -> dict[str, str]:
    """Return the options of one experiment; what it writes lies apart from what it writes about other data sets."""
    own = {key: value for key, value in setup.options.items() if key in options_of(name)}
    named = {key: str(Path(own[key]) / on) for key in (*KEPT, *WRITTEN) if own.get(key)}
    return own | named


def _kept(name: str, key: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return where an experiment keeps what it has finished, unless told otherwise: apart for each setup."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return {option: str(folder / option / digest[:12]) for option in KEPT if option in options_of(name)}


def _known(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(setup: Setup) -> dict[str, Any]:
    """Return what decides the outcome, as json knows it."""
    values = asdict(setup)
    values.pop("progress")
    options = {name: value for name, value in setup.options.items() if name not in KEPT}
    return {**values, "data": str(setup.data.resolve()), "options": options, "recap": __version__}


def _write_page(setup: Setup, out: Path, parts: Sequence[Part], absent: dict[str, str], pending: int) -> None:
    facts = f"recap {__version__}, encoder {setup.encoder}, seed {setup.seed}"
    if setup.language_model:
        facts += f", language model {setup.language_model}"
    if setup.limit:
        facts += f", only {setup.limit:,} pictures of each split: numbers to try it out, not to report"
    facts += f". Data: {setup.data}. The paper's numbers stand below ours."
    page = page_html("The paper's experiments", facts, parts, absent, PAPER, pending)
    with atomic_write(out / PAGE) as file:
        file.write(page.encode())
