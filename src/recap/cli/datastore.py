"""``recap datastore``: the captions of a pack, looked at and changed in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from recap.cli.options import COUNT, caption_filters, compact_option, emit, json_option, own_pack, printable


@click.group()
def datastore() -> None:
    """Look at the captions of a PACK, add some, remove some.

    Changes are made in place and at once: whatever happens meanwhile, the pack has the old captions or the new ones.
    The map stays as it was; recap fit --update changes that.
    """


@datastore.command("list")
@own_pack
@caption_filters
@click.option("--limit", type=COUNT, help="Show at most this many captions.")
@click.option("--sources", is_flag=True, help="Show only how many captions each source has.")
@json_option("Print json, one object a line.")
def list_captions(pack: Path, limit: int | None, sources: bool, as_json: bool, **which: Any) -> None:
    """List captions: ID<tab>SOURCE<tab>IMAGE<tab>CAPTION."""
    from recap.packs.captions import select

    store, ids = select(pack, **which)
    if not sources:
        _print(store.walk(ids[:limit]), as_json)
        return
    for name, count in sorted(Counter(row.source for row in store.walk(ids)).items()):
        emit({"source": name, "captions": count}, f"{printable(name)}\t{count}", as_json=as_json)


@datastore.command("add")
@own_pack
@click.argument("captions")
@click.option("--source", default="", help="Source of these captions, if the file has none.  [default: its name]")
@click.option("--synthetic", is_flag=True, help="Mark the captions as written by a machine.")
def add_captions(pack: Path, captions: str, source: str, synthetic: bool) -> None:
    """Add CAPTIONS to retrieve from.

    They are a text file with one a line, or .jsonl, .csv or .parquet with caption (and source, image, synthetic); for
    - text is read from standard input. Captions that are there already are passed over, so the same file can be added
    again.
    """
    from recap.packs.captions import add_file

    added, known = add_file(pack, captions, source=source, synthetic=synthetic, progress=True)
    click.echo(f"{pack}: {added:,} captions added, {known:,} were there already", err=True)


@datastore.command("remove")
@own_pack
@caption_filters
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@compact_option
def remove_captions(pack: Path, dry_run: bool, compact: bool, **which: Any) -> None:
    """Remove captions by id, source, picture, words, or writer.

    With several options those go that fit all of them.
    The map still knows the pairs they came from: recap fit --update PACK --forget takes them out of that too.
    """
    from recap.packs.captions import remove_selected, select

    if not any(value not in (None, ()) for value in which.values()):
        raise click.UsageError("say which: --id, --source, --image, --match, --synthetic or --human")
    if dry_run:
        store, ids = select(pack, **which)
        _print(store.walk(ids))
    count = len(ids) if dry_run else remove_selected(pack, compact=compact, **which)
    click.echo(f"{pack}: {count:,} captions {'would be' if dry_run else 'were'} removed", err=True)


@datastore.command()
@own_pack
@click.option("--near", type=float, metavar="COSINE", help="Also remove captions so similar to another, such as 0.97.")
@compact_option
def dedupe(pack: Path, near: float | None, compact: bool) -> None:
    """Remove captions that say the same as an earlier one.

    Those are captions that are equal but for case, spaces and full stop. With --near also those whose vectors are
    nearly the same; above 50,000 captions each is compared with its 64 nearest neighbours.
    """
    from recap.packs import captions

    count = captions.dedupe(pack, cosine=near, compact=compact, progress=True)
    click.echo(f"{pack}: {count:,} captions removed", err=True)


@datastore.command()
@own_pack
@click.argument("where")
def move(pack: Path, where: str) -> None:
    """Keep captions elsewhere, or search them in another way.

    WHERE is flat, half or approximate (searched in memory), disk (in the pack, for more captions than fit into memory),
    or the address of a database: milvus:./captions.db, or milvus:http://host:19530?collection=NAME. Among several
    collections (a,b,c) captions are divided; those of a store on disk are written by a process for each.
    """
    from recap.packs.captions import move as move_captions

    store, before = move_captions(pack, where, progress=True)
    click.echo(f"{pack}: {len(store):,} captions moved to {where}", err=True)
    for name, value in store.facts().items():
        click.echo(f"{name}: {value}", err=True)
    if before:
        click.echo(f"those in {before} are still there; delete them if no other pack needs them", err=True)


def _print(rows: Any, as_json: bool = False) -> None:
    for row in rows:
        line = "\t".join([str(row.id), *map(printable, (row.source, row.image_id, row.text))])
        emit(asdict(row), line, as_json=as_json)
