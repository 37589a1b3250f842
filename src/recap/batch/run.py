"""Caption many files, go on where a run was killed, and do nothing twice.

``caption_files`` hands records to sinks; a ``CaptionJob`` says which those are: a file that is resumed, sidecars,
metadata, a page.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.batch.formats import Record, Sink, check_paths, format_of
from recap.batch.journal import FailureList, Journal, Later, open_output, provenance
from recap.batch.parts import CaptionParts
from recap.batch.pipeline import CaptionFile, Item, Pipeline, file_facts
from recap.batch.report import HtmlReport
from recap.batch.sidecars import DescriptionSink, Existing, ReportSink, Sidecars, find_collisions, sidecar
from recap.confidence import check_minimum, withheld_below
from recap.datastore.index import SCANNED_QUERIES, build_index
from recap.encoders.video import VIDEO_SUFFIXES, read_frames
from recap.errors import ImageError, MissingExtraError
from recap.files import progress_bar
from recap.types import Caption

if TYPE_CHECKING:
    from recap.captioner import ReCap

SHOWN = 5
"""Pictures that are named, of those that can take no caption."""


@dataclass(slots=True)
class Summary:
    """What a run did."""

    captioned: int = 0
    abstained: int = 0
    """Files whose caption was withheld, since it was less sure than was asked for; now or before."""
    unsure: int = 0
    """Files whose caption is given, and probably wrong; now or before."""
    known: int = 0
    """Files whose caption was there already, also under another name."""
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why files have no caption, and how many."""
    seconds: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds each stage has worked, not counting what it waited for the others."""

    @property
    def files(self) -> int:
        """All files."""
        return self.captioned + self.known + self.failed

    @property
    def limit(self) -> str:
        """The stage that the others wait for."""
        return max(self.busy, key=lambda stage: self.busy[stage])

    def __str__(self) -> str:
        done = f"{self.captioned:,} captioned"
        if self.captioned:
            done += f" ({self.captioned / self.seconds:.1f} a second, limited by {self.limit})"
        done += f", {self.known:,} were there already"
        if self.abstained:
            done += f"; {self.abstained:,} withheld as not sure enough"
        return f"{done}; {self.unsure:,} unsure" if self.unsure else done


def caption_files(
    captioner: ReCap,
    paths: Sequence[str],
    generated_by: Mapping[str, str],
    *,
    min_confidence: float | None = None,
    journal: Journal | None = None,
    sinks: Sequence[Sink] = (),
    failed: Callable[[str, str], None] = lambda path, reason: None,
    workers: int | None = None,
    others: Mapping[str, CaptionFile] | None = None,
    parts: CaptionParts | None = None,
    progress: bool | None = False,
) -> Summary:
    """Caption files, hand each record to the sinks, and close them.

    Args:
        captioner: what captions them.
        paths: the files.
        generated_by: the provenance of the captions, as ``provenance`` returns them for the same ``min_confidence``.
        min_confidence: captions less sure than this are withheld; the pack must be calibrated.
        journal: where captions are kept as they come, and looked up before; without one nothing is remembered.
        sinks: what takes the records: those that are known first, the others as they come.
        failed: is told the path of each file that has no caption, and the reason.
        workers: how many threads read files.
        others: what captions files that are no pictures, by their suffix.
        parts: does the work in parts, on a cluster or of pictures that are elsewhere, too.
        progress: whether to show a bar; None for one if standard error is a terminal.
    """
    if min_confidence is not None:
        check_minimum(min_confidence, captioner.calibration, captioner.settings.method)
    run = BatchRun(journal, sinks, failed, generated_by, min_confidence)
    pending = [path for path in paths if not run.recall(path)]
    if len(pending) > SCANNED_QUERIES and parts is None:
        # for so many an index is built: neither the bar nor the speed should count that
        build_index(captioner.datastore)
    started = time.perf_counter()
    known = journal.place_of_content if journal else lambda sha256: None
    pipeline = Pipeline(captioner, workers=workers, known=known, others=others)
    work = parts.run(captioner, pending, journal, others or {}) if parts else pipeline.run(pending)
    total = len(paths) if parts is None or not parts.elsewhere else None
    shown = progress if total != 1 else False
    bar = progress_bar(total=total, initial=len(paths) - len(pending), unit="image", progress=shown)
    # closed at once when something goes wrong here, so that the stages end too
    with bar, closing(work) as items:
        for item in items:
            run.take(item)
            bar.update()
    for sink in sinks:
        sink.close()
    run.summary.seconds = time.perf_counter() - started
    run.summary.busy = pipeline.busy or {"the work of all": run.summary.seconds}
    return run.summary


class BatchRun:
    """What is done with each file, in the caller's thread."""

    def __init__(
        self,
        journal: Journal | None,
        sinks: Sequence[Sink],
        failed: Callable[[str, str], None],
        generated_by: Mapping[str, str],
        min_confidence: float | None,
    ) -> None:
        self.journal, self.sinks, self.failed, self.generated_by = journal, sinks, failed, generated_by
        self.min_confidence = min_confidence
        self.summary = Summary()

    def recall(self, path: str) -> bool:
        """Hand on a caption that is there already; return whether it is, and the file was not touched since."""
        there = self.journal is not None and self.journal.is_untouched(path)
        if there:
            self._recall(path)
        return there

    def _recall(self, path: str) -> None:
        """Count a caption that is in the journal, and hand it on."""
        assert self.journal is not None
        self.summary.known += 1
        self.summary.abstained += self.journal.abstains(path)
        self.summary.unsure += self.journal.doubts(path)
        if self.sinks:
            self._hand_on(self.journal.read(self.journal.place(path)))

    def take(self, item: Item) -> None:
        """Keep a result, and hand it on."""
        if isinstance(item.result, ImageError):
            self.summary.failed += 1
            if self.journal is not None and os.path.lexists(item.path):
                self.journal.forget(item.path)  # an older caption is of another content
            reason = str(item.result).removeprefix(f"{item.path}: ")
            self.summary.reasons[reason] += 1
            self.failed(item.path, reason)
            return
        if item.file is None:
            self._recall(item.path)
            return
        if item.result is not None:
            self.summary.captioned += 1
            record = Record(item.path, self._values(item.result), self.generated_by, item.file)
        else:
            self.summary.known += 1
            record = self._same_content(item)
        self.summary.abstained += record.abstained
        self.summary.unsure += record.unsure
        if self.journal is not None:
            self.journal.append(record)
        self._hand_on(record)

    def _values(self, caption: Caption) -> dict[str, Any]:
        return caption.as_dict() if self.min_confidence is None else withheld_below(caption, self.min_confidence)

    def _same_content(self, item: Item) -> Record:
        """Return the record of a file whose content is known; a name it no longer has is forgotten."""
        assert self.journal is not None and item.known is not None and item.file is not None  # noqa: PT018
        known = self.journal.read(item.known)
        if not os.path.lexists(known.path):
            self.journal.forget(known.path)
        return replace(known, path=item.path, file=item.file)

    def _hand_on(self, record: Record) -> None:
        for sink in self.sinks:
            sink.add(record)
        if self.sinks and self.journal is not None:
            self._note_change(record)

    def _note_change(self, record: Record) -> None:
        """Note the file's new content if a sink wrote into the picture itself, so that it is not done again."""
        try:
            status = os.stat(record.path)  # noqa: PTH116
        except OSError:
            return
        if (status.st_size, status.st_mtime_ns) == (record.file.size, record.file.modified):
            return
        facts = file_facts(record.path)
        if facts is not None and self.journal is not None:
            self.journal.append(replace(record, file=facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionJob:
    """Where captions go, as ``recap caption`` has it in its options."""

    out: Path | None = None
    kind: str | None = None
    """The format of ``out``; by default its suffix tells."""
    restart: bool = False
    errors: Path | None = None
    """Where files without a caption are listed; by default ``errors.jsonl`` beside ``out``."""
    sidecars: bool = False
    existing: Existing | None = None
    prefix: str | None = None
    suffix: str | None = None
    keep_suffix: bool = False
    """Whether the ``.txt`` file of ``photo.jpg`` is ``photo.jpg.txt``, and so with ``.xmp``."""
    xmp: bool = False
    metadata: bool = False
    keep_originals: bool = False
    html: Path | None = None
    min_confidence: float | None = None

    @property
    def errors_file(self) -> Path | None:
        """Where files without a caption are listed; None without ``out``."""
        return self.errors or self.out.with_name("errors.jsonl") if self.out else None

    def run(
        self,
        captioner: ReCap,
        pack: str,
        paths: Sequence[str],
        *,
        parts: CaptionParts | None = None,
        printer: Sink | None = None,
        warn: Callable[[str], None] = lambda message: None,
        workers: int | None = None,
        others: Mapping[str, CaptionFile] | None = None,
        progress: bool | None = False,
    ) -> Summary:
        """Caption pictures and write the captions to wherever they go.

        ``pack`` is the name for the provenance, ``printer`` also takes the captions as they come, and ``warn`` receives
        what the user should know; the other arguments are those of ``caption_files``.
        """
        if self.min_confidence is not None:
            check_minimum(self.min_confidence, captioner.calibration, captioner.settings.method)
        beside = self.sidecars or self.xmp
        refused = find_collisions(paths, keep_suffix=self.keep_suffix, xmp=not self.sidecars) if beside else {}
        paths = [path for path in paths if path not in refused] if refused else paths
        sinks = [*([printer] if printer else []), *self._sinks()]
        kind = self.kind or (format_of(self.out) if self.out else "")
        check_paths(kind, paths)
        generated_by = Later(lambda: provenance(captioner, pack, min_confidence=self.min_confidence))
        with ExitStack() as stack:
            opened = self.out and open_output(self.out, kind, generated_by, restart=self.restart)
            journal = stack.enter_context(opened) if opened else None
            made = self.html and HtmlReport(self.html, language=captioner.settings.language)
            report = stack.enter_context(made) if made else None
            page = ReportSink(report) if report else None
            # with a file, the page is made from it at the end: it then has everything that earlier runs did
            live = [page] if page and journal is None else []
            failed = self._failure_handler(stack, report, warn)
            for path, reason in refused.items():
                failed(path, reason)
            try:
                summary = caption_files(
                    captioner,
                    paths,
                    generated_by,
                    min_confidence=self.min_confidence,
                    journal=journal,
                    sinks=[*sinks, *live],
                    failed=failed,
                    workers=workers,
                    others=others,
                    parts=parts,
                    progress=progress,
                )
            except KeyboardInterrupt:
                if journal is not None:
                    warn(f"{len(journal):,} captions are kept in {journal.path}; the same command goes on from there")
                raise
            if journal is not None:
                self._finish(journal, kind, page, warn)
        self._report_sinks(sinks, report, warn)
        summary.failed += len(refused)
        return summary

    def _sinks(self) -> list[Sink]:
        sinks: list[Sink] = []
        if self.sidecars:
            parts = {"prefix": self.prefix or "", "suffix": self.suffix or ""}
            sinks.append(Sidecars(self.existing or "keep", **parts, keep_suffix=self.keep_suffix))
        if self.xmp:
            sinks.append(DescriptionSink(lambda path: sidecar(path, keep_suffix=self.keep_suffix, xmp=True)))
        if self.metadata:
            sinks.append(DescriptionSink(keep_original=self.keep_originals))
        return sinks

    def _failure_handler(
        self, stack: ExitStack, report: HtmlReport | None, warn: Callable[[str], None]
    ) -> Callable[[str, str], None]:
        """Return what takes files without a caption: a list beside the output, or a warning; the page."""
        failures = stack.enter_context(closing(FailureList(self.errors_file))) if self.errors_file else None

        def add(path: str, reason: str) -> None:
            if failures:
                failures.add(path, reason)
            else:
                warn(f"{path}: {reason}")
            if report is not None:
                report.add_problem(path, reason)

        return add

    def _finish(self, journal: Journal, kind: str, page: ReportSink | None, warn: Callable[[str], None]) -> None:
        if page is not None:
            for record in journal.records():
                page.add(record)
        if kind == "coco" and journal.abstained:
            warn(f"{journal.abstained:,} pictures are left out of {self.out}: not sure enough")

    def _report_sinks(self, sinks: Sequence[Sink], report: HtmlReport | None, warn: Callable[[str], None]) -> None:
        for sink in sinks:
            if isinstance(sink, DescriptionSink):
                if sink.described:
                    warn(f"{sink.described} pictures were described by a person, and left so")
                for reason in sink.refused[:SHOWN]:
                    warn(reason)
                if len(sink.refused) > SHOWN:
                    warn(f"{len(sink.refused) - SHOWN:,} more pictures could take no caption for the like reasons")
        if report is not None and len(report.pages) > 1:
            warn(f"the report goes on in further pages, up to {report.pages[-1]}")


def video_captioners(captioner: ReCap, frames: int, *, scenes: bool) -> dict[str, CaptionFile]:
    """Return what captions videos, by suffix; ``scenes`` takes the frames from different scenes."""

    def caption_video(path: Path) -> Caption:
        try:
            return captioner.caption_frames(read_frames(path, frames, "scene" if scenes else "even"))
        except MissingExtraError as error:
            raise ImageError(f"{path}: {error}") from error

    return dict.fromkeys(VIDEO_SUFFIXES, caption_video)
