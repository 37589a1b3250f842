"""``recap fit``: a pack from your own pairs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from recap.cli.options import DEVICES


@click.command()
@click.argument("pairs", type=click.Path(exists=True))
@click.option("--out", required=True, type=click.Path(), help="The folder to write the pack to.")
@click.option("--images", type=click.Path(exists=True, file_okay=False), help="Where the pictures of a json/csv lie.")
@click.option("--encoder", default="builtin", show_default=True, help="See recap info.")
@click.option("--lm", "language_model", default="none", show_default=True, help="Language model of the pack.")
@click.option("--method", help="procrustes, ols, ridge, beta-procrustes or identity.")
@click.option("-k", type=click.IntRange(1), help="How many retrieved captions the language model reads.")
@click.option("--source", default="", help="A name for these captions in the datastore.")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the encoder runs.")
def fit(
    pairs: str,
    out: str,
    images: str | None,
    encoder: str,
    language_model: str,
    source: str,
    device: str,
    **given: Any,
) -> None:
    """Fit a pack to PAIRS of pictures and captions.

    PAIRS is a folder of pictures with .txt files of the same name (one caption a line), a .jsonl or .csv file with
    image and caption, or a COCO captions .json with --images. Vectors are kept, so that a second fit takes seconds.
    """
    from recap.assets import cache_dir
    from recap.captioner import ReCap
    from recap.datasets import read_pairs
    from recap.encoders import load_encoder
    from recap.pack import check_target

    check_target(Path(out))
    started = time.perf_counter()
    known = read_pairs(pairs, images=images)
    changes = {name: value for name, value in given.items() if value is not None}
    loaded = load_encoder(encoder, device=device, cache=cache_dir() / "vectors.sqlite")
    captioner = ReCap.fit(
        known,
        encoder=loaded,
        language_model=language_model,
        device=device,
        source=source or Path(pairs).stem,
        progress=True,
        **changes,
    )
    captioner.save_pretrained(out)
    for problem in captioner.problems:
        click.echo(f"recap: {problem}", err=True)
    click.echo(
        f"{out}: {captioner.alignment.method} fitted on {captioner.statistics.pairs:,.0f} pairs of "
        f"{len(known) - len(captioner.problems):,} pictures in {time.perf_counter() - started:.1f} s",
        err=True,
    )
    if captioner.problems:
        sys.exit(1)
