"""What ``recap score`` and ``recap correlate`` share: the encoder and the map they judge by, and their end."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from recap.cli.options import combine, device_option, method_option, warn

if TYPE_CHECKING:
    from recap.alignment import LinearAlignment
    from recap.encoders import Encoder
    from recap.metrics.report import Report

pictures_option = click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of the pictures, for metrics that look at them.",
)

encoder_options = combine(
    click.option(
        "--pack",
        help="Pack whose encoder and map compare captions with pictures: builtin (default), a folder, or OWNER/NAME.",
    ),
    click.option(
        *("--encoder", "--judge-encoder", "encoder"),
        help="Encoder that compares captions with pictures in place of a pack's, such as ViT-B/32; see recap info.",
    ),
    click.option(
        "--fit",
        "pairs",
        type=click.Path(exists=True),
        help="Pairs to fit the map to, in the formats of recap fit (default: the pack's map).",
    ),
    click.option(
        "--fit-images", type=click.Path(exists=True, file_okay=False), help="Folder of the pictures that --fit names."
    ),
    method_option(
        *(
            "Map from pictures to captions behind aCLIP-S and RefaCLIP-S: procrustes (the paper's), ols, ridge ...",
            "--method",
            "--judge-method",
            "method",
        ),
        default="procrustes",
        show_default=True,
    ),
    device_option("Processor for the encoder: cpu, cuda (NVIDIA) or mps (Apple)."),
)


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
    from recap.assets import vector_file
    from recap.encoders import load_encoder
    from recap.packs.folder import read_statistics

    if encoder is None:
        name, statistics = read_statistics(pack or "builtin")
    else:
        name, statistics = encoder, None
    loaded = load_encoder(name, device=device, cache=vector_file())
    if ray is not None:
        from recap.fitting.embedding import in_parts
        from recap.parallel.runners import runner

        loaded = in_parts(loaded, runner(ray), device)
    if pairs is not None:
        from recap.datasets import read_pairs
        from recap.fitting.fit import encode_pairs

        encoded = encode_pairs(read_pairs(pairs, images=fit_images), loaded, progress=True)
        for problem in encoded.problems:
            warn(problem)
        statistics = encoded.statistics
    return loaded, LinearAlignment.from_statistics(statistics, method) if statistics is not None else None


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show each distinct warning of the block as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for message in dict.fromkeys(str(item.message) for item in caught):
                warn(message)


def exit_with_problems(reports: Sequence[Report], *, explicit: bool) -> None:
    """Name pictures that failed, and leave with 1 when some did or a metric asked for by name is missing."""
    problems = list(dict.fromkeys(problem for report in reports for problem in report.problems))
    for problem in problems:
        warn(problem)
    missing = reports[0].reasons() if explicit else {}
    for reason, names in missing.items():
        warn(f"{', '.join(names)}: {reason}")
    if problems or missing:
        sys.exit(1)
