"""``recap correlate``: which metrics agree with people."""

from __future__ import annotations

from typing import Any

import click

from recap.cli.judging import encoder_options, exit_with_problems, load_judge, pictures_option, warnings_on_stderr
from recap.cli.options import format_option


@click.command()
@click.argument("judgements", type=click.Path(exists=True))
@click.option(
    "--input-format",
    type=click.Choice(["flickr8k-expert", "flickr8k-crowdflower", "thumb", "composite", "pascal-50s", "ratings"]),
    help="Format of JUDGEMENTS; recognised if not given.",
)
@click.option(
    "--captions",
    type=click.Path(exists=True, dir_okay=False),
    help="Flickr8k.token.txt, where it is not beside JUDGEMENTS.",
)
@click.option(
    "--references",
    type=click.Path(exists=True, dir_okay=False),
    help="Captions that people wrote, as recap score reads them.",
)
@pictures_option
@click.option("--metrics", default="all", show_default=True, help="Names joined by commas, such as cider,aclip-s.")
@encoder_options
@click.option(
    "--replicates",
    type=click.IntRange(2),
    default=500,
    show_default=True,
    help="Number of bootstrap samples behind the intervals.",
)
@format_option(short=("json", "csv"))
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the correlations into this file.")
def correlate(
    judgements: str,
    input_format: str | None,
    captions: str | None,
    references: str | None,
    images: str | None,
    metrics: str,
    replicates: int,
    kind: str,
    plot: str | None,
    **which: Any,
) -> None:
    """Correlate metrics with what people thought of captions.

    JUDGEMENTS is a file as it was published (for pascal-50s the folder of its two .mat files), or your own: json or
    jsonl, objects with image, caption, ratings (a number or a list) and maybe references. Prints Kendall's tau-b
    and tau-c in percent with 95 % intervals from a bootstrap over images; for pascal-50s the accuracy on pairs.
    """
    from recap.datasets.captions import read_references
    from recap.datasets.judgements import Preferences, read_judgements
    from recap.experiments.table import ENCODER, paper_judgements
    from recap.files import csv_text, latex_text, markdown_text
    from recap.metrics.correlation import (
        correlate_judgements,
        correlation_rows,
        correlations_json,
        correlations_table,
        save_plot,
    )
    from recap.metrics.evaluate import evaluate_judgements

    with warnings_on_stderr():
        judged = read_judgements(judgements, input_format, captions=captions)
        if references and not isinstance(judged, Preferences):
            judged = judged.with_references(read_references(references))
        encoder, alignment = load_judge(images is not None, **which)
        report = evaluate_judgements(
            judged, images, encoder=encoder, alignment=alignment, metrics=metrics, progress=True
        )
        rows = correlate_judgements(report, judged, replicates=replicates)
        if plot:
            save_plot(rows, judged, plot)
    paper = paper_judgements(judged.name, report.encoder)
    if kind == "json":
        click.echo(correlations_json(rows, judged, report, paper))
    elif kind != "table":
        text = {"csv": csv_text, "markdown": markdown_text, "latex": latex_text}[kind]
        click.echo(text(*correlation_rows(rows)), nl=False)
    else:
        from rich.console import Console, Group

        Console(highlight=False).print(Group(*correlations_table(rows, judged, report, paper, ENCODER)))
    exit_with_problems([report], explicit=metrics != "all")
