"""``recap augment``: a pack that writes captions for its own pictures, and keeps the good ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from recap.cli.options import DEVICES

if TYPE_CHECKING:
    from recap.augmentation import Round

METRICS = click.Choice(["refaclip-s", "aclip-s", "cider-d", "spice"])


@click.command()
@click.argument("pack")
@click.argument("pairs")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write the new pack to.")
@click.option("--images", type=click.Path(exists=True, file_okay=False), help="Where the pictures of a file lie.")
@click.option("--split", "splits", multiple=True, help="Of a Karpathy file.  [default: train and restval]")
@click.option(
    "--validation", default="0.1", show_default=True, help="As recap fit had it: a share, other pairs, or a split."
)
@click.option("--metric", type=METRICS, default="refaclip-s", show_default=True, help="What captions are filtered by.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often.")
@click.option("--ks", default="4,8,13,18,30,100", show_default=True, help="Values of k to choose from in each round.")
@click.option("--lm", "language_model", help="Another language model than the pack's.")
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), help="Finished parts.  [default: OUT with .rounds]"
)
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where encoder and model run.")
def augment(
    pack: str,
    pairs: str,
    out: Path,
    images: str | None,
    splits: tuple[str, ...],
    validation: str,
    metric: str,
    rounds: int,
    ks: str,
    language_model: str | None,
    state: Path | None,
    device: str,
) -> None:
    """Write captions for the pictures of PAIRS with a PACK, and save it with the good ones as a new pack.

    PAIRS are what the pack was fitted to, with the same --validation: those pictures tell what is good. A written
    caption is kept, marked as synthetic, if it is the best for its picture and scores above the mean of the validation
    pictures. Then k is chosen again, and the next round begins. The map stays as it is. A run that was killed goes on
    when the same command is given again.
    """
    from recap.assets import cache_dir
    from recap.augmentation import augment as loop
    from recap.augmentation import training_pictures
    from recap.captioner import ReCap
    from recap.cli.fit import validation_pairs
    from recap.datasets import PairFiles
    from recap.fitting import encode_pairs
    from recap.pack import check_target

    values = whole_numbers(ks)
    check_target(out)
    captioner = ReCap.from_pretrained(
        pack, language_model=language_model, device=device, progress=True, cache=cache_dir() / "vectors.sqlite"
    )
    known = PairFiles(pairs, images=images, splits=splits or None)
    apart = validation_pairs(validation, pairs, images)
    encoded = encode_pairs(known, captioner.encoder, validation=apart, keep_vectors=True, progress=True)
    found = loop(
        captioner,
        training_pictures(encoded),
        encoded.validation,
        metric=metric,
        rounds=rounds,
        ks=values,
        state=state or out.with_name(f"{out.name}.rounds"),
        tell=show,
        progress=True,
    )
    found.captioner.save_pretrained(out)
    last = found.rounds[-1]
    click.echo(f"{out}: {last.synthetic:,} synthetic captions of {len(found.captioner.datastore):,}", err=True)


def show(found: Round) -> None:
    """Print one row of the table of rounds."""
    if not found.number:
        click.echo("round\tk\tscore\tadded\tsynthetic in the prompt")
    click.echo(f"{found.number}\t{found.k}\t{100 * found.score:.2f}\t{found.added}\t{found.in_prompt:.2f}")


def whole_numbers(given: str) -> tuple[int, ...]:
    """Return the numbers between commas."""
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError as error:
        raise click.UsageError(f"--ks {given}: expected whole numbers between commas") from error
