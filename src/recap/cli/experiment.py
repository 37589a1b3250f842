"""``recap experiment``: the paper's experiments on your own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from recap.cli.options import FOLDER, NameChoice, encoder_option, format_option, lm_option, method_option
from recap.experiments.base import EXPERIMENTS, Setup

ALL = "all"


def _epilog() -> str:
    names = {entry.name: entry.help for entry in EXPERIMENTS}
    names[ALL] = "everything the data allow, on one page below --out"
    width = max(map(len, names)) + 2
    return "\b\n" + "\n".join(f"  {name:<{width}}{line}" for name, line in names.items())


@click.command(epilog=_epilog())
@click.argument("name", type=NameChoice("recap.experiments.base:EXPERIMENTS", ALL))
@click.option("--data", required=True, type=FOLDER, help="Folder that holds a folder for each data set.")
@click.option("--on", help="Data set to use: a folder below --data (default: flickr8k; for all: whatever is there).")
@encoder_option
@lm_option("Language model that writes captions (default: the experiment's own; see docs/experiments.md).")
@click.option(
    "--judge-encoder",
    help="Encoder behind metrics that compare captions with pictures, such as aCLIP-S (default: that of --encoder).",
)
@method_option(
    "Map from pictures to captions behind aCLIP-S and RefaCLIP-S.",
    "--judge-method",
    default="procrustes",
    show_default=True,
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything that is drawn at random.")
@click.option("--limit", type=click.IntRange(2), help="Use at most this many pictures of each split.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of this experiment; docs/experiments.md lists them; may be given several times.",
)
@format_option()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write tables and figures into, too."
)
def experiment(
    name: str,
    data: Path,
    on: str | None,
    encoder: str,
    language_model: str | None,
    judge_encoder: str | None,
    judge_method: str,
    seed: int,
    limit: int | None,
    options: tuple[str, ...],
    kind: str,
    out: Path | None,
) -> None:
    """Repeat an experiment of the paper on your own machine.

    Prints its table with the paper's numbers beside it. --data holds a folder for each data set: flickr8k, flickr30k,
    coco, vizwiz, msrvtt, xrays, as they are published. NAME-vectors/ may stand in for the pictures of NAME. Two runs
    with one seed print the same; times go to standard error. Figures need --out. all goes on where it was stopped;
    --option experiments=NAME,NAME takes only these.
    """
    if any("=" not in option for option in options):
        raise click.UsageError("--option takes KEY=VALUE")
    from recap.experiments import run_experiment, write_outcome

    chosen = dict(option.split("=", 1) for option in options)
    parts = (data, on or "flickr8k", encoder, language_model, seed, limit)
    setup = Setup(*parts, True, chosen, judge_encoder, judge_method)
    if name == ALL:
        _write_all(setup, out, on)
        return
    outcome = run_experiment(name, setup)
    for table in outcome.tables.values():
        click.echo(table.render(kind), nl=False)
    if outcome.times:
        click.echo(outcome.times.to_text(), err=True, nl=False)
    if out:
        for file in write_outcome(outcome, out):
            click.echo(f"wrote {file}", err=True)
    elif outcome.figures:
        click.echo(f"--out FOLDER writes the figure: {', '.join(outcome.figures)}", err=True)


def _write_all(setup: Setup, out: Path | None, on: str | None) -> None:
    from recap.experiments.data import READERS
    from recap.experiments.page import write_report

    if out is None:
        raise click.UsageError("all writes a page: name a folder with --out")
    options = dict(setup.options)
    only = [name for name in options.pop("experiments", "").split(",") if name]
    setup, sets = replace(setup, options=options), [on] if on else list(READERS)
    page = write_report(setup, out, sets, experiments=only, tell=lambda line: click.echo(line, err=True))
    click.echo(page)
