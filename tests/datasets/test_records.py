"""One reader behind pairs, captions, sentences and judgements: the same records from every suffix."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recap.datasets import Sentence, read_pairs, read_sentences
from recap.datasets.captions import read_references
from recap.datasets.records import SUFFIXES, as_captions, read_records, scan_records
from recap.errors import InputError

ROWS = [
    {"image": "a.jpg", "caption": "one", "source": "s"},
    {"image": "b.jpg", "caption": "two", "source": "t"},
    {"image": "a.jpg", "caption": "three", "source": "s"},
]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    else:
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(json.dumps(rows, indent=1) if path.stem == "list" else lines)
    return path


@pytest.mark.parametrize("name", [f"lines{suffix}" for suffix in SUFFIXES] + ["list.json"])
def test_every_suffix_gives_every_reader_the_same(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    assert [dict(record.values) for record in read_records(path)] == ROWS
    assert all(record.where.startswith(str(path)) for record in read_records(path))
    assert read_references(path) == {"a.jpg": ["one", "three"], "b.jpg": ["two"]}
    assert [(pair.id, pair.captions) for pair in read_pairs(path)] == [("a.jpg", ("one", "three")), ("b.jpg", ("two",))]
    assert read_sentences(path) == [Sentence(row["caption"], row["source"], row["image"]) for row in ROWS]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("image", "caption"), [("file_name", "text"), ("path", "references"), ("filename", "refs")])
def test_one_table_of_names_for_all_of_them(tmp_path: Path, suffix: str, image: str, caption: str) -> None:
    path = write(tmp_path / f"x{suffix}", [{image: "a.jpg", caption: "one"}, {image: "b.jpg", caption: "two"}])
    assert read_references(path) == {"a.jpg": ["one"], "b.jpg": ["two"]}
    assert [(pair.id, pair.captions) for pair in read_pairs(path)] == [("a.jpg", ("one",)), ("b.jpg", ("two",))]
    assert read_sentences(path) == [Sentence("one", "", "a.jpg"), Sentence("two", "", "b.jpg")]


def test_a_line_that_is_broken_is_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"image": "a.jpg", "caption": "one"}\n{"image"\n[3]\n' + "[" * 100_000)
    first, second, third, fourth = scan_records(path)
    assert not isinstance(first, InputError)
    assert (third.where, third.values) == (f"{path}:3", {})
    assert str(second).startswith(f"{path}:2: not valid json")
    assert str(fourth).startswith(f"{path}:4: not valid json (nested too deeply")
    with pytest.raises(InputError, match=r"x\.json:2: not valid json"):
        list(read_records(path))


def test_json_that_is_broken_is_not_taken_for_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[\n {"image": "a.jpg", "caption": "one"}\n {"image"')
    with pytest.raises(InputError, match=r"not valid json .* at line 3"):
        list(read_records(path))
    path.write_text('{"image": "a.jpg", "caption": "one"}')
    assert [record.values for record in read_records(path)] == [{"image": "a.jpg", "caption": "one"}]


def test_the_caption_of_a_candidate_goes_before_what_stands_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"image_id": "7", "references": "theirs", "caption": "ours"}])
    assert read_references(path) == {"7": ["ours"]}


def test_coco_needs_the_names_of_pictures_for_pairs_only(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"annotations": [{"image_id": 7, "id": 1, "caption": "one"}]}))
    assert read_references(path) == {"7": ["one"]}
    with pytest.raises(InputError, match="not a COCO captions file"):
        read_pairs(path)


def test_captions_that_are_not_required_may_be_missing() -> None:
    assert as_captions([None, " "], "here", required=False) == []
    assert str(as_captions([None, " "], "here")) == "here: no caption"
    assert str(as_captions(3, "here", required=False)) == "here: a caption must be text, not 3"
