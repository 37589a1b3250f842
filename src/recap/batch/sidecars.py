"""Captions beside the pictures, inside them, and on a page.

A ``.txt`` file beside each picture is what tools that train on pictures read, an ``.xmp`` file what photo managers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recap import __version__
from recap.batch.formats import Record, Sink
from recap.encoders.video import is_video, read_frames
from recap.errors import InputError
from recap.files import atomic_write

if TYPE_CHECKING:
    from recap.batch.report import HtmlReport

Existing = Literal["keep", "append", "replace"]


class Sidecars(Sink):
    """Writes each caption as one line into the picture's ``.txt`` file.

    A file that is there already is left as it is, gets one more line unless it has that line, or is replaced.
    ``prefix`` and ``suffix`` stand around the caption; with ``keep_suffix`` the file is ``photo.jpg.txt``.
    """

    def __init__(
        self, existing: Existing = "keep", *, prefix: str = "", suffix: str = "", keep_suffix: bool = False
    ) -> None:
        self.existing = existing
        self.keep_suffix = keep_suffix
        self.prefix = prefix
        self.suffix = suffix
        self.kept = 0
        """How many files with another text, links and folders were left as they are."""

    def add(self, record: Record) -> None:
        """Write the file of one picture; where there is no caption, there is no file."""
        if not record.text:
            return
        self.write(record.path, f"{self.prefix}{record.text}{self.suffix}".replace("\n", " "))

    def write(self, picture: str, line: str) -> None:
        """Write a line into the file of a picture."""
        path = sidecar(picture, keep_suffix=self.keep_suffix)
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


def sidecar(path: str, *, keep_suffix: bool = False, xmp: bool = False) -> Path:
    """Return the place of a picture's ``.txt`` or ``.xmp`` file."""
    suffix = ".xmp" if xmp else ".txt"
    return Path(path + suffix) if keep_suffix else Path(path).with_suffix(suffix)


def find_collisions(paths: Sequence[str], *, keep_suffix: bool = False, xmp: bool = False) -> dict[str, str]:
    """Return the pictures that can have no file beside them, since another has it or they are it, and the reason."""
    owners: dict[Path, str] = {}
    refused = {}
    for path in paths:
        place = sidecar(path, keep_suffix=keep_suffix, xmp=xmp)
        if place == Path(path):
            refused[path] = "named like the file beside a picture, and would be lost"
        elif owners.setdefault(place, path) != path:
            refused[path] = f"{owners[place]} has {place} already; --sidecars-keep-suffix gives each a file of its own"
    return refused


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


class ReportSink(Sink):
    """Puts each caption on a page; of a video the first of its frames is shown. The page is closed by its owner."""

    def __init__(self, report: HtmlReport) -> None:
        self._report = report

    def add(self, record: Record) -> None:
        """Add one picture."""
        picture = read_frames(record.path, 1)[0] if is_video(record.path) else None
        self._report.add(record.path, record.as_caption(), picture=picture, withheld=record.abstained)


class DescriptionSink(Sink):
    """Writes captions into the metadata of their pictures, never over what a person wrote.

    With ``place``, which returns where the ``.xmp`` file of a picture is, they are written there.
    """

    def __init__(self, place: Callable[[str], Path] | None = None, *, keep_original: bool = False) -> None:
        self._place, self._keep_original = place, keep_original
        self.described = 0
        """Number of pictures that a person had described, and that were left so."""
        self.refused: list[str] = []
        """Why pictures could not take a caption, each with its name."""

    def add(self, record: Record) -> None:
        """Write one caption; an abstention is not written."""
        if not record.text:
            return
        from recap.batch.metadata import is_described, write_description

        target = self._place(record.path) if self._place else record.path
        writer: dict[str, Any] = {"generator": f"recap {__version__}", "keep_original": self._keep_original}
        try:
            theirs = self._place is not None and is_described(record.path)
            if theirs or not write_description(target, record.text, **writer):
                self.described += 1
        except InputError as error:
            self.refused.append(str(error))


class KeywordSink:
    """Writes keywords beside pictures, as one line with commas or as XMP, and into their metadata."""

    def __init__(
        self,
        *,
        sidecars: bool = False,
        xmp: bool = False,
        keep_suffix: bool = False,
        metadata: bool = False,
        keep_original: bool = False,
    ) -> None:
        self._sidecars = Sidecars(keep_suffix=keep_suffix) if sidecars else None
        self._xmp, self._keep_suffix, self._metadata, self._keep_original = xmp, keep_suffix, metadata, keep_original
        self.refused: list[str] = []
        """Why pictures could not take keywords, each with its name."""

    @property
    def kept(self) -> int:
        """Number of files with another text that were left as they are."""
        return self._sidecars.kept if self._sidecars else 0

    def add(self, path: str, names: Sequence[str]) -> None:
        """Write the keywords of one picture; where there are none, nothing is written."""
        if not names:
            return
        if self._sidecars:
            self._sidecars.write(path, ", ".join(names))
        targets = [sidecar(path, keep_suffix=self._keep_suffix, xmp=True)] if self._xmp else []
        for target in [*targets, *([Path(path)] if self._metadata else [])]:
            from recap.batch.metadata import add_keywords

            try:
                add_keywords(target, names, keep_original=self._keep_original)
            except InputError as error:
                self.refused.append(str(error))
