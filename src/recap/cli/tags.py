"""``recap tags``: keywords of pictures."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from recap.cli.options import (
    expand_inputs,
    find_pictures,
    format_option,
    keep_suffix_option,
    lm_option,
    load_captioner,
    pack_options,
    print_json,
    print_rows,
    printable,
    warn,
)

if TYPE_CHECKING:
    from recap.types import Tag


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@lm_option("Language model whose words count beside those of retrieved captions, or none (default: the pack's).")
@click.option(
    "--min-score",
    type=click.FloatRange(0, 1),
    default=0.45,
    show_default=True,
    help="Least score of a keyword that is shown; lower for more, and more wrong ones.",
)
@format_option("What is printed: json has one object a line a picture, csv and the like one row a keyword.")
@click.option(
    "--sidecars", is_flag=True, help="Write the keywords into a .txt file beside each picture, if there is none."
)
@click.option("--xmp", is_flag=True, help="Add the keywords to an .xmp file beside each picture (photo managers).")
@keep_suffix_option
@click.option("--metadata", is_flag=True, help="Add the keywords to those inside the pictures (XMP, IPTC).")
@click.option("--keep-originals", is_flag=True, help="With --metadata: keep a copy of each file as it was.")
def tags(
    inputs: tuple[str, ...],
    pack: str,
    device: str,
    language_model: str | None,
    min_score: float,
    kind: str,
    sidecars: bool,
    xmp: bool,
    keep_suffix: bool,
    metadata: bool,
    keep_originals: bool,
) -> None:
    """Find keywords for pictures, with a score from 0 to 1 each.

    PICTURE is a picture, a folder (searched through), a glob pattern, or - for a list of paths on standard input.
    Prints PATH<tab>KEYWORD, KEYWORD ... A picture that cannot be read is named on standard error, and the
    exit code is 1.
    """
    if keep_originals and not metadata:
        raise click.UsageError("--keep-originals goes with --metadata")
    if keep_suffix and not (sidecars or xmp):
        raise click.UsageError("--sidecars-keep-suffix goes with --sidecars or --xmp")
    from recap.batch.sidecars import KeywordSink, find_collisions
    from recap.batch.tags import tag_each
    from recap.errors import ImageError
    from recap.files import progress_bar

    inputs = tuple(expand_inputs(inputs))
    paths = find_pictures(inputs)
    if not paths:
        raise click.UsageError("there is no picture in " + ", ".join(inputs))
    refused = find_collisions(paths, keep_suffix=keep_suffix, xmp=xmp) if sidecars or xmp else {}
    captioner = load_captioner(pack, device, language_model)
    places = {"sidecars": sidecars, "xmp": xmp, "keep_suffix": keep_suffix, "metadata": metadata}
    sink = KeywordSink(**places, keep_original=keep_originals)
    failed = 0
    rows: list[dict[str, object]] = []
    # a bar would tear the keywords apart when both go to the same screen
    bar = progress_bar(paths, unit="image", progress=False if sys.stdout.isatty() else None)
    for path, found in zip(bar, tag_each(captioner, paths, min_score=min_score), strict=True):
        if isinstance(found, ImageError) or path in refused:
            warn(found if isinstance(found, ImageError) else f"{path}: {refused[path]}")
            failed += 1
            continue
        sink.add(path, [tag.text for tag in found])
        if kind not in ("table", "json"):
            rows += [{"path": path, "keyword": tag.text, "score": tag.score} for tag in found]
        else:
            _print(path, found, as_json=kind == "json")
    if rows:
        print_rows(rows, kind)
    for reason in sink.refused:
        warn(reason)
    if sink.kept:
        warn(f"{sink.kept} .txt files with another text were left as they are")
    if failed or sink.refused:
        sys.exit(1)


def _print(path: str, found: tuple[Tag, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"path": path, "tags": [asdict(tag) for tag in found]})
    else:
        click.echo(f"{printable(path)}\t{printable(', '.join(tag.text for tag in found))}")
