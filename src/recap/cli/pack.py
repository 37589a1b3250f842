"""``recap pack``: packs as things that people check, join and share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from recap.cli.options import ANY_PATH, COUNT, FOLDER, emit, json_option, method_option, printable, split_option


@click.group()
def pack() -> None:
    """Look into packs, check, join and share them."""


@pack.command()
@click.argument("name", metavar="PACK")
@json_option()
def info(name: str, as_json: bool) -> None:
    """Show what a PACK is made of.

    PACK is a folder, builtin, or OWNER/NAME on the Hugging Face hub.
    """
    from recap.packs.verify import describe, format_facts

    facts = describe(name)
    emit(facts, "\n".join(map(printable, format_facts(facts))), as_json=as_json, indent=2)


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.option(
    "--encoder", is_flag=True, help="Also load the encoder, and compare it with the one the pack was made with."
)
@json_option("Print json, one object a line.")
def verify(folder: Path, encoder: bool, as_json: bool) -> None:
    """Check every file of a PACK; exit code 1 if one is broken."""
    from recap.packs.verify import verify as run_checks

    broken = False
    for check in run_checks(folder, encoder=encoder):
        broken = broken or bool(check.problem)
        line = f"{'BROKEN' if check.problem else 'ok':8}{check.name}: {check.problem or check.detail}"
        record = {"check": check.name, "ok": not check.problem, "problem": check.problem, "detail": check.detail}
        emit(record, line, as_json=as_json)
    if broken:
        sys.exit(1)


@pack.command()
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.option("--out", required=True, type=ANY_PATH, help="The folder to write the joined pack to.")
@method_option("Map from pictures to captions: procrustes, ols, ridge ... (default: the first pack's).")
def merge(packs: tuple[str, ...], out: Path, method: str | None) -> None:
    """Join several PACKs of one encoder into one.

    Their pairs add up, their captions come together, and the map is solved again. Settings and language model are the
    first pack's; so is the confidence of captions where it has nine in ten of the pairs, and else recap pack calibrate
    fits it.
    """
    from recap.packs.sharing import merge_packs

    if len(packs) < 2:
        raise click.UsageError("merging takes at least two packs")
    merged = merge_packs(packs, out, method=method)
    pairs, captions = f"{merged.statistics.pairs:,.0f} pairs", f"{len(merged.datastore):,} captions"
    click.echo(f"{out}: {merged.alignment.method} of {pairs}, {captions}", err=True)


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.argument("pairs", required=False)
@click.option("--images", type=FOLDER, help="Folder of the pictures, where PAIRS is a file that names them.")
@split_option
@click.option("--held-out", is_flag=True, help="Say that the pack was not fitted to PAIRS.")
@click.option("--pictures", type=COUNT, default=1000, show_default=True, help="Fit on at most this many pictures.")
def calibrate(folder: Path, pairs: str | None, held_out: bool, pictures: int, **files: Any) -> None:
    """Fit how sure a PACK is of its captions.

    This is what recap fit does at the end for a new pack. PAIRS are those it was fitted to, or others with --held-out;
    without them the image vectors that the pack keeps are used.
    """
    from recap.fitting.packs import calibrate_pack

    calibration = calibrate_pack(folder, pairs, fitted=not held_out, pictures=pictures, **files)
    click.echo(f"{folder}: confidence fitted on {calibration.pictures:,} pictures", err=True)


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, default=None, help="Make the repository private, if it is new.")
@click.option("--revision", help="Branch of the repository to upload to (default: main).")
@click.option("--message", default="Upload a recap pack", show_default=True, help="Message of the commit.")
def push(folder: Path, repository: str, private: bool | None, revision: str | None, message: str) -> None:
    """Upload a PACK to the Hugging Face hub.

    You have to be logged in there (hf auth login). Prints the address of the commit. A pack that is not sound is not
    uploaded. Without a licence in the card you are warned: recap fit --licence.
    """
    from recap.packs.sharing import push_verified

    click.echo(push_verified(folder, repository, private=private, revision=revision, commit_message=message))


@pack.command()
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--out", required=True, type=ANY_PATH, help="The folder to write the pack to.")
@click.option("--revision", help="Branch, tag or commit to download (default: main).")
def pull(repository: str, out: Path, revision: str | None) -> None:
    """Download a pack from the Hugging Face hub, and check it."""
    from recap.packs.sharing import pull as download

    download(repository, out, revision=revision)
    click.echo(f"{out}: {repository}", err=True)
