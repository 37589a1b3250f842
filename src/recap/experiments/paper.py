"""The numbers of the paper, so that they stand beside ours.

``paper.json`` holds every table of "Linear Alignment of Vision-language Models for Image Captioning" by a short name:
its label there, its columns, and its rows in sections. A cell is a value, a value with its standard error, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from recap.errors import InputError
from recap.experiments.table import Cell, Row, Section

ENCODER = "RN50x64"
"""The CLIP encoder behind the paper's results, where it names no other."""


def paper_section(table: str, section: str, columns: Sequence[str], *, setting: str = ENCODER) -> Section:
    """Return the rows of one section of the paper's table under our columns; what it does not report stays empty."""
    content = paper_table(table)
    if section not in content["sections"]:
        raise InputError(f"the paper's table {table} has no section {section!r}: {', '.join(content['sections'])}")
    place = {name: number for number, name in enumerate(content["columns"])}
    rows = tuple(
        Row(label, tuple(_cell(values[place[name]]) if name in place else Cell() for name in columns))
        for label, values in content["sections"][section].items()
    )
    return Section(f"the paper: {', '.join(part for part in (section, setting) if part)}", rows)


def paper_table(table: str) -> Mapping[str, Any]:
    """Return a table of the paper: ``label``, ``columns``, and ``sections`` of rows by label."""
    tables = _tables()
    if table not in tables:
        raise InputError(f"the paper has no table {table!r}; there are {', '.join(tables)}")
    found: Mapping[str, Any] = tables[table]
    return found


@cache
def _tables() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
    return content


def _cell(value: Any) -> Cell:
    return Cell(*value) if isinstance(value, list) else Cell(value)
