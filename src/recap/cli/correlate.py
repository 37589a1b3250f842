"""``recap correlate``: which metrics agree with people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recap.cli.score import encoder_options, finish, load_judge, warnings_on_stderr

if TYPE_CHECKING:
    from recap.datasets.judgements import Judgements, Preferences
    from recap.metrics.correlation import Accuracy, Correlation
    from recap.metrics.report import Report


@click.command()
@click.argument("judgements", type=click.Path(exists=True))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["flickr8k-expert", "flickr8k-crowdflower", "thumb", "composite", "pascal-50s", "ratings"]),
    help="Whose file it is; told from the file if not given.",
)
@click.option("--captions", type=click.Path(exists=True, dir_okay=False), help="Flickr8k.token.txt, if not beside it.")
@click.option("--references", type=click.Path(exists=True, dir_okay=False), help="References, as recap score reads.")
@click.option("--images", type=click.Path(exists=True, file_okay=False), help="The folder of the pictures.")
@click.option("--metrics", default="all", show_default=True, help="Names joined by commas, such as cider,aclip-s.")
@encoder_options
@click.option("--replicates", type=click.IntRange(2), default=500, show_default=True, help="Bootstrap samples.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.option("--csv", "as_csv", is_flag=True, help="One line a metric.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the correlations into this file.")
def correlate(
    judgements: str,
    kind: str | None,
    captions: str | None,
    references: str | None,
    images: str | None,
    metrics: str,
    replicates: int,
    as_json: bool,
    as_csv: bool,
    plot: str | None,
    **which: Any,
) -> None:
    """Correlate metrics with what people thought of captions.

    JUDGEMENTS is a file as it was published (for pascal-50s the folder of its two .mat files), or your own: json or
    jsonl, objects with image, caption, ratings (a number or a list) and maybe references. Prints Kendall's tau-b
    and tau-c in percent with 95 % intervals from a bootstrap over images; for pascal-50s the accuracy on pairs.
    """
    if as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    from recap.datasets.captions import read_references
    from recap.datasets.judgements import Preferences, read_judgements
    from recap.experiments.paper import paper_judgements
    from recap.metrics.correlation import accuracies, correlate_report
    from recap.metrics.evaluate import evaluate_judgements

    with warnings_on_stderr():
        judged = read_judgements(judgements, kind, captions=captions)
        if references and not isinstance(judged, Preferences):
            judged = judged.with_references(read_references(references))
        encoder, alignment = load_judge(images is not None, **which)
        report = evaluate_judgements(
            judged, images, encoder=encoder, alignment=alignment, metrics=metrics, progress=True
        )
        rows: Sequence[Correlation | Accuracy]
        if isinstance(judged, Preferences):
            rows = accuracies(report, judged)
        else:
            rows = correlate_report(report, judged, replicates=replicates)
        if plot:
            _draw(rows, judged, plot)
    header, lines = _lines(rows)
    if as_json:
        missing = [{"metric": item.name, "reason": item.reason} for item in report.unavailable]
        values = [dict(zip(header, line, strict=True)) for line in lines]
        facts = {"data": judged.name, "judged": len(judged), "encoder": report.encoder, "alignment": report.alignment}
        found = {"metrics": values, "unavailable": missing, "paper": paper_judgements(judged.name, report.encoder)}
        click.echo(json.dumps({**facts, **found, **_people(judged)}, indent=2))
    elif as_csv:
        from recap.metrics.report import csv_text

        click.echo(csv_text(header, lines), nl=False)
    else:
        _print_table(judged, report, rows)
    finish([report], explicit=metrics != "all")


def _lines(rows: Sequence[Correlation | Accuracy]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one line a metric, in percent."""
    from recap.metrics.correlation import Accuracy

    lines: list[list[Any]] = []
    header = ["metric", "tau_b", "tau_b_low", "tau_b_high", "tau_c", "tau_c_low", "tau_c_high", "judgements"]
    for row in rows:
        if isinstance(row, Accuracy):
            header = ["metric", *row.by_category, "mean", "pairs"]
            lines.append([row.metric, *map(_percent, (*row.by_category.values(), row.mean)), row.pairs])
        else:
            taus = (row.tau_b, *row.interval_b, row.tau_c, *row.interval_c)
            lines.append([row.metric, *map(_percent, taus), row.judgements])
    return header, lines


def _percent(value: float) -> float | None:
    return round(100 * value, 2) if value == value else None


def _people(judged: Judgements | Preferences) -> dict[str, Any]:
    """Return how well the people agree with each other, as far as the data say."""
    import numpy as np

    from recap.datasets.judgements import Judgements
    from recap.metrics.correlation import rater_agreement, rater_tau

    if isinstance(judged, Judgements) and len({len(ratings) for ratings in judged.ratings}) == 1:
        if len(judged.ratings[0]) > 1:
            return {
                "between_raters": {f"tau_{v}": _percent(rater_tau(np.array(judged.ratings), v)) for v in ("b", "c")}
            }
        if judged.votes:
            observed, kappa = rater_agreement(judged.votes)
            return {"between_raters": {"agreement": _percent(observed), "kappa": _percent(kappa)}}
    return {}


def _print_table(judged: Judgements | Preferences, report: Report, rows: Sequence[Correlation | Accuracy]) -> None:
    from rich.console import Console
    from rich.table import Table

    from recap.datasets.judgements import Judgements
    from recap.experiments.paper import ENCODER, paper_judgements
    from recap.metrics.correlation import Accuracy
    from recap.metrics.report import unavailable_lines

    console = Console(highlight=False)
    title = ", ".join(part for part in (f"{judged.name}: {len(judged):,}", report.encoder, report.alignment) if part)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("metric")
    paper = paper_judgements(judged.name, report.encoder)
    for row in rows:
        if isinstance(row, Accuracy):
            cells = {**{kind: _shown(value) for kind, value in row.by_category.items()}, "mean": _shown(row.mean)}
        else:
            cells = {
                "tau-b": _shown(row.tau_b),
                "95 %": " to ".join(map(_shown, row.interval_b)),
                "tau-c": _shown(row.tau_c),
                "95 % ": " to ".join(map(_shown, row.interval_c)),
                **({"the paper": f"{paper.get(row.metric, '-')}"} if paper else {}),
            }
        for column in list(cells)[len(table.columns) - 1 :]:
            table.add_column(column, justify="right")
        table.add_row(row.metric, *cells.values())
    console.print(table)
    if paper and isinstance(judged, Judgements):
        console.print(f"the paper: tau-{judged.variant}; what looks at the picture, with {ENCODER} or this encoder")
    for what, figures in _people(judged).items():
        named = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in figures.items())
        console.print(f"{what.replace('_', ' ')}: {named}")
    console.print(*unavailable_lines(report), sep="\n")


def _shown(value: float) -> str:
    return f"{100 * value:.1f}" if value == value else "-"


def _draw(rows: Sequence[Correlation | Accuracy], judged: Judgements | Preferences, path: str) -> None:
    """Draw one bar a metric: the tau that is usual on these data with its interval, or the accuracy."""
    from recap.datasets.judgements import Judgements
    from recap.errors import MissingExtraError
    from recap.metrics.correlation import Accuracy
    from recap.metrics.significance import save_figure

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the plot", "plot") from error
    variant = judged.variant if isinstance(judged, Judgements) else ""
    figure = Figure(figsize=(7, 1 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        if isinstance(row, Accuracy):
            axes.barh(place, 100 * row.mean, color="steelblue")
        else:
            value, (low, high) = (row.tau_b, row.interval_b) if variant == "b" else (row.tau_c, row.interval_c)
            axes.barh(place, 100 * value, color="steelblue")
            axes.plot([100 * low, 100 * high], [place, place], color="black")
    axes.set_yticks(range(len(rows)), [row.metric for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"Kendall's tau-{variant}, percent" if variant else "accuracy, percent")
    axes.set_title(judged.name)
    save_figure(figure.savefig, path)
