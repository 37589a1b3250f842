"""``recap fit``: a pack from your own pairs, more pairs into a pack, and pairs out of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.options import (
    ANY_PATH,
    COUNT,
    FOLDER,
    OUTPUT,
    device_option,
    encoder_option,
    images_option,
    lm_option,
    method_option,
    ray_option,
    split_option,
)

if TYPE_CHECKING:
    from recap.fitting.tuning import Trial

NEW_PACK = ("method", "k", "language", "validation", "tune", "keep_vectors")
"""Options that only make sense for a new pack."""


@click.command()
@click.argument("pairs", required=False)
@click.option("--out", type=ANY_PATH, help="The folder to write the pack to.")
@click.option("--force", is_flag=True, help="Replace the pack that is in the --out folder already.")
@images_option
@split_option
@encoder_option
@lm_option("Language model that the pack writes with.  [default: writer; none if not in English]")
@method_option(
    "Map from pictures to captions: procrustes, ols, ridge, beta-procrustes, whitened or identity (default: whitened "
    "where pictures and captions share a space, as with builtin and CLIP; else procrustes)."
)
@click.option("-k", type=COUNT, help="How many retrieved captions the language model reads.")
@click.option("--language", help="Language of the captions, as a code: en, de, ja ...  [default: en]")
@click.option("--source", default="", help="Name of these captions in the datastore.  [default: the file's name]")
@click.option("--validation", help="Pictures held out to measure on: a share (0.1), other pairs, or a Karpathy split.")
@click.option("--tune", is_flag=True, help="Choose map, k and decoding by what is best on the --validation pictures.")
@click.option("--keep-vectors", is_flag=True, help="Keep vectors of the pictures, so that --forget needs names only.")
@click.option(
    "--calibrate/--no-calibrate", default=True, show_default=True, help="Fit how sure captions are: a minute."
)
@click.option("--update", type=FOLDER, help="Pack to add PAIRS to, exactly as if it had been fitted to all at once.")
@click.option("--forget", metavar="IDS", help="Pictures to take out of the --update pack: between commas, or a file.")
@click.option(
    "--datastore", metavar="WHERE", help="Where captions are kept: flat, disk ..., as in recap datastore move."
)
@click.option("--description", help="A sentence about the pack for its card.")
@click.option("--author", help="Who made the pack, for its card.")
@click.option("--licence", "--license", help="Licence of the captions for the card, such as CC-BY-4.0.")
@click.option("--report", type=OUTPUT, help="File that lists all pairs that are broken or come twice.")
@device_option("Processor for the encoder: cpu, cuda (NVIDIA) or mps (Apple).")
@ray_option
def fit(
    pairs: str, out: Path | None, update: Path | None, forget: str | None, report: Path | None, **given: Any
) -> None:
    """Fit a pack to PAIRS of pictures and captions.

    PAIRS is a folder of pictures with .txt files of the same name (one caption a line), a .jsonl, .csv or .parquet file
    with image and caption, a COCO or Karpathy .json or a token file of Flickr8k with --images, webdataset shards (.tar,
    a folder or a pattern of them), or vectors that recap embed made of any of these. Vectors are cached, so that a
    second fit takes seconds. The pairs may lie in a bucket (s3://..., gs://...). Their vectors are then kept beside
    --out until the pack is there, as with --ray.

    With --update the pairs are added to a pack, as if it had been fitted to all of them at once. With --forget pictures
    and their captions are taken out, as if they had never been there; unless the pack keeps vectors, PAIRS has to hold
    these pictures once more.
    """
    target = out or update
    if forget and not update:
        raise click.UsageError("--forget goes with --update PACK")
    if target is None or not (pairs or forget):
        raise click.UsageError("Missing argument 'PAIRS'." if target else "Missing option '--out'.")
    if update:
        _refuse_settings(given)
    from recap.fitting.packs import fit_pack, parse_names, summarize, update_pack, withdraw_pictures

    started = time.perf_counter()
    given["about"] = {name: given.pop(name) for name in ("description", "author", "licence")}
    kept = {name: given[name] for name in ("images", "source", "device", "about", "force")}
    if update and forget:
        captioner, gone = withdraw_pictures(str(update), parse_names(forget), target, pairs=pairs, **kept)
        left = f"{captioner.alignment.method} of {captioner.statistics.pairs:,.0f} pairs is left"
        click.echo(f"{target}: {gone:,} captions withdrawn; {left}", err=True)
        return
    if update:
        more = {name: given[name] for name in ("splits", "calibrate", "datastore")}
        captioner = update_pack(str(update), pairs, target, **kept, **more)
    else:
        captioner = fit_pack(pairs, target, **{**given, "tune": _show if given["tune"] else None})
    if report is not None:
        captioner.report.write(report)
    *lines, last = summarize(captioner, f"all are in {report}" if report else "--report FILE lists all")
    for line in [*lines, f"{target}: {last} in {time.perf_counter() - started:.1f} s"]:
        click.echo(line, err=True)
    if captioner.report.broken:
        sys.exit(1)


def _refuse_settings(given: dict[str, Any]) -> None:
    if "://" in (given["images"] or ""):
        raise click.UsageError("--images: with --update the pictures have to lie on this machine")
    if given["ray"] is not None:
        raise click.UsageError("--ray: not with --update; fit the new pairs to a pack, and see recap pack merge")
    names = [f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}" for name in NEW_PACK if given[name]]
    if names:
        raise click.UsageError(f"{', '.join(names)}: not with --update; these were settled when the pack was fitted")


def _show(trial: Trial) -> None:
    value, chosen = "default" if trial.value is None else trial.value, "  chosen" if trial.chosen else ""
    click.echo(f"{trial.parameter:<12}{value!s:<18}CIDEr-D {trial.cider_d:6.1f}{chosen}", err=True)
