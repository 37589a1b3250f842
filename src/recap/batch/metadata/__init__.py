"""A caption in the picture's own metadata, where photo managers, archives and search engines look for it.

It is written as XMP ``dc:description`` (JPEG, PNG, WebP, TIFF) and, where the format has a place for it, as IPTC
``Caption-Abstract`` (JPEG, TIFF). Only metadata is replaced: nothing is decoded or encoded again, other metadata stays
as it is, and so do the file's times and permissions.

That a machine wrote the caption is said where the standards name the writer of the description: XMP
``photoshop:CaptionWriter`` and IPTC ``Writer-Editor``. ``xmp:CreatorTool`` and ``Iptc4xmpExt:DigitalSourceType`` would
be wrong: they tell what made the picture, and a photograph does not become artificial by being described.

No library was found that does this for these formats without encoding anew, and that a package under the Apache licence
may depend on.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from recap.batch.metadata.containers import (
    Metadata,
    read_jpeg,
    read_png,
    read_tiff,
    read_webp,
    write_jpeg,
    write_png,
    write_tiff,
    write_webp,
)
from recap.batch.metadata.standards import (
    iptc_description,
    iptc_keywords,
    with_iptc_description,
    with_iptc_keywords,
    with_xmp_description,
    with_xmp_keywords,
    xmp_description,
    xmp_keywords,
)
from recap.errors import InputError
from recap.files import atomic_write

MACHINE = "(machine)"
"""What the writer's name ends in when a machine wrote the description."""

BACKUP_SUFFIX = "_original"
"""What is put behind the name of a picture whose original is kept, as ExifTool does."""

_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Description:
    """What a picture's metadata says it shows, and who wrote that."""

    text: str
    writer: str = ""

    @property
    def machine_written(self) -> bool:
        """Whether it is marked as the work of a machine."""
        return self.writer.endswith(MACHINE)


@dataclass(frozen=True, slots=True)
class _Format:
    read: Callable[[bytes], Metadata]
    write: Callable[[bytes, Metadata], bytes]


def read_description(path: str | Path) -> Description | None:
    """Return the description in a picture's metadata, XMP before IPTC; None when there is none."""
    path = Path(path)
    data = _content(path)
    form = _format(path, data)
    with _naming(path):
        return _described(form.read(data))


def is_described(path: str | Path) -> bool:
    """Tell whether a person has described a picture in its metadata; one that cannot hold any is not described."""
    try:
        there = read_description(path)
    except InputError:
        return False
    return there is not None and not there.machine_written


def write_description(
    path: str | Path, text: str, *, generator: str, keep_original: bool = False, overwrite: bool = False
) -> bool:
    """Put a machine-written description into a picture's metadata; say whether it was done.

    A description that is there and is not marked as a machine's is a person's, and stays unless ``overwrite`` is set.
    ``generator`` is who wrote this one, such as ``recap 1.0``. With ``keep_original`` the file as it was is kept beside
    it as ``NAME_original``; one that is there already is the true original, and stays. ``path`` may be that of an
    ``.xmp`` file beside a picture, which is made if there is none.
    """
    writer = f"{generator} {MACHINE}"

    def change(old: Metadata) -> Metadata | None:
        there = _described(old)
        if there and not there.machine_written and not overwrite:
            return None
        datasets = None if old.iptc is None else with_iptc_description(old.iptc, text, writer)
        return Metadata(with_xmp_description(old.xmp, text, writer), datasets)

    return _change(path, change, keep_original)


def read_keywords(path: str | Path) -> list[str]:
    """Return the keywords in a picture's metadata, those of XMP first."""
    path = Path(path)
    data = _content(path)
    with _naming(path):
        return _keywords(_format(path, data).read(data))


def add_keywords(path: str | Path, names: Sequence[str], *, keep_original: bool = False) -> bool:
    """Add keywords to those of a picture, in XMP ``dc:subject`` and IPTC ``Keywords``; say whether any was new.

    None is ever taken away: the standards have no place to say who chose a keyword. ``path`` and ``keep_original`` are
    as for ``write_description``.
    """

    def change(old: Metadata) -> Metadata | None:
        there = _keywords(old)
        known = {name.casefold() for name in there}
        new = [name for name in dict.fromkeys(names) if name.casefold() not in known]
        if not new:
            return None
        datasets = None if old.iptc is None else with_iptc_keywords(old.iptc, [*there, *new])
        return Metadata(with_xmp_keywords(old.xmp, [*there, *new]), datasets)

    return _change(path, change, keep_original)


def _keywords(metadata: Metadata) -> list[str]:
    found = xmp_keywords(metadata.xmp) if metadata.xmp.strip(b"\0 \r\n\t") else []
    found += iptc_keywords(metadata.iptc) if metadata.iptc else []
    return list(dict.fromkeys(found))


def _change(path: str | Path, change: Callable[[Metadata], Metadata | None], keep_original: bool) -> bool:
    """Replace the metadata of a picture by what ``change`` makes of them; say whether that was anything."""
    if _is_sidecar(path) and Path(path).is_symlink():  # it may lead out of the folder
        raise InputError(f"{path}: a symbolic link, which is left alone")
    path = Path(os.path.realpath(path))
    data = _content(path)
    form = _format(path, data)
    with _naming(path):
        changed = change(form.read(data))
        if changed is None:
            return False
        new = form.write(data, changed)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    if keep_original and data and not backup.exists():
        _put(backup, data, like=path)
    if new != data:
        _put(path, new, like=path)
    return True


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the name of the file before what is wrong with it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _described(metadata: Metadata) -> Description | None:
    found = [xmp_description(metadata.xmp)] if metadata.xmp.strip(b"\0 \r\n\t") else []
    found += [iptc_description(metadata.iptc)] if metadata.iptc else []
    return next((Description(text, writer) for text, writer in found if text), None)


def _is_sidecar(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".xmp"


def _content(path: Path) -> bytes:
    if _is_sidecar(path) and not path.exists():
        return b""
    if path.exists() and not path.is_file():  # a pipe would let us wait
        raise InputError(f"{path}: not a file")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: larger than {_MOST_BYTES >> 30} GiB")
    return path.read_bytes()


def _format(path: Path, data: bytes) -> _Format:
    """Return how to read and write a file, by its first bytes; an ``.xmp`` file is a packet and nothing else."""
    if _is_sidecar(path):
        return _Format(Metadata, lambda data, new: new.xmp)
    if data.startswith(b"\xff\xd8"):
        return _Format(read_jpeg, write_jpeg)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _Format(read_png, write_png)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _Format(read_webp, write_webp)
    # the raw files of many cameras are TIFFs inside, with rules of their own
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") and path.suffix.lower() in (".tif", ".tiff"):
        return _Format(read_tiff, write_tiff)
    message = "captions and keywords are written into JPEG, PNG, WebP and TIFF files only; --xmp puts them beside"
    raise InputError(f"{path}: {message}")


def _put(path: Path, data: bytes, *, like: Path) -> None:
    """Write a file in one step, with the times, permissions and, where it is allowed, the owner of another."""
    if like.exists() and not os.access(like, os.W_OK):
        raise InputError(f"{like}: the file is protected against writing")
    # a link that leads to nothing, in the place of a file to be kept, is replaced and not followed
    with atomic_write(path, follow=False) as file:
        file.write(data)
        file.flush()
        if not like.exists():
            return
        shutil.copystat(like, file.name)
        if sys.platform != "win32":
            with suppress(PermissionError):
                os.chown(file.name, like.stat().st_uid, like.stat().st_gid)
