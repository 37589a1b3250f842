"""Files on this machine or in a bucket, by one interface: a path, or a URL that fsspec knows (``s3://``, ``gs://``).

Not universal_pathlib: listings with what changes with a file, whole uploads, copies that local libraries can open and
errors that name the place would remain to be written, for the few lines that parent, name and exists take.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from recap.errors import InputError, RecapError
from recap.files import atomic_write

_CHANGES = ("size", "mtime", "ETag", "etag", "LastModified", "last_modified", "generation", "content_md5")
"""What the listings of file systems call what changes with a file."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing."""

    url: str
    """As ``read_bytes`` and ``local_copy`` take it."""
    name: str
    """Relative to what was listed, with slashes."""
    token: str
    """Changes when the file does, as far as the file system says so."""


def is_url(place: str) -> bool:
    """Tell a URL from a path."""
    return "://" in place


def joined(place: str, name: str) -> str:
    """Return the place of a file in a folder."""
    return f"{place.rstrip('/')}/{name}" if is_url(place) else str(Path(place) / name)


def absolute(place: str) -> str:
    """Return a place that means the same in every folder one may be in."""
    return place if is_url(place) else str(Path(place).absolute())


def same(one: str, other: str) -> bool:
    """Tell whether two places are the same, however they are written."""
    if is_url(one) or is_url(other):
        return _of(one) == _of(other)
    return Path(one).resolve() == Path(other).resolve()


def token(place: str) -> str:
    """Return what changes with a file; nothing where it is not there, or in a bucket, where asking is not for free."""
    if is_url(place):
        return ""
    try:
        status = Path(place).stat()
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def parent(place: str) -> str:
    """Return the folder a file lies in."""
    return place.rpartition("/")[0] if is_url(place) else str(Path(place).parent)


def name(place: str) -> str:
    """Return the last part of a place."""
    return place.rpartition("/")[2] if is_url(place) else Path(place).name


def is_folder(place: str) -> bool:
    """Tell whether there is such a folder."""
    if not is_url(place):
        return Path(place).is_dir()
    files, path = _of(place)
    return bool(files.isdir(path))


def exists(place: str) -> bool:
    """Tell whether there is such a file or folder."""
    if not is_url(place):
        return Path(place).exists()
    files, path = _of(place)
    with _explained(place):
        return bool(files.exists(path))


def listing(place: str) -> list[Found]:
    """Return the files of a folder and the folders in it, or those a pattern names; hidden ones are left out.

    They come in the order in which ``recap.datasets.find_images`` has them.
    """
    files, path = _of(place)
    with _explained(place):
        if files.isdir(path):
            root, found = path, files.find(path, detail=True)
        else:
            found = files.glob(path, detail=True) if _is_pattern(path) else {path: files.info(path)}
            root = path.rpartition("/")[0] if not _is_pattern(path) else _fixed(path)
    listed = []
    for child, facts in found.items():
        name = PurePosixPath(child).relative_to(root) if root else PurePosixPath(child)
        if facts.get("type") != "directory" and not any(part.startswith(".") for part in name.parts):
            url = files.unstrip_protocol(child) if is_url(place) else child
            token = " ".join(str(facts[key]) for key in _CHANGES if key in facts)
            listed.append((name, Found(url, str(name), token)))
    return [file for _, file in sorted(listed, key=lambda pair: pair[0])]


def read_bytes(place: str) -> bytes:
    """Return the content of a file."""
    _check_kind(place)
    files, path = _of(place)
    with _explained(place):
        content: bytes = files.cat_file(path)
        return content


@contextmanager
def local_copy(place: str) -> Iterator[Path]:
    """Yield a path of this machine where the file can be read; a copy under the same name if it lies elsewhere."""
    if not is_url(place):
        _check_kind(place)
        yield Path(place)
        return
    files, path = _of(place)
    with tempfile.TemporaryDirectory(prefix="recap-") as folder:
        target = Path(folder) / PurePosixPath(path).name
        with _explained(place):
            files.get_file(path, str(target))
        yield target


@contextmanager
def whole_file(place: str) -> Iterator[BinaryIO]:
    """Yield a binary file that appears at ``place`` when the block ends, all of it, and not at all if it raises."""
    if not is_url(place):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as file:
            yield file
        return
    files, path = _of(place)
    # an object of a bucket appears when its upload is complete
    with tempfile.NamedTemporaryFile(prefix="recap-") as temporary:
        yield temporary  # type: ignore[misc]
        temporary.flush()
        with _explained(place):
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.put_file(temporary.name, path)


def remove(place: str) -> None:
    """Delete a file."""
    files, path = _of(place)
    with _explained(place):
        files.rm_file(path)


def digest(*texts: str) -> str:
    """Return a hash of texts."""
    total = hashlib.sha256()
    for text in texts:
        total.update(f"{len(text)} ".encode() + text.encode(errors="surrogateescape"))
    return total.hexdigest()


def _check_kind(place: str) -> None:
    """Refuse a pipe and the like on this machine, for which one would wait for ever."""
    if not is_url(place) and exists(place) and not Path(place).is_file():
        raise InputError(f"{place}: not a file")


def _of(place: str) -> tuple[Any, str]:
    """Return the file system of a place, and its path there."""
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(absolute(place))
    except (ImportError, ValueError) as error:  # the package for this kind of bucket is missing; no such kind
        raise InputError(f"{place}: {error}") from error
    return files, path


@contextmanager
def _explained(place: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{place}: no such file or folder") from error
    except RecapError:
        raise
    except Exception as error:  # each kind of bucket has errors of its own
        raise InputError(f"{place}: cannot be reached ({type(error).__name__}: {error})") from error


def _is_pattern(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _fixed(pattern: str) -> str:
    """Return the folders of a pattern that hold no mark."""
    parts = pattern.split("/")[:-1]
    marked = next((place for place, part in enumerate(parts) if _is_pattern(part)), len(parts))
    return "/".join(parts[:marked])
