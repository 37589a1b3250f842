"""``recap setup``: everything the built-in pack needs, ahead of time."""

from __future__ import annotations

import click


@click.command()
@click.option("--large", is_flag=True, help="Also builtin-large: better captions for four times the time.")
@click.option("--lm", "language_model", is_flag=True, help="Also SmolLM2-135M, the small language model.")
@click.option(
    "--captions",
    type=click.IntRange(0),
    metavar="N",
    help="How many COCO captions to retrieve from; 0 takes all 400,000. [default: 50,000]",
)
def setup(large: bool, language_model: bool, captions: int | None) -> None:
    """Download weights and make the built-in pack, so that nothing has to be fetched later."""
    from recap.assets import fetch
    from recap.builtin import builtin_pack

    for name in ("builtin", "builtin-large") if large else ("builtin",):
        folder = builtin_pack(name, captions=captions, progress=True)
        click.echo(f"{name}: {folder}", err=True)
    if language_model:
        click.echo(f"smollm2: {fetch('smollm2')}", err=True)
