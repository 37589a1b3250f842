"""``errors.jsonl``: the files that have no caption, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from recap.batch.record import json_line
from recap.errors import InputError


class FailureList:
    """Lists failures in a file, one json object a line with ``path`` and ``reason``, as they come.

    Every run begins it anew, since every run tries these files again; after a run without failures there is no file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not _is_ours(path):
            raise InputError(f"{path} is there and lists no errors of recap: name another file with --errors")
        path.unlink(missing_ok=True)
        self._file: BinaryIO | None = None

    def add(self, path: str, reason: str) -> None:
        """Add one failure."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        self._file.write(json_line({"path": path, "reason": reason}))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _is_ours(path: Path) -> bool:
    """Tell whether a file may be written over: it is not there, is empty, or lists failures."""
    if not path.exists():
        return True
    try:
        with path.open("rb") as file:
            line = file.readline()
        return not line or json.loads(line).keys() == {"path", "reason"}
    except (OSError, ValueError, AttributeError):
        return False
