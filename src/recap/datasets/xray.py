"""Chest x-rays with radiologists' reports: the Indiana University collection of Open-i."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

from recap.datasets.records import require, require_split
from recap.errors import InputError
from recap.types import Pair

_DATA = "Open-i chest x-rays"
SECTIONS = ("FINDINGS", "IMPRESSION")
"""What a report says; the first that is there is the caption."""


def read_xrays(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``ecgen-radiology/*.xml`` with the pictures in ``images/*.png``.

    The collection has no official split: a hash of the report's name puts eight tenths into ``train`` and a tenth each
    into ``dev`` and ``test``, all pictures of a report on one side. Reports without a picture or without findings are
    left out. An id is the picture's.
    """
    require_split(split, _DATA)
    reports = require(Path(folder) / "ecgen-radiology", _DATA)
    found = [pair for path in sorted(reports.glob("*.xml")) if _split(path.stem) == split for pair in _pairs(path)]
    if not found:
        raise InputError(f"{reports}: no report with a picture and findings in the split {split}")
    return found


def _pairs(path: Path) -> list[Pair]:
    try:
        report = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise InputError(f"{path}: not readable as xml ({error})") from error
    said = {part.get("Label", "").upper(): " ".join((part.text or "").split()) for part in report.iter("AbstractText")}
    caption = next((said[section] for section in SECTIONS if said.get(section)), "")
    names = [picture.get("id", "") for picture in report.iter("parentImage")]
    images = path.parent.parent / "images"
    return [Pair(images / f"{name}.png", (caption,), name) for name in names if name and caption]


def _split(name: str) -> str:
    tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 10
    return {8: "dev", 9: "test"}.get(tenth, "train")
