"""Long work in steps: what is finished is kept, and a run that was killed goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recap.errors import InputError
from recap.files import write_json

RUN = "run.json"


@dataclass(frozen=True, slots=True)
class Steps:
    """The finished steps of one run, each a file in a folder that is there as a whole or not at all.

    Without a folder nothing is kept.
    """

    folder: Path | None

    @classmethod
    def opened(cls, folder: Path | None, description: dict[str, Any]) -> Steps:
        """Return the steps in a folder; those of a run with another description raise ``InputError``."""
        if folder is None:
            return cls(None)
        folder.mkdir(parents=True, exist_ok=True)
        path, wanted = folder / RUN, json.loads(json.dumps(description))
        if not path.exists():
            write_json(path, wanted)
        there = _read(path, f"delete the folder {folder}, and the run begins anew")
        if not isinstance(there, dict):
            raise InputError(f"{path} describes no run: delete the folder {folder}, and the run begins anew")
        differ = [name for name in sorted(there.keys() | wanted.keys()) if there.get(name) != wanted.get(name)]
        if differ:
            raise InputError(
                f"{folder} holds steps of a run with other {', '.join(differ)}: give another folder, or delete it"
            )
        return cls(folder)

    def done(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what ``work`` gave when it was done before, or do it now; it gives what json can hold."""
        if self.folder is None:
            return work()
        path = self.folder / f"{name}.json"
        if not path.exists():
            write_json(path, work())
        return _read(path, "delete it, and this step is done again")


def _read(path: Path, remedy: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from error
