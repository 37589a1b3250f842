"""Chest x-rays with radiologists' reports: the Indiana University collection, of Open-i or as others split it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

from recap.datasets.records import read_records, require, require_split
from recap.errors import InputError
from recap.types import Pair

_DATA = "Open-i chest x-rays"
SECTIONS = ("FINDINGS", "IMPRESSION")
"""What a report says; the first that is there is the caption."""


ANNOTATION = "annotation.json"
"""File of the studies with a front and a side picture, split as most publications do."""
VIEWS = 2
"""Pictures of a study in that file."""


def read_xrays(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``annotation.json``, or from ``ecgen-radiology/*.xml``, with the pictures in ``images/``.

    The first has a split of its own; an id is the study's with the number of the picture behind ``#``. Open-i has none:
    a hash of the report's name puts eight tenths into ``train`` and a tenth each into ``dev`` and ``test``, all
    pictures of a report on one side. Reports without a picture or without findings are left out, and an id is the
    picture's.
    """
    require_split(split, _DATA)
    if (Path(folder) / ANNOTATION).exists():
        return _studies(Path(folder), {"dev": "val"}.get(split, split))
    reports = require(Path(folder) / "ecgen-radiology", _DATA)
    found = [pair for path in sorted(reports.glob("*.xml")) if _split(path.stem) == split for pair in _pairs(path)]
    if not found:
        raise InputError(f"{reports}: no report with a picture and findings in the split {split}")
    return found


def _studies(folder: Path, split: str) -> list[Pair]:
    numbers: dict[str, int] = {}
    pairs = []
    for record in read_records(folder / ANNOTATION, splits=[split]):
        study, report, picture = (record.values.get(name) for name in ("id", "report", "image"))
        if not (isinstance(study, str) and isinstance(report, str) and isinstance(picture, str)):
            raise InputError(f"{record.where}: expected id, report and image_path")
        number = numbers[study] = numbers.get(study, -1) + 1
        pairs.append(Pair(folder / "images" / picture, (" ".join(report.split()),), f"{study}#{number}"))
    return pairs


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
