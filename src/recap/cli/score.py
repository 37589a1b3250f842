"""``recap score``: how good captions are, by any number of metrics."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.embed import ray_option
from recap.cli.options import DEVICES

if TYPE_CHECKING:
    from recap.alignment import LinearAlignment
    from recap.encoders import Encoder
    from recap.metrics.report import Report
    from recap.metrics.significance import Comparison


def encoder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say by which encoder and map pictures are compared with captions."""
    options = (
        click.option("--pack", help="Encoder and map of this pack: builtin (default), a folder, or a name on the hub."),
        click.option("--encoder", help="This encoder instead, such as open_clip:ViT-B-32/openai; see recap info."),
        click.option("--fit", "pairs", type=click.Path(exists=True), help="Fit the map to these pairs, as recap fit."),
        click.option("--fit-images", type=click.Path(exists=True, file_okay=False), help="Where their pictures lie."),
        click.option("--method", default="ols", show_default=True, help="The map: ols, ridge, procrustes, ..."),
        click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the encoder runs."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("candidates", type=click.Path(exists=True, dir_okay=False))
@click.option("--references", type=click.Path(exists=True, dir_okay=False), help="What people wrote, same formats.")
@click.option("--split", help="Take this split of a Karpathy file of references, such as test.")
@click.option("--images", type=click.Path(exists=True, file_okay=False), help="The folder of the pictures, a path.")
@click.option("--metrics", default="all", show_default=True, help="Names joined by commas, such as bleu,cider,aclip-s.")
@click.option("--spice", type=click.Choice(["python", "java"]), default="python", help="Which SPICE is meant by spice.")
@encoder_options
@ray_option
@click.option("--against", type=click.Path(exists=True, dir_okay=False), help="Compare with these candidates.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.option("--csv", "as_csv", is_flag=True, help="One line a metric; with --per-image one line an image.")
@click.option("--markdown", is_flag=True, help="A table in markdown.")
@click.option("--per-image", is_flag=True, help="Also the value of every image (with --json or --csv).")
@click.option("--heatmap", type=click.Path(dir_okay=False), help="Draw the correlation between metrics into this file.")
def score(
    candidates: str,
    references: str | None,
    split: str | None,
    images: str | None,
    metrics: str,
    spice: str,
    against: str | None,
    as_json: bool,
    as_csv: bool,
    markdown: bool,
    per_image: bool,
    heatmap: str | None,
    ray: str | None,
    **which: Any,
) -> None:
    """Score CANDIDATES, one caption for each image, with standard errors.

    CANDIDATES and references are COCO results or captions, a Karpathy file, {id: caption(s)}, jsonl or csv.
    Metrics that look at the picture need --images. What cannot be computed is listed with the reason; when it was
    asked for by name, or a picture could not be read, the exit code is 1.
    """
    if as_json + as_csv + markdown > 1:
        raise click.UsageError("choose one of --json, --csv and --markdown")
    if per_image and not (as_json or as_csv):
        raise click.UsageError("--per-image goes with --json or --csv")
    from recap.datasets.captions import read_candidates, read_references
    from recap.metrics.evaluate import evaluate, parse_metrics
    from recap.metrics.significance import compare, save_heatmap

    with warnings_on_stderr():
        wanted = parse_metrics(metrics)
        if spice == "java":
            wanted = tuple(dict.fromkeys("spice-java" if name == "spice" else name for name in wanted))
        systems = [read_candidates(file) for file in (candidates, against) if file]
        given = read_references(references, split=split) if references else None
        encoder, alignment = load_judge(images is not None, ray=ray, **which)
        reports = [
            evaluate(system, given, images, encoder=encoder, alignment=alignment, metrics=wanted, progress=True)
            for system in in_common(systems)
        ]
        comparisons = compare(*reports) if against else []
        if heatmap:
            save_heatmap(reports[0], heatmap)
    report = reports[0]
    if as_json:
        click.echo(_as_json(reports, comparisons, per_image))
    elif as_csv:
        click.echo(report.to_csv(per_image=per_image) if not comparisons else comparison_csv(comparisons), nl=False)
    elif markdown:
        click.echo(report.to_markdown(), nl=False)
    else:
        _print_tables(report, comparisons)
    finish(reports, explicit=metrics != "all")


def load_judge(
    looks: bool,
    *,
    pack: str | None,
    encoder: str | None,
    pairs: str | None,
    fit_images: str | None,
    method: str,
    device: str,
    ray: str | None = None,
) -> tuple[Encoder | None, LinearAlignment | None]:
    """Return the encoder and the map that options name; those of the built-in pack when they name none."""
    if pack and encoder:
        raise click.UsageError("give --pack or --encoder, not both")
    if not (looks or pack or encoder):
        return None, None
    from recap.alignment import LinearAlignment
    from recap.assets import cache_dir
    from recap.encoders import load_encoder

    if encoder is None:
        name, statistics = _pack_parts(pack or "builtin")
    else:
        name, statistics = encoder, None
    loaded = load_encoder(name, device=device, cache=cache_dir() / "vectors.sqlite")
    if ray is not None:
        from recap.parallel.embedding import in_parts
        from recap.parallel.runners import runner

        loaded = in_parts(loaded, runner(ray), device)
    if pairs is not None:
        from recap.datasets import read_pairs
        from recap.fitting.fit import encode_pairs

        encoded = encode_pairs(read_pairs(pairs, images=fit_images), loaded, progress=True)
        for problem in encoded.problems:
            click.echo(f"recap: {problem}", err=True)
        statistics = encoded.statistics
    return loaded, LinearAlignment.from_statistics(statistics, method) if statistics is not None else None


def _pack_parts(name: str) -> tuple[str, Any]:
    """Return the encoder's name and the statistics of a pack, without its datastore."""
    from recap.alignment import PairStatistics
    from recap.packs import folder as pack

    packaged = Path(pack.__file__).parent.parent / "data" / name / pack.STATISTICS
    if name == Path(name).name and packaged.is_file():  # a built-in pack is named like its encoder
        return name, PairStatistics.load(packaged)
    folder = Path(name)
    if folder.is_dir():
        return pack.read_config(folder)["encoder"], PairStatistics.load(folder / pack.STATISTICS)
    contents = pack.load(name, device="cpu", revision=None, token=None, progress=True)
    return contents.encoder.name, contents.statistics


def in_common(systems: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the captions of images that every system has, in the order of the first."""
    from recap.errors import InputError

    shared = [image for image in systems[0] if all(image in system for system in systems)]
    if not shared:
        raise InputError("the two files of candidates have no image in common")
    left_out = max(len(system) for system in systems) - len(shared)
    if left_out:
        warnings.warn(f"{left_out} images are in one file of candidates only and are left out", stacklevel=2)
    return [{image: system[image] for image in shared} for system in systems]


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show each distinct warning of the block as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for message in dict.fromkeys(str(item.message) for item in caught):
                click.echo(f"recap: {message}", err=True)


def finish(reports: Sequence[Report], *, explicit: bool) -> None:
    """Name pictures that failed, and leave with 1 when some did or a metric asked for by name is missing."""
    problems = list(dict.fromkeys(problem for report in reports for problem in report.problems))
    for problem in problems:
        click.echo(f"recap: {problem}", err=True)
    missing = reports[0].reasons() if explicit else {}
    for reason, names in missing.items():
        click.echo(f"recap: {', '.join(names)}: {reason}", err=True)
    if problems or missing:
        sys.exit(1)


def comparison_csv(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons as csv."""
    from recap.metrics.report import csv_text

    header = ["metric", "value", "other", "difference", "low", "high", "p_value"]
    rows = [(c.metric, c.value, c.other, c.difference, *c.interval, c.p_value) for c in comparisons]
    return csv_text(header, rows)


def _as_json(reports: Sequence[Report], comparisons: Sequence[Comparison], per_image: bool) -> str:
    from recap.metrics.report import number

    values = reports[0].as_dict(per_image=per_image)
    if comparisons:
        values["other"] = reports[1].as_dict(per_image=per_image)
        values["comparison"] = [
            {
                "metric": item.metric,
                "difference": number(item.difference),
                "interval": [number(bound) for bound in item.interval],
                "p_value": number(item.p_value),
            }
            for item in comparisons
        ]
    return json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2)


def _print_tables(report: Report, comparisons: Sequence[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    from recap.metrics.report import shown

    console = Console(highlight=False)
    console.print(report)
    if comparisons:
        title = "first minus other, 95 % interval and p-value of a paired bootstrap"
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("metric", "first", "other", "difference", "interval", "p"):
            table.add_column(column, justify="left" if column == "metric" else "right")
        for item in comparisons:
            interval = " to ".join(shown(bound) for bound in item.interval)
            figures = (shown(item.value), shown(item.other), shown(item.difference), interval, shown(item.p_value))
            table.add_row(item.metric, *figures)
        console.print()
        console.print(table)
