"""The cache folder, and writing into it so that a file is either whole and verified or not there."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from recap.errors import AssetError, ChecksumError, DiskFullError

_BLOCK = 1 << 20


def cache_dir() -> Path:
    """Return the folder recap keeps its files in: ``RECAP_CACHE``, or ``recap`` in the platform's cache folder."""
    if chosen := os.environ.get("RECAP_CACHE"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "recap"
    if sys.platform == "win32" and (base := os.environ.get("LOCALAPPDATA")):
        return Path(base) / "recap" / "cache"
    return Path.home() / ".cache" / "recap"


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the operating system's refusals to write into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(what) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            place = f"{cache_dir()} ({error.strerror})"
            raise AssetError(f"{what}: cannot write to {place}; set RECAP_CACHE to a folder you own") from error
        raise


def disk_full(what: str) -> DiskFullError:
    """Return the error for a disk without room."""
    return DiskFullError(
        f"{what}: no space left in {cache_dir()}; free some, or set RECAP_CACHE to a folder on another disk"
    )


def write_verified(stream: IO[bytes], target: Path, *, sha256: str, what: str) -> None:
    """Copy a stream to ``target``, which appears only once its content is on disk and has the given checksum.

    The caller holds the lock of ``target``, so the fixed name of the temporary file clashes with nobody, and what a
    killed process left there is overwritten.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        found = _copy(stream, part)
        if found != sha256:
            raise wrong_checksum(what, sha256, found)
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
            target.parent.rmdir()
        raise


def wrong_checksum(what: str, expected: str, found: str) -> ChecksumError:
    """Return the error for content that is not the pinned one."""
    return ChecksumError(
        f"{what}: the sha256 should be {expected} but is {found}; the source has changed or the download is "
        "damaged, and the file is not used"
    )


def _copy(stream: IO[bytes], part: Path) -> str:
    """Write a stream to a file, flush it to the disk, and return its sha256."""
    digest = hashlib.sha256()
    with part.open("wb") as file:
        while block := stream.read(_BLOCK):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
