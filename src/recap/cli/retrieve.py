"""``recap retrieve`` and ``recap search``: the captions nearest to a picture, the pictures that a text describes."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from recap.cli.options import (
    COUNT,
    format_option,
    load_captioner,
    pack_options,
    print_json,
    print_rows,
    printable,
    report_raw,
    warn,
)


class PictureSource(click.Path):
    """A picture: a file, or an address."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path or an address as text; whether an address can be fetched is seen later."""
        return value if re.match("https?://", str(value), re.I) else super().convert(value, param, ctx)


@click.command()
@click.argument("picture", type=PictureSource())
@pack_options
@click.option("-k", type=COUNT, default=5, show_default=True, help="How many captions to show.")
@format_option()
def retrieve(picture: str, pack: str, device: str, k: int, kind: str) -> None:
    """Show the captions nearest to a picture.

    PICTURE is a file or an address (https://...). Where image and text encoder share a space (CLIP), the captions found
    without alignment are shown as well. Prints SIMILARITY<tab>CAPTION<tab>SOURCE.
    """
    captioner = load_captioner(pack, device, "none")
    nearest = {"aligned": captioner.retrieve(picture, k)}
    if captioner.encoder.shares_space:
        nearest["unaligned"] = captioner.retrieve(picture, k, aligned=False)
    if kind == "json":
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


@click.command()
@click.argument("text")
@click.argument("pictures", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@click.option("-k", type=COUNT, default=20, show_default=True, help="How many pictures to show.")
@format_option("What is printed: json has one object a line, html is a page of thumbnails.", "html")
def search(text: str, pictures: tuple[str, ...], pack: str, device: str, k: int, kind: str) -> None:
    """Find the pictures that TEXT describes, best first.

    PICTURE is a picture, a folder (searched through) or a glob pattern. Prints SIMILARITY<tab>PATH. The first search
    looks at every picture; what it saw is kept in the cache folder, and searching again reads only what has changed. A
    picture that cannot be read is named on standard error, and the exit code is 1.
    """
    from recap.assets import vector_file
    from recap.packs.search import PictureSearch

    report_raw(pictures)
    loaded = PictureSearch.load(pack, device=device, progress=True)
    index = loaded.index(pictures, cache=vector_file(), progress=True)
    if not index.paths and not index.problems:
        raise click.UsageError("there is no picture to search in " + ", ".join(pictures))
    found = loaded.search(text, index, k)
    if kind == "html":
        from recap.batch.report import write_thumbnails

        write_thumbnails(sys.stdout.buffer, text, found, lambda path: Path(path).absolute().as_uri())
    elif kind == "json":
        for item in found:
            print_json(asdict(item))
    elif kind == "table":
        for item in found:
            click.echo(f"{item.similarity:.3f}\t{printable(item.path)}")
    else:
        print_rows([asdict(item) for item in found], kind)
    for problem in index.problems:
        warn(problem)
    if index.problems:
        warn(f"{len(index.problems)} of {len(index.problems) + len(index.paths)} pictures could not be read")
        sys.exit(1)
