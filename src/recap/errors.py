"""What can go wrong, said so that the reader knows what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RecapWarning(UserWarning):
    """Something the user should know, though the work goes on."""


class RecapError(Exception):
    """Base of every error that recap raises on purpose."""


class InputError(RecapError, ValueError):
    """Something the caller passed cannot be used: wrong shape, NaN, empty, unknown name."""


class UnknownNameError(InputError):
    """A name that is in no table of names: says which are, and which one may have been meant."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        from difflib import get_close_matches

        known = list(known)
        # what follows a colon is the user's own
        stems = {item.partition(":")[0].lower(): item for item in known}
        close = get_close_matches(str(name).partition(":")[0].lower(), stems, n=1)
        hint = f"did you mean {stems[close[0]]}? " if close else ""
        super().__init__(f"unknown {what} {name!r}; {hint}known: {', '.join(known)}")


class ImageError(InputError):
    """A picture that cannot be read. A batch reports it and goes on."""


class EncoderMismatchError(InputError):
    """Vectors of two different encoders were about to be mixed."""


class MissingExtraError(RecapError, ImportError):
    """An optional part is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: {install_command(extra)}")
        self.extra = extra


def install_command(extra: str) -> str:
    """Return the command that installs an optional part: from the clone that this is run from, or from the index."""
    clone = Path(__file__).parents[2]
    package = clone / "pyproject.toml"
    ours = package.is_file() and 'name = "recap-captioner"' in package.read_text(encoding="utf-8", errors="replace")
    return f"pip install '{clone if ours else 'recap-captioner'}[{extra}]'"


class AssetError(RecapError):
    """Weights or data could not be brought onto this machine."""


class OfflineError(AssetError):
    """The source of an asset could not be reached."""


class BrokenDownloadError(AssetError):
    """A download arrived incomplete or is not what it should be."""


class ChecksumError(AssetError):
    """A file's sha256 differs from the pinned one."""


class DiskFullError(AssetError):
    """There is no room left for what was to be written."""


class PackError(RecapError):
    """A pack or a datastore on disk is missing, incomplete or of an unknown version."""


def check_name(what: str, name: object, known: Collection[str]) -> None:
    """Raise ``UnknownNameError`` unless a name is known."""
    if name not in known:
        raise UnknownNameError(what, name, known)


@contextmanager
def damaged(what: object) -> Iterator[None]:
    """Say that a file of a pack is damaged, whatever reading it raises: numbers of strangers raise nearly anything."""
    try:
        yield
    except (RecapError, MemoryError):
        raise
    except Exception as error:
        raise PackError(f"{what} is damaged: {error or type(error).__name__}") from error
