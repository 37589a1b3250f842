"""``recap setup``: everything the built-in pack needs, ahead of time."""

from __future__ import annotations

import click


@click.command()
@click.option("--large", is_flag=True, help="Also the weights of builtin-large, the better encoder to fit packs with.")
@click.option("--lm", "language_model", is_flag=True, help="Also SmolLM2-135M, the small language model.")
@click.option(
    "--captions",
    type=click.IntRange(0),
    metavar="N",
    help="How many COCO captions to retrieve from; 0 takes all 400,000. [default: 85,000]",
)
def setup(large: bool, language_model: bool, captions: int | None) -> None:
    """Download weights and make the built-in pack, so that nothing has to be fetched later."""
    from recap.assets import fetch
    from recap.packs.builtin import builtin_pack

    for asset in ("tinyvit", *(["dinov2"] if large else []), *(["smollm2"] if language_model else [])):
        click.echo(f"{asset}: {fetch(asset)}", err=True)
    click.echo("builtin: embedding captions, a few minutes the first time", err=True)
    click.echo(f"builtin: {builtin_pack(captions=captions, progress=True)}", err=True)
