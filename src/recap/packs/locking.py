"""One process at a time changes a pack, from reading it to its new state; what killed ones have left is removed.

The lock is an empty file beside the folder of the pack, ``.NAME.lock``, since the folder itself is replaced as a whole.
Readers need none: the config of a pack has a generation, which is compared after everything has been read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from recap.files import exclusive, leftovers


@contextmanager
def changing_pack(folder: str | Path, *, contents: tuple[str, ...] = ()) -> Iterator[None]:
    """Keep other processes from changing the pack in a folder while the block runs; it may be entered again inside.

    ``contents`` are the names a pack consists of: unfinished ones are removed, as are unfinished packs beside it.
    """
    target = Path(os.path.realpath(folder))
    # without a right to write there nobody can replace the pack, and its datastore has a lock of its own
    if target.parent.is_dir() and not os.access(target.parent, os.W_OK):
        yield
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f".{target.name}.lock")):
        _sweep(target, contents)
        yield


def _sweep(target: Path, contents: tuple[str, ...]) -> None:
    """Remove what killed processes have left of a pack; whoever is at work on one holds its lock."""
    # a kill between two renames may have left the pack itself under such a name, where names cannot be exchanged
    if not (target / "config.json").is_file():
        return
    for path in leftovers(target):
        _remove(path)
    for name in contents:
        for path in leftovers(target / name):
            if not path.is_dir() or not _is_held(target / name):
                _remove(path)


def _is_held(datastore: Path) -> bool:
    """Tell whether somebody is writing a datastore anew, who has its lock, if not the pack's."""
    try:
        with FileLock(datastore / ".lock").acquire(blocking=False):
            return False
    except (Timeout, OSError):
        return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
