"""The page of ``recap experiment all``: tables and figures, and what could not be made. One file, nothing is loaded.

``recap experiment all``: every experiment on every data set that is there, on one page.

    OUT/index.html               the page
    OUT/DATASET/EXPERIMENT/      its tables and figures as files, and ``part.json``, so that a run goes on where it was

What an earlier run with the same setup has finished is taken from its folder; what failed is tried again. The steps of
experiments that take hours are kept in ``state`` and ``checkpoints`` beside it, so that these go on, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from recap import __version__
from recap.errors import InputError, RecapError
from recap.experiments.base import EXPERIMENTS, Outcome, Setup, options_of, run_experiment, write_outcome
from recap.experiments.data import READERS, TITLES, Bench
from recap.experiments.table import BOLD, SUFFIXES, Cell, Section, Table
from recap.files import atomic_write, write_json


@dataclass(frozen=True)
class Part:
    """One experiment on one data set: what it shows, or why there is nothing to show."""

    name: str
    on: str
    html: str = ""
    reason: str = ""

    @property
    def anchor(self) -> str:
        """The name of its place on the page."""
        return f"{self.on}-{self.name}"


@dataclass(frozen=True)
class Shown:
    """A table or figure of the paper, and the experiment that repeats it."""

    what: str
    experiment: str = ""
    on: Sequence[str] = ()
    """The data sets it has in the paper."""
    elsewhere: str = ""
    """The command that makes it, where an experiment of this page does not."""
    tables: Sequence[str] = ()
    """Its names in ``paper.json``."""


def outcome_html(outcome: Outcome, folder: Path, link: str) -> str:
    """Return the tables and figures of an experiment; its files lie in ``folder``, which the page calls ``link``."""
    parts = [table_html(table) + _files(name, link) for name, table in outcome.tables.items()]
    parts += [_figure(folder / f"{name}.png", f"{link}/{name}") for name in outcome.figures]
    if outcome.times:
        parts.append(f"<details><summary>Times</summary>{table_html(outcome.times)}</details>")
    return "\n".join(parts)


def table_html(table: Table) -> str:
    """Return a table; the best of each column is bold."""
    rows = [row.cells for section in table.sections for row in section.rows]
    head = "".join(
        f'<th scope="col"{_kind(row[place] for row in rows)}>{escape(column.name)}</th>'
        for place, column in enumerate(table.columns)
    )
    body = "\n".join(_section_html(table, section) for section in table.sections)
    notes = " ".join([*([BOLD] if table.has_best else []), *table.notes])
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>\n'
        f'<thead><tr><th scope="col">{escape(table.first)}</th>{head}</tr></thead>\n{body}\n</table></div>\n'
        f'<p class="notes">{escape(notes)}</p>\n'
    )


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Nothing is loaded from elsewhere, and no script runs."""


def page_html(
    title: str, facts: str, parts: Sequence[Part], absent: Mapping[str, str], paper: Iterable[Shown], pending: int = 0
) -> str:
    """Return the page; ``absent`` says why a data set is not here, ``pending`` how many experiments are to come."""
    own, report = files("recap.experiments"), files("recap.batch")
    template, css = ((own / name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
    head, style = ((report / name).read_text(encoding="utf-8") for name in ("head.html", "report.css"))
    made = [part for part in parts if part.html]
    state = f" {pending} experiments are still to come: open the page again." if pending else ""
    results = ["".join(_part_html(part) for part in made), _missing(parts, absent), _paper(parts, absent, paper)]
    return Template(head + template).substitute(
        version=__version__,
        policy=POLICY,
        title=escape(title),
        style=style + css,
        lead=escape(facts) + state,
        contents=_contents(made),
        results="\n".join(results),
    )


def _section_html(table: Table, section: Section) -> str:
    lines = []
    if section.title:
        lines.append(f'<tr class="title"><th colspan="{len(table.columns) + 1}">{escape(section.title)}</th></tr>')
    texts = table.marked_rows(section, "<b>{}</b>".format, escape)
    for row, (label, *shown) in zip(section.rows, texts, strict=True):
        cells = (f"<td{_kind([cell])}>{text}</td>" for cell, text in zip(row.cells, shown, strict=True))
        lines.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return "<tbody>" + "\n".join(lines) + "</tbody>"


def _kind(cells: Iterable[Cell]) -> str:
    """Return how cells are set: words to the left, numbers to the right."""
    return ' class="text"' if any(isinstance(cell.value, str) for cell in cells) else ""


def _files(name: str, link: str) -> str:
    named = ", ".join(f'<a href="{link}/{name}{suffix}">{kind}</a>' for kind, suffix in SUFFIXES.items())
    return f'<p class="files">{escape(name)} as {named}</p>\n'


def _figure(path: Path, link: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    kinds = ", ".join(f'<a href="{link}.{kind}">{kind}</a>' for kind in ("png", "svg"))
    return (
        f'<figure><img alt="{escape(path.stem)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(path.stem)} as {kinds}</figcaption></figure>"
    )


def _contents(made: Sequence[Part]) -> str:
    lines = []
    for on in dict.fromkeys(part.on for part in made):
        links = " ".join(f'<a href="#{part.anchor}">{escape(part.name)}</a>' for part in made if part.on == on)
        lines.append(f"<li><b>{escape(TITLES[on])}</b> {links}</li>")
    others = '<li><a href="#missing">what is not here</a> <a href="#paper">the tables and figures of the paper</a></li>'
    return f'<nav aria-label="Contents"><ul>{"".join(lines)}{others}</ul></nav>'


def _part_html(part: Part) -> str:
    about = escape(EXPERIMENTS.get(part.name).help)
    return f"""<section class="part" id="{part.anchor}">
<h2>{escape(part.name)} <small>{escape(TITLES[part.on])}: {about}</small></h2>
{part.html}
</section>
"""


def _missing(parts: Sequence[Part], absent: Mapping[str, str]) -> str:
    """Return what the data do not allow, and why."""
    rows = [(TITLES[on], "all experiments", reason) for on, reason in absent.items()]
    rows += [(TITLES[part.on], part.name, part.reason) for part in parts if part.reason]
    empty = "Everything that was asked for could be made."
    return _listed("missing", "What is not here", ("data set", "experiment", "why"), rows, empty)


def _paper(parts: Sequence[Part], absent: Mapping[str, str], paper: Iterable[Shown]) -> str:
    """Return every table and figure of the paper, with where it is repeated here, or why it is not."""
    rows = []
    for shown in paper:
        here = [part for part in parts if part.name == shown.experiment and part.html]
        why = [part for part in parts if part.name == shown.experiment and part.reason]
        links = ", ".join(f'<a href="#{part.anchor}">{escape(TITLES[part.on])}</a>' for part in here)
        if shown.elsewhere:
            lacking = [f"made by {shown.elsewhere}"]
        elif not here and not why:
            lacking = ["not asked for"]
        else:
            lacking = [*_untried(shown, parts, absent), *(f"{TITLES[part.on]}: {part.reason}" for part in why)]
        rows.append((shown.what, _Html(links), "; ".join(lacking)))
    head = ("in the paper", "here, on", "not here")
    return _listed("paper", "The tables and figures of the paper", head, rows, "")


def _untried(shown: Shown, parts: Sequence[Part], absent: Mapping[str, str]) -> list[str]:
    """Return the data sets of the paper on which nothing was run, by the reason."""
    tried = {part.on for part in parts}
    reasons: dict[str, list[str]] = {}
    for on in shown.on:
        if on not in tried:
            reasons.setdefault("not at hand" if on in absent else "not asked for", []).append(TITLES[on])
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


class _Html(str):
    """Text that is html already."""

    __slots__ = ()


def _listed(anchor: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    heads = "".join(f'<th scope="col" class="text">{escape(name)}</th>' for name in head)
    body = "\n".join(
        "<tr>"
        + "".join(f'<td class="text">{cell if isinstance(cell, _Html) else escape(cell)}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    table = f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    return (
        f'<section class="part" id="{anchor}"><h2>{escape(title)}</h2>{table if rows else f"<p>{empty}</p>"}</section>'
    )


PAGE = "index.html"
PART = "part.json"
KEPT = ("state", "checkpoints")
"""Options that name a folder of finished steps, which changes nothing in what comes out."""
WRITTEN = ("packs", "captions")
"""Options that name a folder for something more to be written."""

PAPER = tuple(
    Shown(**entry) for entry in json.loads((Path(__file__).parent / "shown.json").read_text(encoding="utf-8"))
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
    chosen = experiments or EXPERIMENTS.names()
    for name in chosen:
        EXPERIMENTS.get(name)
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
