"""What is marked as best, and the four ways to print it.

The paper's numbers are whole: spot values, and shapes that agree.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from recap.cli.correlate import correlate
from recap.errors import InputError
from recap.experiments.table import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    _tables,
    paper_judgements,
    paper_section,
    paper_table,
    retrieval_sections,
)


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


def test_values_of_the_paper() -> None:
    retrieval = paper_section("retrieval", "Flickr30k", ["t2i R@5", "i2t R@10", "i2t cos"])
    rows = {row.label: row.cells for row in retrieval.rows}
    assert rows["OLS"] == (Cell(90.6, 0.6), Cell(), Cell(0.624))
    searched = paper_section("k-flickr30k", "Single Captions", ["CIDEr-D"])
    assert {row.label: row.cells for row in searched.rows}["18"] == (Cell(66.2, 2.0),)
    captions = paper_table("captioning")["sections"]["MS-COCO"]["ReCap"]
    assert captions[0] == [108.3, 1.0]
    transfer = paper_section("transfer", "VizWiz", ["CIDEr-D", "aCLIP-S", "RefaCLIP-S"])
    assert transfer.rows[-1].cells == (Cell(28.6, 0.0), Cell(17.9, 0.1), Cell())
    assert "RN50x64" in transfer.title


def test_the_second_table_of_retrieval_adds_columns_and_encoders() -> None:
    columns = ["i2t R@1", "i2t R@10", "i2t cos", "t2i R@10"]
    aligned, encoders = retrieval_sections("MS-COCO", columns, "open_clip:ViT-L-14/openai")
    rows = {row.label: row.cells for row in aligned.rows}
    assert rows["CLIP RN50x64"] == (Cell(60.7, 0.7), Cell(88.5, 0.5), Cell(0.297), Cell(69.9, 0.5))
    assert rows["OLS"] == (Cell(33.3, 0.7), Cell(), Cell(0.699), Cell())
    rows = {row.label: row.cells for row in encoders.rows}
    assert len(rows) == 1
    assert len(retrieval_sections("MS-COCO", columns, "eyes")) == 1
    assert rows["CLIP ViT-L/14"] == (Cell(57.0, 0.7), Cell(86.9, 0.5), Cell(), Cell(70.3, 0.5))
    assert (aligned.title, encoders.title) == (
        "the paper: MS-COCO, RN50x64",
        "the paper: MS-COCO, encoders without alignment",
    )


@pytest.mark.parametrize(
    ("data", "encoder", "expected"),
    [
        ("flickr8k-expert", "", {"BLEU-1": 32.3, "CIDEr-D": 43.9, "aCLIP-S": 55.1, "RefaCLIP-S": 55.5, "MID": 54.9}),
        ("flickr8k-crowdflower", "builtin", {"CLIP-S": 34.3, "aCLIP-S": 36.2}),
        ("flickr8k-expert", "open_clip:RN50x64/openai", {"aCLIP-S": 55.1}),
        ("thumb", "open_clip:RN50x4/openai", {"aCLIP-S": 21.7, "RefaCLIP-S": 23.4, "CLIP-S": 19.9}),
        ("thumb", "open_clip:ViT-L-14-336-quickgelu/openai", {"aCLIP-S": 24.9}),
        ("thumb", "open_clip:ViT-B-16-SigLIP/webli", {"SigLIP-S": 23.0, "RefaSigLIP-S": 26.0}),
    ],
)
def test_judgements_have_our_names_and_the_encoder_where_the_paper_has_it(
    data: str, encoder: str, expected: dict[str, float]
) -> None:
    found = paper_judgements(data, encoder)
    assert {metric: found.get(metric) for metric in expected} == expected
    assert ("SigLIP-S" in found) == ("SigLIP" in encoder)
    assert ("MID" in found) == (data != "thumb")


def test_recap_correlate_prints_the_papers_numbers_beside_ours(tmp_path: Path) -> None:
    captions = {"a": "a red ball", "b": "green grass", "c": "the blue sea"}
    (tmp_path / "Flickr8k.token.txt").write_text("".join(f"{name}.jpg#0\t{text}\n" for name, text in captions.items()))
    rows = [
        f"{one}.jpg\t{other}.jpg#0\t{1 + (ord(one) + 2 * ord(other)) % 4}\t2\t3\n" for one in "abc" for other in "abc"
    ]
    (tmp_path / "ExpertAnnotations.txt").write_text("".join(rows))
    arguments = [str(tmp_path / "ExpertAnnotations.txt"), "--metrics", "bleu-1,rouge-l", "--replicates", "2"]
    printed = (
        CliRunner().invoke(correlate, [*arguments, "--input-format", "flickr8k-expert"], catch_exceptions=False).stdout
    )
    assert {line.split()[0]: line.split()[-1] for line in printed.splitlines() if line[:5] in ("BLEU-", "ROUGE")} == {
        "BLEU-1": "32.3",
        "ROUGE-L": "-",
    }
    assert "the paper: tau-c" in printed
    ours = CliRunner().invoke(
        correlate, [*arguments, "--input-format", "flickr8k-expert", "--json"], catch_exceptions=False
    )
    assert json.loads(ours.stdout)["paper"]["BLEU-1"] == 32.3


def test_other_judgements_are_not_in_the_paper() -> None:
    assert paper_judgements("composite") == {}


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
