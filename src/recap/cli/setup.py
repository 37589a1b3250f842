"""``recap setup`` and ``recap convert``: models made ready ahead of time."""

from __future__ import annotations

import click


@click.command()
@click.option("--fast", is_flag=True, help="Also make builtin-fast, the pack that sees less in half of the time.")
@click.option(
    "--lm", "language_model", is_flag=True, help="Also download SmolLM2-135M, a small general language model."
)
@click.option(
    "--captions",
    type=click.IntRange(0),
    metavar="N",
    help="How many COCO captions the built-in pack retrieves from; 0 takes all 400,000.  [default: 85,000]",
)
def setup(fast: bool, language_model: bool, captions: int | None) -> None:
    """Download weights and make the built-in pack now.

    Otherwise that happens when the pack is first used. Afterwards no network is needed.
    """
    from recap.assets import fetch
    from recap.packs.builtin import builtin_pack
    from recap.packs.folder import BUILTIN, FAST

    for asset in ("tinyvit", "dinov2", *(["smollm2"] if language_model else [])):
        click.echo(f"{asset}: {fetch(asset)}", err=True)
    click.echo("embedding captions, a few minutes the first time", err=True)
    for name in (BUILTIN, FAST) if fast else (BUILTIN,):
        click.echo(f"{name}: {builtin_pack(name, captions=captions, progress=True)}", err=True)


@click.command()
@click.argument("model")
@click.option("--out", required=True, type=click.Path(), help="The folder to write; use it as --lm ct2:FOLDER.")
@click.option(
    "--quantization",
    default="int8",
    show_default=True,
    help="Precision of the weights: int8, int8_float32, float16 or float32.",
)
def convert(model: str, out: str, quantization: str) -> None:
    """Convert a FLAN-T5 to CTranslate2, which is faster on a CPU.

    MODEL is its folder on this machine, in the format of transformers. It then runs several times faster.
    """
    from recap.language.ct2 import convert_to_ct2

    convert_to_ct2(model, out, quantization=quantization)
    click.echo(f"ct2:{out}")
