"""Captions beside the pictures, inside them, and on a page.

A ``.txt`` file beside each picture is what tools that train on pictures read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from recap import __version__
from recap.batch.metadata import write_description
from recap.batch.record import Record
from recap.batch.report import HtmlReport
from recap.encoders.video import is_video, read_frames
from recap.errors import InputError
from recap.files import atomic_write

Existing = Literal["keep", "append", "replace"]


class Sidecars:
    """Writes each caption as one line into the picture's ``.txt`` file.

    Args:
        existing: what to do with a file that is there already: leave it as it is, add a line unless it has that line,
            or put the caption in its place.
        prefix: comes before the caption.
        suffix: comes after it.
    """

    def __init__(self, existing: Existing = "keep", *, prefix: str = "", suffix: str = "") -> None:
        self.existing = existing
        self.prefix = prefix
        self.suffix = suffix
        self.kept = 0
        """How many files with another text, links and folders were left as they are."""

    def add(self, record: Record) -> None:
        """Write the file of one picture; where there is no caption, there is no file."""
        if not record.text:
            return
        line = f"{self.prefix}{record.text}{self.suffix}".replace("\n", " ")
        path = sidecar(record.path)
        # a link may lead out of the folder, and a folder or a pipe is no text
        if path.is_symlink() or (path.exists() and not path.is_file()):
            self.kept += 1
            return
        old = _read(path)
        if line.encode() in old.splitlines() and self.existing != "replace":
            return
        new = line.encode() + b"\n"
        if old and self.existing == "keep":
            self.kept += 1
            return
        if old and self.existing == "append":
            new = old + (b"" if old.endswith(b"\n") else b"\n") + new
        if new != old:
            with atomic_write(path) as file:
                file.write(new)

    def close(self) -> None:
        """Nothing is left to do."""


def sidecar(path: str) -> Path:
    """Return the place of a picture's ``.txt`` file."""
    return Path(path).with_suffix(".txt")


def check_sidecars(paths: Sequence[str]) -> None:
    """Raise if two pictures would share one file, or one would be written over."""
    seen: dict[Path, str] = {}
    for path in paths:
        place = sidecar(path)
        other = seen.setdefault(place, path)
        if place == Path(path):
            raise InputError(f"{path} is named like a .txt file beside a picture, and would be lost: leave it out")
        if other != path:
            raise InputError(f"{other} and {path} would share {place}: give one of them another name, or leave it out")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


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
        """Number of pictures that a person had described, and that were left so."""
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
