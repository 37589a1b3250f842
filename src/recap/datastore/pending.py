"""Hidden folders in which processes collect what they have not committed yet."""

from __future__ import annotations

import secrets
import shutil
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = ".pending-"
LOCK = ".lock"


class Pending:
    """A new folder inside ``home``, locked, so that other processes leave it alone; it goes when ``owner`` goes."""

    def __init__(self, home: Path, owner: object) -> None:
        while True:
            self.path = home / f"{PREFIX}{secrets.token_hex(6)}"
            self.path.mkdir()
            lock = FileLock(self.path / LOCK, thread_local=False)
            lock.acquire()
            # before it was locked another process may have taken it for abandoned
            if (self.path / LOCK).exists():
                break
            lock.release()
        self.close = weakref.finalize(owner, _delete, self.path, lock)
        """Deletes the folder with what is in it, once."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in it; also when the folder around it has been replaced."""
        return not self.path.is_dir() or all(path.name == LOCK for path in self.path.iterdir())


def delete_abandoned(home: Path) -> None:
    """Delete the folders in ``home`` whose processes have ended."""
    for path in home.glob(f"{PREFIX}*"):
        try:
            with FileLock(path / LOCK).acquire(blocking=False):
                shutil.rmtree(path, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _delete(path: Path, lock: FileLock) -> None:
    lock.release()
    shutil.rmtree(path, ignore_errors=True)
