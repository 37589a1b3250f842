"""What is marked as best, and the four ways to print it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import InputError
from recap.experiments.table import Cell, Column, Row, Section, Table


def table(*cells: Cell, better="higher") -> Table:
    rows = tuple(Row(f"row {number}", (cell,)) for number, cell in enumerate(cells))
    return Table("Title", (Column("R@1", 1, better),), (Section("part", rows),))


def best(*cells: Cell, better="higher") -> set[int]:
    made = table(*cells, better=better)
    return set(made.best(made.sections[0], 0))


def test_the_best_is_marked_with_all_whose_errors_overlap() -> None:
    assert best(Cell(10.0, 1.0), Cell(12.0, 1.0), Cell(9.9, 0.9)) == {0, 1}
    assert best(Cell(10.0), Cell(12.0)) == {1}
    assert best(Cell(10.0), Cell(12.0), better="lower") == {0}
    assert best(Cell(10.0), Cell(10.0), Cell("n/a"), Cell()) == {0, 1}
    assert best(Cell(10.0), Cell(12.0), better="neither") == set()
    assert best(Cell(10.0), Cell()) == set()


numbers = st.floats(-100, 100)


@given(st.lists(st.tuples(numbers, st.floats(0, 10)), min_size=2))
def test_marking_follows_the_intervals(values: list[tuple[float, float]]) -> None:
    marked = best(*(Cell(*value) for value in values))
    top, error = max(values, key=lambda value: value[0])
    for place, (value, own) in enumerate(values):
        if value + own < top - error - 1e-9:
            assert place not in marked
        if value + own > top - error + 1e-9:
            assert place in marked


@pytest.fixture
def full() -> Table:
    columns = (Column("R@1", 1), Column("cos_a", 3))
    ours = Section(
        "here & now", (Row("PR", (Cell(31.04, 1.46), Cell(0.3218))), Row("OLS", (Cell(22.4, 1.3), Cell(0.4831))))
    )
    paper = Section("the paper", (Row("PR", (Cell(78.5, 1.3), Cell())),))
    return Table("Retrieval", columns, (ours, paper), ("A note.",))


def test_text(full: Table) -> None:
    assert full.to_text().splitlines() == [
        "Retrieval",
        "",
        "method  R@1          cos_a",
        "",
        "here & now",
        "PR      31.0 ± 1.5*  0.322",
        "OLS     22.4 ± 1.3   0.483*",
        "",
        "the paper",
        "PR      78.5 ± 1.3   -",
        "",
        "* the best, and all whose standard errors overlap with it",
        "A note.",
    ]


def test_markdown_and_latex_say_the_same_in_bold(full: Table) -> None:
    markdown, latex = full.to_markdown(), full.to_latex()
    assert "| PR | **31.0 ± 1.5** | 0.322 |" in markdown
    assert "| *here & now* |  |  |" in markdown
    assert r"PR & \textbf{31.0 $\pm$ 1.5} & 0.322 \\" in latex
    assert r"\multicolumn{3}{c}{here \& now} \\" in latex
    assert r"cos\_a" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") == 2


def test_words_that_a_format_uses_itself_stay_as_they_are() -> None:
    rows = (Row("a BOLD sign", (Cell(2.0, 0.1),)), Row("DLOB {} & PLUSMINUS", (Cell(1.0, 0.1),)))
    latex = Table("T", (Column("x"),), (Section("", rows),)).to_latex()
    assert r"a BOLD sign & \textbf{2.0 $\pm$ 0.1} \\" in latex
    assert r"DLOB \{\} \& PLUSMINUS & 1.0 $\pm$ 0.1 \\" in latex
    named = Table("T", (Column("x"),), (Section("", (Row("a", (Cell("50 %"),)), Row("b", (Cell(1.0),)))),)).to_latex()
    assert r"a & 50 \% \\" in named


def test_the_best_is_explained_only_where_one_is_marked(full: Table) -> None:
    unmarked = table(Cell(1.0), Cell(2.0), better="neither")
    for made, there in ((full, True), (unmarked, False), (table(Cell(1.0)), False)):
        assert made.has_best == there
        for kind in ("table", "markdown"):
            assert ("the best" in made.render(kind)) == there
    assert unmarked.to_text().endswith("row 1   2.0\n")


def test_json_keeps_all_digits_and_what_is_best(full: Table) -> None:
    content = json.loads(full.render("json"))
    row = content["sections"][0]["rows"][0]
    assert row["cells"]["R@1"] == {"value": 31.04, "error": 1.46, "best": True}
    assert row["cells"]["cos_a"]["best"] is False
    assert content["sections"][1]["rows"][0]["cells"]["cos_a"]["value"] is None


def test_an_unknown_format_is_refused(full: Table) -> None:
    with pytest.raises(InputError, match="known: table, json, csv, markdown, latex"):
        full.render("word")


def test_a_notebook_shows_a_table() -> None:
    page = table(Cell(10.0, 1.0), Cell("<b>"))._repr_html_()
    assert "<caption>Title</caption>" in page
    assert "10.0 ± 1.0" in page
    assert "&lt;b&gt;" in page


def test_csv_has_every_value_with_its_error() -> None:
    lines = table(Cell(10.04, 1.0), Cell()).render("csv").splitlines()
    assert lines == ["section,method,R@1,R@1 standard error", "part,row 0,10.04,1.0", "part,row 1,,"]
