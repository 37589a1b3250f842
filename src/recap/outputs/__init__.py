"""Captions in the formats other tools read: json lines, csv, Parquet, COCO results, ``.txt`` files beside pictures."""

from __future__ import annotations

from recap.outputs.base import FORMATS, Sink, check_paths, format_of, write_records
from recap.outputs.record import FileFacts, Record

__all__ = ["FORMATS", "FileFacts", "Record", "Sink", "check_paths", "format_of", "write_records"]
