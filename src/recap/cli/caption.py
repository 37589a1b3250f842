"""``recap caption``: captions for files, folders, globs, or a list on standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from recap.cli.embed import ray_option
from recap.cli.options import (
    confidence_option,
    inputs_to_paths,
    load_captioner,
    output_options,
    pack_options,
    settings_options,
    shown,
)

if TYPE_CHECKING:
    from recap.batch import Record, Sink, Summary
    from recap.batch.pipeline import CaptionFile
    from recap.batch.report import HtmlReport
    from recap.captioner import ReCap
    from recap.parallel.parts import Part
    from recap.types import Caption


@dataclass(frozen=True, slots=True)
class Target:
    """Where captions go, and which of them, as the options say."""

    out: Path | None
    kind: str | None
    restart: bool
    errors: Path | None
    sidecars: bool
    existing: Literal["keep", "append", "replace"] | None
    prefix: str | None
    suffix: str | None
    metadata: bool
    keep_originals: bool
    html: Path | None
    as_json: bool
    explain: bool
    min_confidence: float | None

    def check(self) -> None:
        """Refuse options that do not go together."""
        if self.out and (self.as_json or self.explain):
            raise click.UsageError("--json and --explain print; with --out everything is in the file")
        if not self.out and (self.kind or self.restart or self.errors):
            raise click.UsageError("--format, --restart and --errors go with --out")
        if not self.sidecars and (self.existing or self.prefix or self.suffix):
            raise click.UsageError("--existing, --prefix and --suffix go with --sidecars")
        if self.keep_originals and not self.metadata:
            raise click.UsageError("--keep-originals goes with --metadata")

    def sinks(self, paths: Sequence[str]) -> list[Sink]:
        """Return what takes each caption as it comes."""
        from recap.batch.sidecars import Sidecars, check_sidecars

        sinks: list[Sink] = [] if self.out else [Printer(as_json=self.as_json, explain=self.explain)]
        if self.sidecars:
            check_sidecars(paths)
            sinks.append(Sidecars(self.existing or "keep", prefix=self.prefix or "", suffix=self.suffix or ""))
        if self.metadata:
            from recap.batch.sidecars import DescriptionSink

            sinks.append(DescriptionSink(keep_original=self.keep_originals))
        return sinks

    def failures(self, stack: ExitStack, report: HtmlReport | None) -> Callable[[str, str], None]:
        """Return what is told about files without a caption: a list beside the output, or standard error; the page."""
        from recap.batch import FailureList

        def say(path: str, reason: str) -> None:
            click.echo(f"recap: {path}: {reason}", err=True)

        listed = say if self.out is None else stack.enter_context(closing(FailureList(self.errors_file))).add

        def tell(path: str, reason: str) -> None:
            listed(path, reason)
            if report is not None:
                report.add_problem(path, reason)

        return tell

    @property
    def errors_file(self) -> Path:
        """Where files without a caption are listed."""
        assert self.out is not None
        return self.errors or self.out.with_name("errors.jsonl")


class Printer:
    """Prints captions as they come."""

    def __init__(self, *, as_json: bool, explain: bool) -> None:
        self.as_json = as_json
        self.explain = explain

    def add(self, record: Record) -> None:
        """Print one; of a withheld caption only the path, and the reason on standard error.

        The mark of an unsure one is for people: what goes into a pipe or a file keeps its two columns.
        """
        from recap.cli.explain import print_explanation

        if self.as_json:
            click.echo(json.dumps(record.as_dict(), ensure_ascii=False))
        elif self.explain:
            print_explanation(Path(record.path), record.as_caption(), withheld=record.abstained)
        else:
            marked = record.unsure and sys.stdout.isatty()
            mark = click.style(f"\t? unsure, {record.caption['confidence']:.0%}", fg="yellow") if marked else ""
            click.echo(f"{record.path}\t{shown(record.text)}{mark}")
            if record.abstained:
                click.echo(f"recap: {record.path}: withheld, only {record.caption['confidence']:.0%} sure", err=True)

    def close(self) -> None:
        """Nothing is left to do."""


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@settings_options
@confidence_option()
@output_options
@ray_option
@click.option("--json", "as_json", is_flag=True, help="Print one object a line, with score, evidence and candidates.")
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
    **given: Any,
) -> None:
    """Caption pictures.

    PICTURE is a picture or a video, a folder (searched through), a glob pattern, - for a list of paths on standard
    input, a webdataset (.tar) or Parquet archive, or the URL of pictures or archives in a bucket (s3://..., gs://...).
    Prints PATH<tab>CAPTION, or writes to --out; the same command again goes on where it was stopped. A picture that
    cannot be read is named on standard error, or listed in errors.jsonl beside --out, and the others go on. A caption
    that is probably wrong is marked as unsure at a terminal, and in every output that has room for it. With
    --min-confidence one that is not sure enough is withheld: the output has null or nothing in its place. With --ray
    videos are left out.
    """
    target = Target(**{field.name: given.pop(field.name) for field in fields(Target)})
    target.check()
    if workers:
        os.environ["OMP_NUM_THREADS"] = str(workers)  # before the libraries that read it are loaded
    from recap.parallel.captioning import check_pack, split_inputs

    if ray is not None:
        check_pack(pack)
    here, elsewhere = split_inputs(inputs)
    paths = [str(path) for path in inputs_to_paths(here, videos=ray is None)]
    if not paths and not elsewhere:
        raise click.UsageError("there is no picture to caption in " + ", ".join(inputs))
    if elsewhere and (target.sidecars or target.metadata):
        raise click.UsageError("--sidecars and --metadata are for pictures that are files, not for archives or URLs")
    changes = {name: value for name, value in given.items() if value is not None}
    captioner = load_captioner(pack, device, language_model).configured(**changes)
    if target.min_confidence is not None:
        from recap.confidence import check_minimum

        check_minimum(target.min_confidence, captioner.calibration, captioner.settings.method)
    alone = ray is None and not elsewhere
    run = None if alone else _in_parts(ray, elsewhere, pack, device, language_model, changes)
    summary = _caption(target, paths, captioner, pack, workers, _videos(captioner, frames, scenes), run)
    _report(target, summary)
    if summary.failed:
        sys.exit(1)


def _caption(
    target: Target,
    paths: Sequence[str],
    captioner: ReCap,
    pack: str,
    workers: int | None,
    videos: Mapping[str, CaptionFile],
    run: Callable[..., Summary] | None,
) -> Summary:
    from recap.batch import caption_files, check_paths, format_of, open_output, provenance

    sinks = target.sinks(paths)
    kind = target.kind or (format_of(target.out) if target.out else "")
    check_paths(kind, paths)
    generated_by = provenance(captioner, pack, min_confidence=target.min_confidence)
    journal = None
    with ExitStack() as stack:
        if target.out:
            journal = stack.enter_context(open_output(target.out, kind, generated_by, restart=target.restart))
        report = _opened_report(target, stack)
        page = _page(report)
        try:
            summary = (run or caption_files)(
                captioner,
                paths,
                generated_by,
                min_confidence=target.min_confidence,
                journal=journal,
                # with a file, the page is made from it at the end: it then has everything that earlier runs did
                sinks=sinks if journal is not None else [*sinks, *page],
                failed=target.failures(stack, report),
                workers=workers,
                others=videos,
                # a bar would tear the captions apart when both go to the same screen
                progress=None if target.out or not sys.stdout.isatty() else False,
            )
        except KeyboardInterrupt:
            if journal is not None:
                kept = f"{len(journal):,} captions are kept in {journal.path}"
                click.echo(f"\nrecap: {kept}; the same command goes on from there", err=True)
            raise
        if journal is not None and page:
            for record in journal.records():
                page[0].add(record)
        if journal is not None and kind == "coco" and journal.abstained:
            click.echo(f"recap: {journal.abstained:,} pictures are left out of {target.out}: not sure enough", err=True)
    _report_descriptions(sinks)
    if report is not None and len(report.pages) > 1:
        click.echo(f"recap: the report goes on in further pages, up to {report.pages[-1]}", err=True)
    return summary


def _in_parts(
    ray: str | None, elsewhere: list[Part], pack: str, device: str, language_model: str | None, changes: dict[str, Any]
) -> Callable[..., Summary]:
    """Return what captions on a cluster, or what lies elsewhere on this machine."""
    from recap.packs.folder import BUILTIN
    from recap.parallel import storage
    from recap.parallel.captioning import Captioning, CaptionInParts
    from recap.parallel.runners import runner

    place = storage.absolute(pack) if Path(pack).is_dir() and pack != BUILTIN else pack
    return CaptionInParts(Captioning(place, device, language_model, changes), runner(ray), elsewhere)


def _opened_report(target: Target, stack: ExitStack) -> HtmlReport | None:
    if target.html is None:
        return None
    from recap.batch.report import HtmlReport

    return stack.enter_context(HtmlReport(target.html))


def _page(report: HtmlReport | None) -> list[Sink]:
    if report is None:
        return []
    from recap.batch.sidecars import ReportSink

    return [ReportSink(report)]


def _videos(captioner: ReCap, frames: int, scenes: bool) -> dict[str, CaptionFile]:
    """Return for the suffixes of videos what captions them."""
    from recap.encoders.video import VIDEO_SUFFIXES, read_frames
    from recap.errors import ImageError, MissingExtraError

    def caption_video(path: Path) -> Caption:
        try:
            return captioner.caption_frames(read_frames(path, frames, "scene" if scenes else "even"))
        except MissingExtraError as error:
            raise ImageError(f"{path}: {error}") from error

    return dict.fromkeys(VIDEO_SUFFIXES, caption_video)


def _report_descriptions(sinks: Sequence[Sink]) -> None:
    """Say which pictures did not take a caption into their metadata."""
    from recap.batch.sidecars import DescriptionSink

    for sink in sinks:
        if isinstance(sink, DescriptionSink):
            if sink.described:
                click.echo(f"recap: {sink.described} pictures were described by a person, and left so", err=True)
            for reason in sink.refused:
                click.echo(f"recap: {reason}", err=True)


def _report(target: Target, summary: Summary) -> None:
    """Say in a line what was done, if it is not on the screen already, and how many failed."""
    if target.out:
        click.echo(f"{target.out}: {summary}", err=True)
    elif summary.abstained:
        click.echo(f"recap: {summary.abstained} of {summary.files} captions were withheld as not sure enough", err=True)
    if summary.unsure and not (target.out or target.as_json or target.explain or sys.stdout.isatty()):
        told = f"{summary.unsure} of {summary.files} captions are unsure, and probably wrong"
        click.echo(f"recap: {told}: --json and --explain say which", err=True)
    if summary.failed:
        where = f": see {target.errors_file}" if target.out else ""
        click.echo(f"recap: {summary.failed} of {summary.files} pictures could not be read{where}", err=True)
