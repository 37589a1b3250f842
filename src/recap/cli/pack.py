"""``recap pack``: packs as things that people check, join and share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def pack() -> None:
    """Look into packs, check them, join them, and share them on the Hugging Face hub."""


@pack.command()
@click.argument("name", metavar="PACK")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def info(name: str, as_json: bool) -> None:
    """Show what a PACK is made of: a folder, builtin, or OWNER/NAME on the hub."""
    facts = describe(name)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{key}:{'' if value else ' none'}")
            for inner, figure in value.items():
                click.echo(f"  {inner or 'unnamed'}: {_shown(figure)}")
        else:
            click.echo(f"{key}: {_shown(value)}")


def describe(name: str) -> dict[str, Any]:
    """Return the facts about a pack as plain values; nothing heavy is loaded."""
    from recap.packs.folder import BUILTIN, CONFIDENCE, find, read_config, read_datastore, read_facts
    from recap.packs.register import Pictures

    folder = find(name, progress=True)
    store = read_datastore(folder)
    facts, pictures, config = read_facts(folder, store), Pictures.load(folder), read_config(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "folder": str(folder),
        "made by recap": config.get("recap_version", ""),
        "encoder": facts.encoder,
        "map": facts.method,
        "pairs": facts.pairs,
        "pictures": None if pictures is None else len(pictures),
        "image vectors kept": pictures is not None and pictures.vectors is not None,
        "captions": len(store),
        "datastore": store.facts(),
        "sources": dict(facts.sources),
        "language": facts.settings.language,
        "language model": facts.language_model,
        "confidence": "fitted" if name == BUILTIN or (folder / CONFIDENCE).exists() else "not fitted",
        "settings": {
            "k": facts.settings.k,
            "pool": facts.settings.pool,
            "selection": facts.settings.selection or "what suits the language model",
            "candidates": facts.settings.candidates,
            "temperature": facts.settings.decoding.temperature,
            "samples": facts.settings.decoding.samples,
        },
        "description": facts.about.description,
        "author": facts.about.author,
        "licence": facts.about.licence,
        "numbers": facts.about.numbers,
        "megabytes": round(size / 1e6, 1),
    }


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.option(
    "--encoder", is_flag=True, help="Also load the encoder, and compare it with the one the pack was made with."
)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def verify(folder: Path, encoder: bool, as_json: bool) -> None:
    """Check every file of a PACK and what has to agree with what; the exit code is 1 when something is broken."""
    from recap.packs.verify import verify as checks

    broken = False
    for check in checks(folder, encoder=encoder):
        broken = broken or bool(check.problem)
        if as_json:
            record = {"check": check.name, "ok": not check.problem, "problem": check.problem, "detail": check.detail}
            click.echo(json.dumps(record, ensure_ascii=False))
        else:
            click.echo(f"{'BROKEN' if check.problem else 'ok':8}{check.name}: {check.problem or check.detail}")
    if broken:
        sys.exit(1)


@pack.command()
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write the joined pack to.")
@click.option("--method", help="The map to solve; by default the first pack's.")
def merge(packs: tuple[str, ...], out: Path, method: str | None) -> None:
    """Join several PACKs of one encoder: their pairs add up, their captions come together, the map is solved again.

    Settings and language model are the first pack's.
    """
    from recap.captioner import ReCap
    from recap.packs.folder import changing, check_target
    from recap.packs.merge import merge as joined

    if len(packs) < 2:
        raise click.UsageError("merging takes at least two packs")
    check_target(out)
    # the pack that is replaced may be one of those that are read
    with changing(out):
        first = ReCap.from_pretrained(packs[0], progress=True)
        others = [ReCap.from_pretrained(name, language_model="none", progress=True) for name in packs[1:]]
        merged = joined([first, *others], method=method)
        merged.save_pretrained(out)
    click.echo(
        f"{out}: {merged.alignment.method} of {merged.statistics.pairs:,.0f} pairs, {len(merged.datastore):,} captions",
        err=True,
    )


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.argument("pairs", required=False)
@click.option("--images", type=FOLDER, help="Where the pictures of a file lie.")
@click.option("--split", "splits", multiple=True, help="Of a Karpathy file.  [default: train and restval]")
@click.option("--held-out", is_flag=True, help="The pack was not fitted to PAIRS.")
@click.option("--pictures", type=click.IntRange(1), default=1000, show_default=True, help="Use at most this many.")
def calibrate(folder: Path, pairs: str | None, held_out: bool, pictures: int, **files: Any) -> None:
    """Fit the confidence of a PACK's captions, as recap fit does for a new one.

    PAIRS are those it was fitted to, or others with --held-out; without them the image vectors that the pack keeps are
    used.
    """
    from recap.fitting.confidence import calibrate_pack

    calibration = calibrate_pack(folder, pairs, fitted=not held_out, pictures=pictures, **files)
    click.echo(f"{folder}: confidence fitted on {calibration.pictures:,} pictures", err=True)


@pack.command()
@click.argument("folder", metavar="PACK", type=FOLDER)
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, default=None, help="Make the repository a private one.")
@click.option("--revision", help="The branch to push to.")
@click.option("--message", default="Upload a recap pack", show_default=True, help="Of the commit.")
def push(folder: Path, repository: str, private: bool | None, revision: str | None, message: str) -> None:
    """Upload a PACK to the Hugging Face hub, where you are logged in; prints the address of the commit.

    A pack that is not sound is not uploaded. Without a licence in the card you are warned: recap fit --licence.
    """
    from recap.errors import PackError
    from recap.packs.folder import read_about, read_config
    from recap.packs.hub import push as upload
    from recap.packs.verify import verify as checks

    for check in checks(folder):
        if check.problem:
            raise PackError(f"not uploaded: {check.problem}")
    if not read_about(read_config(folder), folder).licence:
        click.echo("recap: the card names no licence, so nobody may use this pack; see recap fit --licence", err=True)
    click.echo(upload(folder, repository, private=private, revision=revision, commit_message=message))


@pack.command()
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write the pack to.")
@click.option("--revision", help="A branch, tag or commit.")
def pull(repository: str, out: Path, revision: str | None) -> None:
    """Download a pack from the Hugging Face hub into a folder of your own, and check it."""
    from recap.packs.hub import pull as download

    download(repository, out, revision=revision)
    click.echo(f"{out}: {repository}", err=True)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
