"""``recap caption``: captions for files, folders, globs, or a list on standard input."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import Any

import click

from recap.cli.options import (
    confidence_option,
    expand_inputs,
    find_pictures,
    json_option,
    load_captioner,
    output_options,
    pack_options,
    ray_option,
    settings_options,
    warn,
)

REQUIRED = (
    ("out", ("kind", "restart", "errors"), "--format, --restart and --errors go with --out"),
    ("sidecars", ("existing", "prefix", "suffix"), "--existing, --prefix and --suffix go with --sidecars"),
    ("sidecars xmp", ("keep_suffix",), "--sidecars-keep-suffix goes with --sidecars or --xmp"),
    ("metadata", ("keep_originals",), "--keep-originals goes with --metadata"),
)
"""Options of which one is needed, those that need it, and the usage error without it."""


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@settings_options
@confidence_option()
@output_options
@ray_option
@json_option("Print json, one object a line, with score, evidence and candidates.")
@click.option("--explain", is_flag=True, help="Show score, evidence and candidates for a reader.")
def caption(
    inputs: tuple[str, ...],
    pack: str,
    device: str,
    language_model: str | None,
    workers: int | None,
    frames: int,
    scenes: bool,
    ray: str | None,
    as_json: bool,
    explain: bool,
    **options: Any,
) -> None:
    """Caption pictures.

    PICTURE is a picture or a video, a folder (searched through), a glob pattern, the address of a picture
    (https://...), - for a list of these on standard input, a webdataset (.tar) or Parquet archive, or the URL of
    pictures or archives in a bucket (s3://..., gs://...).
    Prints PATH<tab>CAPTION, or writes to --out; the same command again goes on where it was stopped. A picture that
    cannot be read is named on standard error, or listed in errors.jsonl beside --out, and the others go on. A caption
    that is probably wrong is marked as unsure at a terminal, and in every output that has room for it. With
    --min-confidence one that is not sure enough is withheld: the output has null or nothing in its place. With --ray
    videos are left out.
    """
    if options["out"] and (as_json or explain):
        raise click.UsageError("--json and --explain print; with --out everything is in the file")
    for needed, dependent, message in REQUIRED:
        if not any(options[name] for name in needed.split()) and any(options[name] for name in dependent):
            raise click.UsageError(message)
    if workers:
        os.environ["OMP_NUM_THREADS"] = str(workers)  # before the libraries that read it are loaded
    from recap.batch.parts import check_pack, choose_parts, split_inputs
    from recap.batch.run import CaptionJob, video_captioners
    from recap.cli.terminal import Printer, print_summary
    from recap.packs.folder import check_name

    check_name(pack)
    if ray is not None:
        check_pack(pack)
    inputs = tuple(expand_inputs(inputs))
    here, elsewhere = split_inputs(inputs)
    paths = find_pictures(here, videos=ray is None)
    if not paths and not elsewhere:
        raise click.UsageError("there is no picture to caption in " + ", ".join(inputs))
    if elsewhere and (options["sidecars"] or options["xmp"] or options["metadata"]):
        raise click.UsageError("--sidecars, --xmp and --metadata are for pictures that are files, not archives or URLs")
    job = CaptionJob(**{field.name: options.pop(field.name) for field in fields(CaptionJob)})
    settings = {name: value for name, value in options.items() if value is not None}
    captioner = load_captioner(pack, device, language_model).configured(**settings)
    summary = job.run(
        captioner,
        pack,
        paths,
        parts=choose_parts(ray, elsewhere, pack, device, language_model, settings),
        printer=None if job.out else Printer(as_json=as_json, explain=explain, language=captioner.settings.language),
        warn=warn,
        workers=workers,
        others=video_captioners(captioner, frames, scenes=scenes),
        # a bar would tear the captions apart when both go to the same screen
        progress=None if job.out or not sys.stdout.isatty() else False,
    )
    print_summary(job, summary, detailed=as_json or explain)
    if summary.failed:
        sys.exit(1)
