"""``recap retrieve``: the captions nearest to a picture."""

from __future__ import annotations

from dataclasses import asdict

import click

from recap.cli.options import (
    COUNT,
    PictureSource,
    format_option,
    load_captioner,
    pack_options,
    print_json,
    print_rows,
    printable,
)


@click.command()
@click.argument("picture", type=PictureSource())
@pack_options
@click.option("-k", type=COUNT, default=5, show_default=True, help="How many captions to show.")
@format_option()
def retrieve(picture: str, pack: str, device: str, k: int, kind: str, as_json: bool) -> None:
    """Show the captions nearest to PICTURE, a file or an address (https://...).

    Where image and text encoder share a space (CLIP), the captions found without alignment are shown as well.
    Prints SIMILARITY<tab>CAPTION<tab>SOURCE.
    """
    captioner = load_captioner(pack, device, "none")
    nearest = {"aligned": captioner.retrieve(picture, k)}
    if captioner.encoder.shares_space:
        nearest["unaligned"] = captioner.retrieve(picture, k, aligned=False)
    if as_json or kind == "json":
        plain = {name: [asdict(item) for item in items] for name, items in nearest.items()}
        print_json({"path": picture, **plain})
        return
    if kind != "table":
        rows = [(name, item) for name, items in nearest.items() for item in items]
        facts = [{"similarity": round(i.similarity, 4), "caption": i.text, "source": i.source} for _, i in rows]
        spaces = [{"space": name} if len(nearest) > 1 else {} for name, _ in rows]
        print_rows([{**space, **fact} for space, fact in zip(spaces, facts, strict=True)], kind)
        return
    for name, items in nearest.items():
        if len(nearest) > 1:
            click.echo(f"# {name}")
        for item in items:
            click.echo(f"{item.similarity:.3f}\t{printable(item.text)}\t{printable(item.source)}")
