import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

from recap.errors import InputError
from recap.metrics.corpus import MetricResult, in_points
from recap.metrics.report import Report, Unavailable


@pytest.fixture
def report():
    rows = (
        MetricResult("CIDEr-D", 1.25, np.array([1.0, 1.5]), 0.25),
        MetricResult("aCLIP-S", 0.5, np.array([0.5, np.nan]), float("nan")),
    )
    missing = (Unavailable("SPICE", "needs [spice]"), Unavailable("METEOR", "needs Java"))
    return Report(("one", "zwei, ü"), rows, missing, encoder="tinyvit,minilm", problems=("x.jpg: broken",))


def test_rows_by_name(report):
    assert report["cider-d"].value == 1.25
    with pytest.raises(InputError, match=r"not available: needs \[spice\]"):
        report["SPICE"]
    with pytest.raises(InputError, match="CIDEr-D, aCLIP-S"):
        report["BLEU-9"]


def test_json_is_strict_and_complete(report):
    plain = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert plain["images"] == 2
    assert plain["metrics"][1] == {"metric": "aCLIP-S", "value": 50.0, "standard_error": None}
    assert plain["unavailable"][0] == {"metric": "SPICE", "reason": "needs [spice]"}
    assert plain["problems"] == ["x.jpg: broken"]
    assert "per_image" not in plain
    values = json.loads(report.to_json(per_image=True))["per_image"]
    assert values == [
        {"id": "one", "CIDEr-D": 100.0, "aCLIP-S": 50.0},
        {"id": "zwei, ü", "CIDEr-D": 150.0, "aCLIP-S": None},
    ]


def test_csv_can_be_read_back(report):
    lines = list(csv.reader(io.StringIO(report.to_csv())))
    assert lines[:2] == [["metric", "points", "standard_error", "note"], ["CIDEr-D", "125.0", "25.0", ""]]
    assert lines[3] == ["SPICE", "", "", "needs [spice]"]
    images = list(csv.reader(io.StringIO(report.to_csv(per_image=True))))
    assert images == [["id", "CIDEr-D", "aCLIP-S"], ["one", "100.0", "50.0"], ["zwei, ü", "150.0", ""]]


def test_tables_name_what_is_missing(report):
    assert "| CIDEr-D | 125.0 | 25.0 |\n| aCLIP-S | 50.0 | - |" in report.to_markdown()
    assert "| SPICE | not available: needs [spice] |  |" in report.to_markdown()
    console = Console(width=100, file=io.StringIO())
    console.print(report)
    text = console.file.getvalue()
    for part in (
        "125.0",
        "points (x 100)",
        "needs [spice]",
        "needs Java",
        "1 without a readable picture",
        "tinyvit,minilm",
    ):
        assert part in text


def test_a_report_shows_itself_in_a_line_and_in_a_notebook(report):
    assert repr(report) == "Report(2 captions: CIDEr-D 125.0, aCLIP-S 50.0)"
    assert repr(report["CIDEr-D"]) == "MetricResult('CIDEr-D', 125.0 ± 25.0 points, 2 captions)"
    assert report._repr_html_().count("<tr>") == 5
    assert "CIDEr-D" in report._repr_html_()
    assert report._repr_html_().count("text-align:right") == 3, "numbers; one error is not known"


def test_latex_and_the_metrics_that_have_no_points(report):
    text = report.to_latex()
    assert r"CIDEr-D & 125.0 & 25.0 \\" in text
    assert text.startswith("\\begin{table}")
    assert in_points("MID", 61.5) == in_points("CLIPScore (100 cos)", 61.5) == 61.5
    assert in_points("CIDEr-D", 0.938) == pytest.approx(93.8)
