"""``recap retrieve``: the captions nearest to a picture."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from recap.cli.options import load_captioner, pack_options, shown


@click.command()
@click.argument("picture")
@pack_options
@click.option("-k", type=click.IntRange(1), default=5, show_default=True, help="How many captions.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def retrieve(picture: str, pack: str, device: str, k: int, as_json: bool) -> None:
    """Show the captions nearest to PICTURE.

    Where image and text encoder share a space (CLIP), the captions found without alignment are shown as well.
    Prints SIMILARITY<tab>CAPTION<tab>SOURCE.
    """
    captioner = load_captioner(pack, device, "none")
    found = {"aligned": captioner.retrieve(picture, k)}
    if captioner.encoder.shares_space:
        found["unaligned"] = captioner.retrieve(picture, k, aligned=False)
    if as_json:
        plain = {name: [asdict(item) for item in items] for name, items in found.items()}
        click.echo(json.dumps({"path": picture, **plain}, ensure_ascii=False))
        return
    for name, items in found.items():
        if len(found) > 1:
            click.echo(f"# {name}")
        for item in items:
            click.echo(f"{item.similarity:.3f}\t{shown(item.text)}\t{shown(item.source)}")
