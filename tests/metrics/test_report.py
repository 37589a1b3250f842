import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

from recap.errors import InputError
from recap.metrics.report import Report, Unavailable
from recap.metrics.statistics import MetricResult


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
    assert plain["metrics"][1] == {"metric": "aCLIP-S", "value": 0.5, "standard_error": None}
    assert plain["unavailable"][0] == {"metric": "SPICE", "reason": "needs [spice]"}
    assert plain["problems"] == ["x.jpg: broken"]
    assert "per_image" not in plain
    values = json.loads(report.to_json(per_image=True))["per_image"]
    assert values == [{"id": "one", "CIDEr-D": 1.0, "aCLIP-S": 0.5}, {"id": "zwei, ü", "CIDEr-D": 1.5, "aCLIP-S": None}]


def test_csv_can_be_read_back(report):
    lines = list(csv.reader(io.StringIO(report.to_csv())))
    assert lines[:2] == [["metric", "value", "standard_error", "note"], ["CIDEr-D", "1.25", "0.25", ""]]
    assert lines[3] == ["SPICE", "", "", "needs [spice]"]
    images = list(csv.reader(io.StringIO(report.to_csv(per_image=True))))
    assert images == [["id", "CIDEr-D", "aCLIP-S"], ["one", "1.0", "0.5"], ["zwei, ü", "1.5", ""]]


def test_tables_name_what_is_missing(report):
    assert "| CIDEr-D | 1.2500 | 0.2500 |\n| aCLIP-S | 0.5000 | - |" in report.to_markdown()
    assert "| SPICE | not available: needs [spice] | |" in report.to_markdown()
    console = Console(width=100, file=io.StringIO())
    console.print(report)
    text = console.file.getvalue()
    for part in ("1.2500", "needs [spice]", "needs Java", "1 without a readable picture", "tinyvit,minilm"):
        assert part in text


def test_a_report_shows_itself_in_a_line_and_in_a_notebook(report):
    assert repr(report) == "Report(2 captions: CIDEr-D 1.2500, aCLIP-S 0.5000)"
    assert repr(report["CIDEr-D"]) == "MetricResult('CIDEr-D', 1.2500 ± 0.2500, 2 captions)"
    assert report._repr_html_().count("<tr>") == 3
    assert "CIDEr-D" in report._repr_html_()
