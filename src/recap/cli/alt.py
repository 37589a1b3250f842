"""``recap alt``: alternative texts for the pictures of HTML pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.options import (
    FOLDER,
    OUTPUT,
    confidence_option,
    json_option,
    load_captioner,
    pack_options,
    print_json,
    warn,
)

if TYPE_CHECKING:
    from recap.alt.fill import Describe, FilledPage
    from recap.errors import ImageError
    from recap.types import Caption


@click.command()
@click.argument("pages", nargs=-1, required=True, type=click.Path(exists=True), metavar="PAGE...")
@pack_options
@confidence_option("default: 0.6, where the pack is calibrated; 0 takes all")
@click.option("--base", type=FOLDER, help="Folder from which relative src paths start (default: that of the page).")
@click.option("--out", type=OUTPUT, help="File to write the page to.")
@click.option("--in-place", is_flag=True, help="Write each page back to where it was.")
@click.option("--empty", is_flag=True, help='Also fill alt="", which stands for decoration.')
@click.option("--placeholders", is_flag=True, help="Also replace texts such as image, IMG_1234 or the file's name.")
@click.option("--remote", is_flag=True, help="Also fetch and describe pictures of the web (https://...).")
@json_option("Print what became of each picture as json, one object a line.")
def alt(
    pages: tuple[str, ...],
    pack: str,
    device: str,
    base: Path | None,
    out: Path | None,
    in_place: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fill in missing alt texts of web pages.

    PAGE is a file, or with --in-place a folder, which is searched through for .html and .htm files. Every other byte
    stays as it is. Prints the page unless --out or --in-place says where it goes. What was written has the
    attribute data-alt-source="recap". Pictures of the web are named on standard error and left alone without --remote;
    one that cannot be read is named too, and makes the exit code 1. So is one whose caption is right with a probability
    below 0.6, or --min-confidence, and is not written; that is no error. A wrong text is worse than none.
    """
    if out and in_place:
        raise click.UsageError("choose one of --out and --in-place")
    if (len(pages) > 1 or Path(pages[0]).is_dir()) and not in_place:
        raise click.UsageError("several pages, and folders, go with --in-place only")
    if as_json and not (out or in_place):
        raise click.UsageError("--json goes with --out or --in-place, since the page itself goes to standard output")
    from recap.alt.fill import fill, find_pages
    from recap.confidence import check_minimum

    found, outside = find_pages(pages)
    for page in outside:
        warn(f"{page}: left alone: a link leads out of the folder")
    if not found:
        raise click.UsageError("there is no page (.html, .htm) in " + ", ".join(pages))
    captioner = load_captioner(pack, device)
    if options["min_confidence"]:
        check_minimum(options["min_confidence"], captioner.calibration, captioner.settings.method)
    describe, unreadable = _remembered(captioner.caption_each), 0
    for page, site in found:
        filled = fill(page.read_bytes(), describe, base=base or page.parent, root=base or site, **options)
        if in_place or out:
            filled.write(out or page, like=page)
        else:
            sys.stdout.buffer.write(filled.content)
        _report(page, filled, as_json)
        unreadable += filled.count("unreadable")
    if unreadable:
        sys.exit(1)


def _remembered(describe: Describe) -> Describe:
    """Return what describes a picture once, however many pages show it."""
    known: dict[Path | str, Caption | ImageError] = {}

    def recall(sources: Sequence[Path | str]) -> list[Caption | ImageError]:
        new = [source for source in sources if source not in known]
        known.update(zip(new, describe(new), strict=True) if new else ())
        return [known[source] for source in sources]

    return recall


def _report(page: Path, filled: FilledPage, as_json: bool) -> None:
    """Say what became of the pictures; those that had a text or need none are only counted."""
    for finding in filled.findings:
        if as_json:
            print_json({"page": str(page), **asdict(finding)})
        elif finding.status not in ("filled", "described", "decorative"):
            source = f" {finding.short_src}" if finding.src else ""
            warn(f"{page}:{finding.line}:{source} left alone: {finding.text}")
    warn(f"{page}: {filled.summary}")
