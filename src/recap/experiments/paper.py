"""The numbers of the paper, so that they stand beside ours.

``paper.json`` holds every table of "Linear Alignment of Vision-language Models for Image Captioning" by a short name:
its label there, its columns, and its rows in sections. A cell is a value, a value with its standard error, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from recap.errors import InputError
from recap.experiments.table import Cell, Row, Section

ENCODER = "RN50x64"
"""The CLIP encoder behind the paper's results, where it names no other."""


JUDGED = {"flickr8k-expert": "Flickr8k-E", "flickr8k-crowdflower": "Flickr8k-CF", "thumb": "THumB"}
"""Data sets of judgements as ``recap correlate`` names them, and the paper's columns."""
OURS = {"BLEU@1": "BLEU-1", "BLEU@4": "BLEU-4", "CIDEr": "CIDEr-D", "aCLIP": "aCLIP-S"}
"""What the paper calls a metric in these tables, and its name in a report."""


def paper_section(
    table: str, section: str, columns: Sequence[str], *, setting: str = ENCODER, also: str = ""
) -> Section:
    """Return the rows of one section of the paper's table under our columns; what it does not report stays empty.

    ``also`` names a second table, which may have more columns of the same rows.
    """
    rows = _section(table, section)
    more = _section(also, section) if also else {}
    found = tuple(
        Row(label, tuple(_cell({**more.get(label, {}), **cells}.get(name)) for name in columns))
        for label, cells in rows.items()
    )
    return Section(f"the paper: {', '.join(part for part in (section, setting) if part)}", found)


def retrieval_sections(section: str, columns: Sequence[str], encoder: str) -> tuple[Section, ...]:
    """Return what the paper says of retrieval on one data set: ways to align, and this encoder as it is."""
    tables = ("retrieval", "retrieval-encoders")
    plain = paper_section(tables[1], section, columns, setting="encoders without alignment", also=tables[0])
    same = tuple(row for row in plain.rows if _plain(row.label.removeprefix("CLIP ")) == _backbone(encoder))
    aligned = paper_section(tables[0], section, columns, also=tables[1])
    return (aligned, replace(plain, rows=same)) if same else (aligned,)


def paper_judgements(data: str, encoder: str = "") -> dict[str, float]:
    """Return the paper's correlations with human judgement in percent, by our names of metrics.

    Nothing is known of other data than ``JUDGED``. What looks at the picture does so with ``ENCODER``; aCLIP-S and
    RefaCLIP-S of another CLIP, and the metrics of SigLIP, are those of ``encoder`` where the paper has it.
    """
    if data not in JUDGED:
        return {}
    place = list(JUDGED).index(data)
    found: dict[str, float | None] = {}
    for label, cells in _labelled("judgement"):
        metric, is_siglip, size = label.partition("SigLIP-")
        if not is_siglip:
            found[OURS.get(label, label)] = cells[place]
        elif f"ViT-{_plain(size)}-SigLIP" in encoder:
            found[f"{metric}SigLIP-S"] = cells[place]
    for label, cells in _labelled("judgement-encoders"):
        metric, _, backbone = label.partition(" ")
        if _plain(backbone) == _backbone(encoder):
            found[OURS.get(metric, metric)] = cells[place]
    return {metric: value for metric, value in found.items() if value is not None}


def paper_table(table: str) -> Mapping[str, Any]:
    """Return a table of the paper: ``label``, ``columns``, and ``sections`` of rows by label."""
    tables = _tables()
    if table not in tables:
        raise InputError(f"the paper has no table {table!r}; there are {', '.join(tables)}")
    found: Mapping[str, Any] = tables[table]
    return found


def _section(table: str, section: str) -> dict[str, dict[str, Any]]:
    """Return the cells of one section by row and column."""
    content = paper_table(table)
    if section not in content["sections"]:
        raise InputError(f"the paper's table {table} has no section {section!r}: {', '.join(content['sections'])}")
    rows = content["sections"][section].items()
    return {label: dict(zip(content["columns"], values, strict=True)) for label, values in rows}


def _labelled(table: str) -> list[tuple[str, list[Any]]]:
    """Return the rows of all sections of a table."""
    return [row for rows in paper_table(table)["sections"].values() for row in rows.items()]


def _backbone(encoder: str) -> str:
    """Return the model in a name such as ``open_clip:ViT-B-32-quickgelu/openai``."""
    return _plain(encoder.partition(":")[2].rpartition("/")[0]).removesuffix("-quickgelu")


def _plain(backbone: str) -> str:
    """Return one spelling for ``ViT-L/14@336px`` and ``ViT-L-14-336``."""
    return backbone.replace("/", "-").replace("@", "-").removesuffix("px")


@cache
def _tables() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
    return content


def _cell(value: Any) -> Cell:
    return Cell(*value) if isinstance(value, list) else Cell(value)
