"""The paper's numbers are whole: spot values, and shapes that agree."""

from __future__ import annotations

import pytest

from recap.errors import InputError
from recap.experiments.paper import _tables, paper_section, paper_table
from recap.experiments.table import Cell


def test_values_of_the_paper() -> None:
    retrieval = paper_section("retrieval", "Flickr30k", ["t2i R@5", "i2t R@10", "i2t cos"])
    rows = {row.label: row.cells for row in retrieval.rows}
    assert rows["OLS"] == (Cell(90.6, 0.6), Cell(), Cell(0.624))
    captions = paper_table("captioning")["sections"]["MS-COCO"]["ReCap"]
    assert captions[0] == [108.3, 1.0]
    transfer = paper_section("transfer", "VizWiz", ["CIDEr-D", "aCLIP-S", "RefaCLIP-S"])
    assert transfer.rows[-1].cells == (Cell(28.6, 0.0), Cell(17.9, 0.1), Cell())
    assert "RN50x64" in transfer.title


def test_every_row_has_as_many_cells_as_columns() -> None:
    assert len(_tables()) == 23
    for name, table in _tables().items():
        for rows in table["sections"].values():
            assert rows, name
            assert all(len(cells) == len(table["columns"]) for cells in rows.values()), name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no table 'retrival'"):
        paper_table("retrival")
    with pytest.raises(InputError, match="no section 'Flickr8k': MS-COCO, Flickr30k"):
        paper_section("retrieval", "Flickr8k", [])
