"""``recap embed``: pictures and captions to vectors in Parquet, for ``recap fit`` and for other programs."""

from __future__ import annotations

import json
import sys
import time

import click

from recap.cli.options import device_option, encoder_option, images_option, json_option, ray_option, split_option, warn

SHOWN = 10
"""Number of pictures without a vector that are named; the shards have all."""


@click.command()
@click.argument("source", metavar="INPUT")
@click.option("--out", required=True, help="The folder, or URL of a folder in a bucket, to write to; resumes.")
@images_option
@split_option
@encoder_option
@click.option("--restart", is_flag=True, help="Encode everything again, whatever is in --out.")
@json_option("Print what was written as a json object.")
@device_option("Processor for the encoder: cpu, cuda (NVIDIA) or mps (Apple).")
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
    from recap.assets import vector_file
    from recap.encoders import load_encoder
    from recap.fitting.embedding import embed as embed_parts
    from recap.parallel.parts import find_parts, input_name
    from recap.parallel.runners import runner

    started = time.perf_counter()
    parts = find_parts(source, images=images, splits=splits or None, out=out)
    loaded = load_encoder(encoder, device=device, cache=vector_file())
    done = embed_parts(
        parts,
        out,
        loaded,
        runner=runner(ray),
        device=device,
        restart=restart,
        source=input_name(source, images, splits),
        progress=True,
    )
    if as_json:
        facts = {"encoder": loaded.name, "pictures": done.pictures, "captions": done.captions}
        click.echo(json.dumps({**facts, "broken": len(done.broken), "shards": len(done.shards), "new": done.new}))
    for reason in done.broken[:SHOWN]:
        warn(reason)
    if len(done.broken) > SHOWN:
        warn(f"... and {len(done.broken) - SHOWN:,} more: see the column error")
    click.echo(
        f"{out}: {done.pictures:,} pictures and {done.captions:,} captions in {len(done.shards):,} shards, "
        f"{done.new:,} of them new, in {time.perf_counter() - started:.1f} s",
        err=True,
    )
    if done.broken:
        sys.exit(1)
