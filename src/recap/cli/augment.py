"""``recap augment``: a pack that writes captions for its own pictures, and keeps the good ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.options import ANY_PATH, COUNT, device_option, lm_option, method_option, split_option

if TYPE_CHECKING:
    from recap.fitting.augmentation import Round

METRICS = click.Choice(["refaclip-s", "aclip-s", "cider-d", "spice"])


def _numbers(context: click.Context, option: click.Parameter, given: str) -> tuple[int, ...]:
    """Return the numbers between commas."""
    try:
        return tuple(click.IntRange(1)(part, option, context) for part in given.split(","))
    except click.BadParameter as error:
        raise click.UsageError(f"--ks {given}: expected whole numbers, 1 or more, between commas") from error


@click.command()
@click.argument("pack")
@click.argument("pairs")
@click.option("--out", required=True, type=ANY_PATH, help="The folder to write the new pack to.")
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of the pictures, where PAIRS is a file that names them.",
)
@split_option
@click.option(
    "--validation",
    default="0.1",
    show_default=True,
    help="Pictures held out to measure on, as recap fit was told: a share (0.1), other pairs, or a Karpathy split.",
)
@click.option(
    "--metric",
    type=METRICS,
    default="refaclip-s",
    show_default=True,
    help="Metric that decides which written captions are good enough to keep.",
)
@click.option(
    "--rounds",
    type=COUNT,
    default=5,
    show_default=True,
    help="How many times captions are written and the good ones added.",
)
@click.option(
    "--ks",
    default="4,8,13,18,30,100",
    show_default=True,
    callback=_numbers,
    help="Numbers of retrieved captions (k) to choose from in each round, joined by commas.",
)
@click.option("--judge-encoder", help="Encoder behind the metrics aclip-s and refaclip-s.  [default: the pack's]")
@method_option(
    "Map from pictures to captions behind the metrics aclip-s and refaclip-s.",
    "--judge-method",
    default="procrustes",
    show_default=True,
)
@lm_option("Language model that writes the captions (default: the pack's).")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps what is finished, so that a killed run goes on.  [default: OUT with .rounds]",
)
@device_option("Processor for encoder and language model: cpu, cuda (NVIDIA) or mps (Apple).")
def augment(pack: str, pairs: str, out: Path, state: Path | None, **given: Any) -> None:
    """Let a PACK write captions for PAIRS, and keep the good ones.

    The pack with the captions it wrote is saved as a new one.

    PAIRS are what the pack was fitted to, with the same --validation: those pictures tell what is good. A written
    caption is kept, marked as synthetic, if it is the best for its picture and scores above the mean of the validation
    pictures. Then k is chosen again, and the next round begins. The map stays as it is. A run that was killed goes on
    when the same command is given again.
    """
    from recap.assets import vector_file
    from recap.captioner import ReCap
    from recap.datasets import PairFiles
    from recap.encoders import load_encoder
    from recap.fitting.augmentation import augment_pairs
    from recap.fitting.packs import parse_validation
    from recap.packs.folder import check_target

    check_target(out)
    images, splits = given.pop("images"), given.pop("splits") or None
    held_out = parse_validation(given.pop("validation"), pairs, images)
    loaded = {name: given.pop(name) for name in ("language_model", "device")}
    cache = vector_file()
    captioner = ReCap.from_pretrained(pack, progress=True, cache=cache, **loaded)
    if judge := given.pop("judge_encoder"):
        given["judge_encoder"] = load_encoder(judge, device=loaded["device"], cache=cache)
    augmented = augment_pairs(
        captioner,
        PairFiles(pairs, images=images, splits=splits),
        held_out,
        state=state or out.with_name(f"{out.name}.rounds"),
        tell=_show,
        progress=True,
        **given,
    )
    augmented.captioner.save_pretrained(out)
    last = augmented.rounds[-1]
    click.echo(f"{out}: {last.synthetic:,} synthetic captions of {len(augmented.captioner.datastore):,}", err=True)


def _show(done: Round) -> None:
    if not done.number:
        click.echo("round\tk\tscore\tadded\tsynthetic in the prompt")
    click.echo(f"{done.number}\t{done.k}\t{100 * done.score:.2f}\t{done.added}\t{done.in_prompt:.2f}")
