"""``recap score``: how good captions are, by any number of metrics."""

from __future__ import annotations

from typing import Any

import click

from recap.cli.judging import encoder_options, exit_with_problems, load_judge, pictures_option, warnings_on_stderr
from recap.cli.options import format_option, ray_option
from recap.errors import InputError


@click.command()
@click.argument("candidates", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--references",
    type=click.Path(exists=True, dir_okay=False),
    help="Captions that people wrote, in the formats of CANDIDATES.",
)
@click.option("--split", help="Take this split of a Karpathy file of references, such as test.")
@pictures_option
@click.option(
    "--metrics",
    default="all",
    show_default=True,
    help="Names joined by commas, such as bleu,cider,aclip-s, or my_module:function.",
)
@click.option(
    "--spice",
    type=click.Choice(["python", "java"]),
    default="python",
    help="Implementation of SPICE that the metric spice stands for: our own (python), or its authors' (java).",
)
@encoder_options
@ray_option
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False),
    help="File of other candidates to compare with, by a paired bootstrap.",
)
@format_option(
    "How scores are printed; csv has a line a metric, with --per-image a line an image.",
    short=("json", "csv", "markdown"),
)
@click.option("--per-image", is_flag=True, help="Also print the score of every image, in json or csv.")
@click.option("--heatmap", type=click.Path(dir_okay=False), help="Draw the correlation between metrics into this file.")
def score(
    candidates: str,
    references: str | None,
    split: str | None,
    images: str | None,
    metrics: str,
    spice: str,
    against: str | None,
    kind: str,
    per_image: bool,
    heatmap: str | None,
    ray: str | None,
    **which: Any,
) -> None:
    """Score captions by any metric, with standard errors.

    CANDIDATES has one caption for each image. Scores are points: 100 times the fraction. CANDIDATES and references are
    COCO results or captions, a Karpathy file, {id: caption(s)}, jsonl or csv. Metrics that look at the picture need
    --images. What cannot be computed is listed with the reason; when it was asked for by name, or a picture could not
    be read, the exit code is 1.
    """
    if per_image and kind not in ("json", "csv"):
        raise click.UsageError("--per-image goes with --format json or csv")
    from recap.datasets.captions import read_candidates, read_references
    from recap.metrics.evaluate import evaluate
    from recap.metrics.registry import parse_metrics
    from recap.metrics.significance import (
        compare,
        comparisons_csv,
        comparisons_table,
        in_common,
        reports_json,
        save_heatmap,
    )

    with warnings_on_stderr():
        wanted = parse_metrics(metrics)
        if spice == "java":
            wanted = tuple(dict.fromkeys("spice-java" if name == "spice" else name for name in wanted))
        systems = [read_candidates(file) for file in (candidates, against) if file]
        known = read_references(references, split=split) if references else None
        encoder, alignment = load_judge(images is not None, ray=ray, **which)
        reports = [
            evaluate(system, known, images, encoder=encoder, alignment=alignment, metrics=wanted, progress=True)
            for system in in_common(systems)
        ]
        if not reports[0].rows and metrics == "all":
            raise InputError(f"nothing can be computed: {'; '.join(reports[0].reasons())}")
        comparisons = compare(*reports) if against else []
        if heatmap:
            save_heatmap(reports[0], heatmap)
    if kind == "json":
        click.echo(reports_json(reports, comparisons, per_image=per_image))
    elif kind == "csv":
        text = comparisons_csv(comparisons) if comparisons else reports[0].to_csv(per_image=per_image)
        click.echo(text, nl=False)
    elif kind != "table":
        click.echo(reports[0].to_markdown() if kind == "markdown" else reports[0].to_latex(), nl=False)
    else:
        from rich.console import Console, Group

        Console(highlight=False).print(Group(reports[0], *comparisons_table(comparisons)))
    exit_with_problems(reports, explicit=metrics != "all")
