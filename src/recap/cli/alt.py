"""``recap alt``: alternative texts for the pictures of HTML pages."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recap.cli.options import confidence_option, load_captioner, pack_options

if TYPE_CHECKING:
    from recap.alt.fill import FilledPage


@click.command()
@click.argument("pages", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="PAGE...")
@pack_options
@confidence_option("default: those that are unsure; 0 takes all")
@click.option(
    "--base", type=click.Path(exists=True, file_okay=False), help="Where sources start [default: the page's]."
)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the page to this file.")
@click.option("--in-place", is_flag=True, help="Write each page back to where it was.")
@click.option("--empty", is_flag=True, help='Also fill alt="", which marks decoration.')
@click.option("--placeholders", is_flag=True, help="Also replace texts such as image, IMG_1234 or the file's name.")
@click.option("--json", "as_json", is_flag=True, help="What became of each picture, one object a line.")
def alt(
    pages: tuple[str, ...],
    pack: str,
    device: str,
    min_confidence: float | None,
    base: str | None,
    out: str | None,
    in_place: bool,
    empty: bool,
    placeholders: bool,
    as_json: bool,
) -> None:
    """Fill in the missing alternative texts of local pictures, and leave every other byte of PAGE as it is.

    Prints the page unless --out or --in-place says where it goes. What was written is marked with
    data-alt-source="recap". Pictures elsewhere on the net are named on standard error and left alone; one that
    cannot be read is named too, and makes the exit code 1. So is one whose caption is not sure enough to be
    written; that is no error.
    """
    if out and in_place:
        raise click.UsageError("choose one of --out and --in-place")
    if len(pages) > 1 and not in_place:
        raise click.UsageError("several pages go with --in-place only")
    if as_json and not (out or in_place):
        raise click.UsageError("--json goes with --out or --in-place, since the page itself goes to standard output")
    from recap.alt.fill import fill
    from recap.confidence import check_minimum
    from recap.files import atomic_write

    captioner = load_captioner(pack, device)
    if min_confidence:
        check_minimum(min_confidence, captioner.calibration, captioner.settings.method)
    unreadable = 0
    for page in map(Path, pages):
        content = page.read_bytes()
        filled = fill(
            content,
            captioner.caption_each,
            base=base or page.parent,
            empty=empty,
            placeholders=placeholders,
            min_confidence=min_confidence,
        )
        target = page if in_place else Path(out) if out else None
        if target is None:
            sys.stdout.buffer.write(filled.content)
        elif target != page or filled.content != content:
            mode = page.stat().st_mode
            with atomic_write(target) as file:
                file.write(filled.content)
                Path(file.name).chmod(mode)
        _tell(page, filled, as_json)
        unreadable += filled.count("unreadable")
    if unreadable:
        sys.exit(1)


def _tell(page: Path, filled: FilledPage, as_json: bool) -> None:
    """Say what became of the pictures; those that had a text or need none are only counted."""
    for finding in filled.findings:
        if as_json:
            click.echo(json.dumps({"page": str(page), **asdict(finding)}, ensure_ascii=False))
        elif finding.status not in ("filled", "described", "decorative"):
            source = f" {_short(finding.src)}" if finding.src else ""
            click.echo(f"recap: {page}:{finding.line}:{source} left alone: {finding.text}", err=True)
    known = filled.count("described") + filled.count("decorative")
    left = len(filled.findings) - filled.count("filled") - known
    withheld = f" ({filled.count('withheld')} not sure enough)" if filled.count("withheld") else ""
    said = f"{filled.count('filled')} filled, {known} had a text or are decoration, {left} left alone{withheld}"
    click.echo(f"recap: {page}: {said}", err=True)


def _short(src: str) -> str:
    return src if len(src) <= 80 else f"{src[:77]}..."
