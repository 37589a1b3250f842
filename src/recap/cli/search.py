"""``recap search``: the pictures that a text describes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from recap.cli.options import COUNT, format_option, pack_options, print_json, print_rows, printable, warn


@click.command()
@click.argument("text")
@click.argument("pictures", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@click.option("-k", type=COUNT, default=20, show_default=True, help="How many pictures.")
@format_option("What is printed: json has one object a line, html is a page of thumbnails.", "html")
def search(text: str, pictures: tuple[str, ...], pack: str, device: str, k: int, kind: str, as_json: bool) -> None:
    """Find the pictures that TEXT describes, best first.

    PICTURE is a picture, a folder (searched through) or a glob pattern. Prints SIMILARITY<tab>PATH. The first search
    looks at every picture; what it saw is kept in the cache folder, and searching again reads only what has changed. A
    picture that cannot be read is named on standard error, and the exit code is 1.
    """
    from recap.packs.search import PictureSearch, default_cache

    loaded = PictureSearch.load(pack, device=device, progress=True)
    index = loaded.index(pictures, cache=default_cache(), progress=True)
    if not index.paths and not index.problems:
        raise click.UsageError("there is no picture to search in " + ", ".join(pictures))
    found = loaded.search(text, index, k)
    if kind == "html":
        from recap.batch.report import write_thumbnails

        write_thumbnails(sys.stdout.buffer, text, found, lambda path: Path(path).absolute().as_uri())
    elif as_json or kind == "json":
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
