"""One captioned picture as every output sees it, and as a line of json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from recap.types import Candidate, Caption, Evidence


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one file from another, and whether it was touched since."""

    sha256: str
    size: int
    modified: int
    """Nanoseconds since 1970."""

    @classmethod
    def of(cls, sha256: str, status: os.stat_result) -> Self:
        """Return the facts of a file with this content."""
        return cls(sha256, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Record:
    """A picture, its caption, and its provenance."""

    path: str
    """As it was given."""
    caption: Mapping[str, Any]
    """All of ``Caption.as_dict()``; where a least confidence was asked for, of ``withheld_below``."""
    generated_by: Mapping[str, str]
    """What wrote it: ``recap`` (the version), ``pack``, ``encoder``, ``language_model`` and a hash of the settings."""
    file: FileFacts

    @property
    def text(self) -> str:
        """The caption itself; empty where there is none."""
        return self.caption["caption"] or ""

    @property
    def abstained(self) -> bool:
        """Whether the caption was withheld, since it was less sure than was asked for."""
        return bool(self.caption.get("abstained"))

    @property
    def unsure(self) -> bool:
        """Whether the caption is there and probably wrong."""
        return not self.abstained and bool(self.caption.get("unsure"))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for json."""
        return {"path": self.path, **self.caption, "generated_by": dict(self.generated_by), "file": asdict(self.file)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that ``as_dict`` described; other values raise KeyError, TypeError or ValueError."""
        caption = dict(values)
        path, generated_by, file = (caption.pop(name) for name in ("path", "generated_by", "file"))
        if not isinstance(path, str) or "caption" not in caption or "settings" not in generated_by:
            raise ValueError("not a caption with its path and the settings it was written with")
        return cls(path, caption, generated_by, FileFacts(**file))

    def as_caption(self) -> Caption:
        """Return the caption as the object it was, a withheld one too."""
        values = {**self.caption, "text": self.caption["withheld" if self.abstained else "caption"]}
        values["evidence"] = tuple(Evidence(**item) for item in values["evidence"])
        values["candidates"] = tuple(Candidate(**item) for item in values["candidates"])
        return Caption(**{field.name: values[field.name] for field in fields(Caption) if field.name in values})

    def flat(self) -> dict[str, Any]:
        """Return the values as columns of a table: the provenance as text."""
        return {
            "path": self.path,
            **self.caption,
            "generated_by": format_provenance(self.generated_by),
            "sha256": self.sha256,
        }

    @property
    def sha256(self) -> str:
        """The hash of the picture's file."""
        return self.file.sha256


def format_provenance(generated_by: Mapping[str, str]) -> str:
    """Return what wrote a caption as one line for a reader."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in generated_by.items())


def json_line(values: Mapping[str, Any]) -> bytes:
    """Return one line of json; a file name that is not UTF-8 is kept in escapes that Python turns back into it."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(values, allow_nan=False).encode() + b"\n"
