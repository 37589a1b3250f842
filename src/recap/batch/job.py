"""A batch of pictures and where its captions go: a file that is resumed, sidecars, metadata, a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from recap.batch.formats import Sink, check_paths, format_of
from recap.batch.journal import FailureList, Journal, open_output, provenance
from recap.batch.parts import CaptionParts
from recap.batch.pipeline import CaptionFile
from recap.batch.report import HtmlReport
from recap.batch.run import Summary, caption_files
from recap.batch.sidecars import DescriptionSink, ReportSink, Sidecars, find_collisions
from recap.confidence import check_minimum
from recap.encoders.video import VIDEO_SUFFIXES, read_frames
from recap.errors import ImageError, MissingExtraError
from recap.types import Caption

if TYPE_CHECKING:
    from recap.captioner import ReCap


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
    existing: Literal["keep", "append", "replace"] | None = None
    prefix: str | None = None
    suffix: str | None = None
    keep_suffix: bool = False
    """Whether the ``.txt`` file of ``photo.jpg`` is ``photo.jpg.txt``."""
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
        refused = find_collisions(paths, keep_suffix=self.keep_suffix) if self.sidecars else {}
        paths = [path for path in paths if path not in refused] if refused else paths
        sinks = [*([printer] if printer else []), *self._sinks()]
        kind = self.kind or (format_of(self.out) if self.out else "")
        check_paths(kind, paths)
        generated_by = provenance(captioner, pack, min_confidence=self.min_confidence)
        with ExitStack() as stack:
            opened = self.out and open_output(self.out, kind, generated_by, restart=self.restart)
            journal = stack.enter_context(opened) if opened else None
            report = (
                stack.enter_context(HtmlReport(self.html, language=captioner.settings.language)) if self.html else None
            )
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
                for reason in sink.refused:
                    warn(reason)
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
