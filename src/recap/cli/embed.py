"""``recap embed``: pictures and captions to vectors in Parquet, for ``recap fit`` and for other programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from recap.cli.options import DEVICES

SHOWN = 10
"""So many pictures without a vector are named; the shards have all."""


_ADDRESS = re.compile(r"|auto|local|(ray://)?[^/\s]+:\d+")


def ray_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that has the work done by a cluster."""
    return click.option(
        "--ray",
        metavar="[ADDRESS]",
        is_flag=False,
        flag_value="",
        callback=_address,
        help="Let a Ray cluster do the work: auto, HOST:PORT or ray://HOST:PORT; without an address the one that "
        "RAY_ADDRESS names, or else one on this machine.",
    )(command)


def _address(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    if given is not None and not _ADDRESS.fullmatch(given):
        raise click.BadParameter(
            f"{given!r} is not the address of a cluster; where none is meant, write --ray last, or --ray=auto"
        )
    return given


def _said(source: str, images: str | None, splits: tuple[str, ...]) -> str:
    """Return what an input is known by, for the folder of its vectors and for messages."""
    from recap.parallel import storage

    where = [f"--images {storage.absolute(images)}"] if images else []
    return " ".join([storage.absolute(source), *where, *(f"--split {name}" for name in sorted(splits))])


@click.command()
@click.argument("source", metavar="INPUT")
@click.option("--out", required=True, help="The folder, or URL of a folder in a bucket, to write to; resumes.")
@click.option("--images", help="Where the pictures of a file lie: a folder or URL.")
@click.option("--split", "splits", multiple=True, help="Of a Karpathy file.  [default: train and restval]")
@click.option("--encoder", default="builtin", show_default=True, help="See recap info.")
@click.option("--restart", is_flag=True, help="Encode everything again, whatever is in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as an object.")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the encoder runs.")
@ray_option
def embed(
    source: str,
    out: str,
    images: str | None,
    splits: tuple[str, ...],
    encoder: str,
    restart: bool,
    as_json: bool,
    device: str,
    ray: str | None,
) -> None:
    """Encode pictures, captions, or pairs of both.

    INPUT is what recap fit reads, a folder of pictures without captions, or a .txt file with a caption a line; it may
    be the URL of a file or folder in a bucket (s3://..., gs://...). Each part of it becomes a Parquet shard; the same
    command again goes on where it was stopped. recap fit takes the folder in place of the pairs.
    """
    from recap.assets import cache_dir
    from recap.encoders import load_encoder
    from recap.parallel.embedding import embed as embed_parts
    from recap.parallel.parts import find_parts
    from recap.parallel.runners import runner

    started = time.perf_counter()
    parts = find_parts(source, images=images, splits=splits or None, out=out)
    loaded = load_encoder(encoder, device=device, cache=cache_dir() / "vectors.sqlite")
    options: dict[str, Any] = {"device": device, "restart": restart, "source": _said(source, images, splits)}
    done = embed_parts(parts, out, loaded, runner=runner(ray), progress=True, **options)
    if as_json:
        facts = {"encoder": loaded.name, "pictures": done.pictures, "captions": done.captions}
        click.echo(json.dumps({**facts, "broken": len(done.broken), "shards": len(done.shards), "new": done.new}))
    for reason in done.broken[:SHOWN]:
        click.echo(f"recap: {reason}", err=True)
    if len(done.broken) > SHOWN:
        click.echo(f"recap: ... and {len(done.broken) - SHOWN:,} more: see the column error", err=True)
    click.echo(
        f"{out}: {done.pictures:,} pictures and {done.captions:,} captions in {len(done.shards):,} shards, "
        f"{done.new:,} of them new, in {time.perf_counter() - started:.1f} s",
        err=True,
    )
    if done.broken:
        sys.exit(1)
