"""Every format, read back by what reads it in real work."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.batch import FORMATS, FileFacts, Record, check_paths, format_of, write_records
from recap.batch.formats import image_id
from recap.datasets.captions import read_candidates
from recap.errors import InputError
from recap.types import Candidate, Caption, Evidence

MADE_BY = {"recap": "0.1", "pack": "builtin", "encoder": "e", "language_model": "none", "settings": "abc"}
HARD = ['say "cheese", please', "two\nlines", "Größe 大 🐈", " spaces ", "=1+1", ""]


def record(path: str, text: str = "a cat", logprob: float | None = None) -> Record:
    evidence = (Evidence("a dog", 0.25, "coco", True, "7"),)
    candidates = (Candidate(text, 0.5, 0.4, "lm" if logprob else "retrieved", logprob),)
    caption = Caption(text, 0.4, evidence, candidates, "consensus")
    return Record(path, json.loads(json.dumps(caption.as_dict())), MADE_BY, FileFacts("ab" * 32, 10, 20))


def written(tmp_path: Path, kind: str, records: list[Record]) -> Path:
    suffix = {"coco": "json"}.get(kind, kind)
    path = tmp_path / f"captions.{suffix}"
    assert format_of(path) == kind
    write_records(path, kind, iter(records))
    return path


@pytest.fixture
def records() -> list[Record]:
    # the first has no log-probability, a later one has: the columns must hold both
    return [record(f"pictures/{n}.jpg", text, -1.5 if n else None) for n, text in enumerate(HARD)]


def test_a_record_survives_json(records: list[Record]):
    for item in records:
        again = Record.from_dict(json.loads(json.dumps(item.as_dict())))
        assert again == item
        assert again.as_caption().evidence[0] == Evidence("a dog", 0.25, "coco", True, "7")
        assert json.loads(json.dumps(again.as_caption().as_dict())) == item.caption
    with pytest.raises(ValueError, match="not a caption"):
        Record.from_dict({"path": "a", "generated_by": MADE_BY, "file": {"sha256": "", "size": 0, "modified": 0}})


def test_jsonl_with_pandas(tmp_path: Path, records: list[Record]):
    path = written(tmp_path, "jsonl", records)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [item.as_dict() for item in records]
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_json(path, lines=True)
    assert list(frame["caption"]) == HARD
    assert frame["generated_by"][0]["pack"] == "builtin"


INERT = [f"'{text}" if text.startswith("=") else text for text in HARD]
"""What a spreadsheet would take for a formula has an apostrophe before it."""


def test_csv_with_pandas_and_pyarrow(tmp_path: Path, records: list[Record]):
    path = written(tmp_path, "csv", records)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["caption"] for row in rows] == INERT
    plain = [name for name, value in records[0].caption.items() if not isinstance(value, list)]
    assert list(rows[0]) == ["path", *plain, "generated_by", "sha256"]
    assert "pack builtin" in rows[0]["generated_by"]
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    assert pyarrow.csv.read_csv(path, parse_options=options)["caption"].to_pylist() == INERT
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(path, keep_default_na=False)
    assert list(frame["caption"]) == INERT
    assert list(frame["score"]) == [0.4] * len(HARD)


def test_parquet_with_pandas_and_pyarrow(tmp_path: Path, records: list[Record]):
    path = written(tmp_path, "parquet", records)
    table = pyarrow.parquet.read_table(path)
    assert table["caption"].to_pylist() == HARD
    assert table["candidates"].to_pylist() == [list(item.caption["candidates"]) for item in records]
    assert table["evidence"].to_pylist()[0] == list(records[0].caption["evidence"])
    assert json.loads(table.schema.metadata[b"generated_by"])["settings"] == "abc"
    assert table.schema.metadata[b"machine_written"] == b"true"
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(path)
    assert list(frame["path"]) == [item.path for item in records]
    assert frame["candidates"][1][0]["logprob"] == -1.5


def test_more_rows_than_a_group_and_a_value_that_is_new(tmp_path: Path):
    many = [record(f"{n}.jpg") for n in range(2500)]
    confident = [
        Record(item.path, {**item.caption, "confidence": n / 2500, "abstained": False}, MADE_BY, item.file)
        for n, item in enumerate(many)
    ]
    table = pyarrow.parquet.read_table(written(tmp_path, "parquet", confident))
    assert table["path"].to_pylist() == [item.path for item in many]
    assert table["confidence"].to_pylist()[1] == 1 / 2500
    assert table.schema.field("abstained").type == pyarrow.bool_()


def test_coco_results_with_the_coco_tools(tmp_path: Path):
    coco = pytest.importorskip("pycocotools.coco")
    records = [record(f"val/COCO_val2014_{n:012d}.jpg", f"caption {n}") for n in (42, 7)] + [record("x/000139.jpg")]
    path = written(tmp_path, "coco", records)
    truth = coco.COCO()
    ids = (42, 7, 139)
    truth.dataset = {"images": [{"id": n} for n in ids], "annotations": [{"id": n, "image_id": n} for n in ids]}
    truth.createIndex()
    results = truth.loadRes(str(path))
    assert [results.imgToAnns[n][0]["caption"] for n in ids] == ["caption 42", "caption 7", "a cat"]


def test_coco_ids(tmp_path: Path):
    assert [image_id(name) for name in ("a/12.jpg", "COCO_train2014_000000000009.jpg", "dog_1.png", "x.y.png")] == [
        12,
        9,
        "dog_1",
        "x.y",
    ]
    check_paths("coco", ["a/1.jpg", "a/2.jpg"])
    check_paths("csv", ["a/1.jpg", "b/1.jpg"])
    with pytest.raises(InputError, match=r"a/1.jpg and b/1.png .* image id 1"):
        check_paths("coco", ["a/1.jpg", "b/1.png"])
    with pytest.raises(InputError, match="same image id"):
        write_records(tmp_path / "x.json", "coco", [record("a/1.jpg"), record("b/1.jpg")])
    assert not list(tmp_path.iterdir())


def test_recap_score_reads_coco_results(tmp_path: Path):
    path = written(tmp_path, "coco", [record(f"{n}.jpg", f"caption {n}") for n in range(3)])
    assert read_candidates(path) == {str(n): f"caption {n}" for n in range(3)}


@pytest.mark.parametrize("kind", FORMATS.names())
def test_no_records_and_names_that_are_not_utf8(tmp_path: Path, kind: str):
    path = written(tmp_path, kind, [])
    if kind == "coco":
        assert json.loads(path.read_text()) == []
    if kind == "parquet":
        assert pyarrow.parquet.read_table(path).num_rows == 0
    path = written(tmp_path, kind, [record("caf\udce9.jpg")])
    if kind == "parquet":
        assert pyarrow.parquet.read_table(path)["path"].to_pylist() == ["caf\ufffd.jpg"]
    elif kind == "csv":
        assert b"caf\xe9.jpg" in path.read_bytes()
    else:
        value: Any = json.loads(path.read_bytes())
        assert (value[0]["image_id"] if kind == "coco" else value["path"]).startswith("caf\udce9")


@settings(deadline=None)
@given(st.text(max_size=30), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_goes_through_jsonl(tmp_path_factory, path: str, text: str):
    folder = tmp_path_factory.mktemp("any")
    item = record(path, text)
    write_records(folder / "a.jsonl", "jsonl", [item])
    assert Record.from_dict(json.loads((folder / "a.jsonl").read_bytes())) == item


def test_unknown_suffixes_and_formats(tmp_path: Path):
    with pytest.raises(InputError, match=r"captions.xlsx.*\.parquet.*--format"):
        format_of(Path("captions.xlsx"))
    with pytest.raises(InputError, match="unknown format 'xls'"):
        write_records(tmp_path / "a", "xls", [])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, start: str):
    path = written(tmp_path, "csv", [record(f"{start}a.png", f"{start}HYPERLINK(1)"), record("b.png", "a cat")])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["caption"] == f"'{start}HYPERLINK(1)"
    assert rows[0]["path"].startswith("'")
    assert (rows[1]["path"], rows[1]["caption"]) == ("b.png", "a cat")
