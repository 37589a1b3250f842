"""Captions as a page that shows their reasons, and inside the pictures themselves."""

from __future__ import annotations

from recap import __version__
from recap.batch.metadata import write_description
from recap.batch.record import Record
from recap.batch.report import HtmlReport
from recap.encoders.video import is_video, read_frames
from recap.errors import InputError


class ReportSink:
    """Puts each caption on a page; of a video the first of its frames is shown. The page is closed by its owner."""

    def __init__(self, report: HtmlReport) -> None:
        self._report = report

    def add(self, record: Record) -> None:
        """Add one picture."""
        picture = read_frames(record.path, 1)[0] if is_video(record.path) else None
        self._report.add(record.path, record.as_caption(), picture=picture, withheld=record.abstained)

    def close(self) -> None:
        """Nothing is left to do."""


class DescriptionSink:
    """Writes captions into the metadata of their pictures, never over what a person wrote."""

    def __init__(self, *, keep_original: bool = False) -> None:
        self._keep_original = keep_original
        self.described = 0
        """So many pictures were left, because a person had described them."""
        self.refused: list[str] = []
        """Why pictures could not take a caption, each with its name."""

    def add(self, record: Record) -> None:
        """Write one caption; an abstention is not written."""
        if not record.text:
            return
        try:
            generator = f"recap {__version__}"
            if not write_description(record.path, record.text, generator=generator, keep_original=self._keep_original):
                self.described += 1
        except InputError as error:
            self.refused.append(str(error))

    def close(self) -> None:
        """Nothing is left to do."""
