"""Many files: captioned in stages that overlap, kept in a journal, resumed where a run was killed.

Captions leave in the formats other tools read: json lines, csv, Parquet, COCO results, ``.txt`` files beside pictures,
the metadata of the pictures, or one page that shows what each caption rests on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recap.batch.formats import FORMATS, FileFacts, Record, Sink, check_paths, format_of, write_records
    from recap.batch.journal import FailureList, Journal, open_journal, open_output, provenance
    from recap.batch.run import Summary, caption_files

_MODULES = {
    "formats": ("FORMATS", "FileFacts", "Record", "Sink", "check_paths", "format_of", "write_records"),
    "journal": ("FailureList", "Journal", "open_journal", "open_output", "provenance"),
    "run": ("Summary", "caption_files"),
}

__all__ = [
    "FORMATS",
    "FailureList",
    "FileFacts",
    "Journal",
    "Record",
    "Sink",
    "Summary",
    "caption_files",
    "check_paths",
    "format_of",
    "open_journal",
    "open_output",
    "provenance",
    "write_records",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: help of a command needs the formats only."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"recap.batch.{module}"), name)
    raise AttributeError(f"module 'recap.batch' has no attribute {name!r}")
