"""``recap datastore``: the captions of a pack, looked at and changed in place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.options import shown

if TYPE_CHECKING:
    from recap.datastore import DatastoreView, MutableStore
    from recap.datastore.base import Ids

PACK = click.argument("pack", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group()
def datastore() -> None:
    """Look at the captions of a PACK, add some, remove some.

    Changes are made in place and at once: whatever happens meanwhile, the pack has the old captions or the new ones.
    The map stays as it was; recap fit --update changes that.
    """


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which captions are meant."""
    options = (
        click.option("--id", "ids", type=int, multiple=True, help="This caption; may be given several times."),
        click.option("--source", multiple=True, help="Captions of this source; may be given several times."),
        click.option("--image", multiple=True, help="Captions of this image; may be given several times."),
        click.option("--match", metavar="REGEX", help="Captions in which this regular expression occurs."),
        click.option("--synthetic/--human", default=None, help="Captions a machine wrote, or people."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@datastore.command("list")
@PACK
@filters
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--sources", is_flag=True, help="Only how many captions each source has.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def list_captions(pack: Path, limit: int | None, sources: bool, as_json: bool, **which: Any) -> None:
    """List captions: ID<tab>SOURCE<tab>IMAGE<tab>CAPTION."""
    store = load(pack)
    chosen = select(store, **which)
    if sources:
        counts: dict[str, int] = {}
        for row in store.walk(chosen):
            counts[row.source] = counts.get(row.source, 0) + 1
        for name, count in sorted(counts.items()):
            record = json.dumps({"source": name, "captions": count}, ensure_ascii=False)
            click.echo(record if as_json else f"{name}\t{count}")
        return
    for row in store.walk(chosen[:limit]):
        if as_json:
            click.echo(json.dumps(asdict(row), ensure_ascii=False))
        else:
            click.echo(shown(f"{row.id}\t{row.source}\t{row.image_id}\t{row.text}"))


@datastore.command("add")
@PACK
@click.argument("captions")
@click.option("--source", default="", help="Where they come from, unless the file says.  [default: the file's name]")
@click.option("--synthetic", is_flag=True, help="A machine wrote them.")
def add_captions(pack: Path, captions: str, source: str, synthetic: bool) -> None:
    """Add CAPTIONS: text with one a line, or .jsonl, .csv or .parquet with caption (and source, image, synthetic).

    - reads text from standard input. Captions that are there already are passed over, so the same file can be added
    again.
    """
    from recap.assets import cache_dir
    from recap.datasets import read_sentences
    from recap.packs.captions import add
    from recap.packs.folder import read_encoder

    sentences = read_sentences(captions)
    encoder = read_encoder(pack, cache=cache_dir() / "vectors.sqlite")
    named = source or ("" if captions == "-" else Path(captions).stem)
    count = add(pack, sentences, encoder.text, source=named, synthetic=synthetic, progress=True)
    click.echo(f"{pack}: {count:,} captions added, {len(sentences) - count:,} were there already", err=True)


@datastore.command("remove")
@PACK
@filters
@click.option("--dry-run", is_flag=True, help="Only list what would go.")
@click.option("--compact", is_flag=True, help="Write the datastore anew, so that nothing of them stays on the disk.")
def remove_captions(pack: Path, dry_run: bool, compact: bool, **which: Any) -> None:
    """Remove captions by id, source, image, pattern, or who wrote them; with several, those that fit all.

    The map still knows the pairs they came from: recap fit --update PACK --forget takes them out of that too.
    """
    from recap.packs.captions import remove
    from recap.packs.folder import changing

    if not any(value not in (None, ()) for value in which.values()):
        raise click.UsageError("say which: --id, --source, --image, --match, --synthetic or --human")
    # between finding captions and removing them nobody may change what their ids mean
    with nullcontext() if dry_run else changing(pack):
        store = load(pack)
        chosen = select(store, **which)
        if dry_run:
            for row in store.walk(chosen):
                click.echo(shown(f"{row.id}\t{row.source}\t{row.image_id}\t{row.text}"))
        count = len(chosen) if dry_run else remove(pack, chosen, compact=compact)
    click.echo(f"{pack}: {count:,} captions {'would be' if dry_run else 'were'} removed", err=True)


@datastore.command()
@PACK
@click.option("--near", type=float, metavar="COSINE", help="Also captions at least so similar, such as 0.97.")
@click.option("--compact", is_flag=True, help="Write the datastore anew, so that nothing of them stays on the disk.")
def dedupe(pack: Path, near: float | None, compact: bool) -> None:
    """Keep the first of captions that are the same but for case, spaces and full stop.

    With --near also the first of those whose vectors are nearly the same; above 50,000 captions each is compared
    with its 64 nearest neighbours.
    """
    from recap.packs.captions import dedupe as remove_duplicates

    count = remove_duplicates(pack, cosine=near, compact=compact)
    click.echo(f"{pack}: {count:,} captions removed", err=True)


@datastore.command()
@PACK
@click.argument("where")
def move(pack: Path, where: str) -> None:
    """Keep the captions of a PACK elsewhere, or search them in another way.

    WHERE is flat, half or approximate (searched in memory), disk (in the pack, for more captions than fit into memory),
    or the address of a database: milvus:./captions.db, or milvus:http://host:19530?collection=NAME.
    """
    from recap.packs.captions import move as moved
    from recap.packs.folder import read_config, read_datastore

    before = read_config(pack).get("datastore")
    moved(pack, where)
    store = read_datastore(pack)
    click.echo(f"{pack}: {len(store):,} captions moved to {where}", err=True)
    for name, value in store.facts().items():
        click.echo(f"{name}: {value}", err=True)
    if before:
        click.echo(f"those in {before} are still there; delete them if no other pack needs them", err=True)


def load(pack: Path) -> MutableStore | DatastoreView:
    """Load the datastore of a pack, and nothing else of it."""
    from recap.packs.folder import read_datastore

    return read_datastore(pack)


def select(
    store: MutableStore | DatastoreView,
    *,
    ids: tuple[int, ...],
    source: tuple[str, ...],
    image: tuple[str, ...],
    match: str | None,
    synthetic: bool | None,
) -> Ids:
    """Return the ids of the captions that fit all filters."""
    import numpy as np

    try:
        pattern = re.compile(match) if match is not None else None
    except re.error as error:
        raise click.UsageError(f"--match {match!r} is no regular expression: {error}") from error
    found = store.find(source=source or None, synthetic=synthetic, image_ids=image or None, matching=pattern)
    if not ids:
        return found
    store.rows(ids)  # an unknown id is an error
    return found[np.isin(found, ids)]
