import json
from pathlib import Path

import pytest

from recap.datasets.captions import CaptionsWarning, find_pictures, match, read_candidates, read_references, stem
from recap.errors import InputError

COCO = {
    "images": [{"id": 7, "file_name": "x.jpg"}],
    "annotations": [{"image_id": 7, "caption": "one"}, {"image_id": 7, "caption": "two"}],
}
KARPATHY = {
    "images": [
        {"cocoid": 7, "filename": "a.jpg", "split": "test", "sentences": [{"raw": "one"}, {"raw": "two"}]},
        {"cocoid": 8, "filename": "b.jpg", "split": "train", "sentences": [{"raw": "three"}]},
    ]
}


def write(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", [{"image_id": 7, "caption": "one"}], {"7": ["one"]}),
        ("a.json", COCO, {"7": ["one", "two"]}),
        ("a.json", KARPATHY, {"7": ["one", "two"], "8": ["three"]}),
        ("a.json", {"x": "one", "y": ["two", "three"]}, {"x": ["one"], "y": ["two", "three"]}),
        ("a.json", [{"image": "d/x.jpg", "caption": ["one", "two"]}], {"d/x.jpg": ["one", "two"]}),
        (
            "a.jsonl",
            '{"image": "x", "caption": "one"}\n\n{"id": 3, "captions": ["two"]}\n',
            {"x": ["one"], "3": ["two"]},
        ),
        ("a.csv", 'image_id,caption\nx,"one, two"\nx,three\n', {"x": ["one, two", "three"]}),
        ("a.tsv", "caption\timage\nüber\tx\n", {"x": ["über"]}),
    ],
)
def test_formats(tmp_path: Path, name, content, expected):
    assert read_references(write(tmp_path, name, content)) == expected


def test_one_split_of_a_karpathy_file(tmp_path: Path):
    path = write(tmp_path, "dataset.json", KARPATHY)
    assert read_references(path, split="test") == {"7": ["one", "two"]}
    del KARPATHY["images"][0]["cocoid"]
    assert "a.jpg" in read_references(write(tmp_path, "flickr.json", KARPATHY))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[{"image_id": 1, "caption": NaN}]', "caption of image 1 must be text, not nan"),
        ("a.json", [{"image_id": 1, "caption": None}], "expected an image id"),
        ("a.json", [{"image_id": 1.5, "caption": "x"}], "whole number, not 1.5"),
        ("a.json", [{"caption": "x"}], "entry 0: expected an image id"),
        ("a.json", [], "no captions found"),
        ("a.json", {"annotations": None}, "annotations must be a list, not None"),
        ("a.json", {"annotations": {"image_id": 1, "caption": "x"}}, "annotations must be a list"),
        ("a.json", "[{", "not valid json"),
        ("a.jsonl", '{"id": 1, "caption": "x"}\n{"id"', "a.jsonl:2: not valid json"),
        ("a.csv", "id,caption\n,x\n", "must be text or a whole number, not ''"),
        ("a.csv", "name,text\nx,y\n", "a.csv:2: expected an image id"),
        ("a.xls", "x", "read from .json"),
        ("a.txt", "x", "not a line of IMAGE#N"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, name, content, message):
    with pytest.raises(InputError) as caught:
        read_references(write(tmp_path, name, content))
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_second_candidate_for_an_image_is_an_error(tmp_path: Path):
    content = [{"image_id": 1, "caption": "a"}, {"image_id": 2, "caption": "b"}, {"image_id": 1, "caption": "c"}]
    with pytest.raises(InputError, match="1 of 2 images have more than one caption, such as 1"):
        read_candidates(write(tmp_path, "a.json", content))
    assert read_candidates(write(tmp_path, "b.json", content[:2])) == {"1": "a", "2": "b"}
    with pytest.raises(InputError, match=r"c\.json: 1 of 2 images have no caption, such as 1: give one candidate"):
        read_candidates(write(tmp_path, "c.json", {"1": [], "2": ["a"]}))


def test_match_keeps_the_order_of_candidates_and_counts_what_it_leaves_out():
    candidates = {"b": "B", "x": "X", "a": "A", "blank": "empty"}
    references = {"a": ["1", " "], "b": ["2"], "c": ["3"], "d": ["4"], "blank": [""]}
    with pytest.warns(CaptionsWarning) as caught:
        matched = match(candidates, references)
    assert matched.ids == ("b", "a")
    assert matched.candidates == ("B", "A")
    assert matched.references == (("2",), ("1",))
    messages = sorted(str(warning.message) for warning in caught)
    assert messages == [
        "1 empty references are left out",
        "2 candidates have no reference and are left out, such as x, blank",
        "2 images with references have no candidate, such as c, d",
    ]


def test_a_path_is_matched_by_its_end():
    """Of two pictures called 0.png the folder tells which is meant."""
    references = {"one/0.png": ["a"], "two/0.png": ["b"]}
    with pytest.warns(CaptionsWarning, match="1 candidates have no reference"):
        matched = match({"all/two/0.png": "x", "all/one/0.png": "y", "all/three/1.png": "z"}, references)
    assert matched.ids == ("two/0.png", "one/0.png")
    assert matched.references == (("b",), ("a",))
    with pytest.raises(InputError, match="two images have the name '0'"):
        match({"here/one/0.png": "x", "there/one/0.png": "y"}, references)


def test_match_by_file_name_only_where_ids_differ():
    numbers = {"391895": "a man", "42": "a dog"}
    files = {"val2014/COCO_val2014_000000391895.jpg": ["one"], "COCO_train2014_000000000042.jpg": ["two"]}
    assert match(numbers, files).references == (("one",), ("two",))
    assert match({"x.png": "a"}, {"deep/x.jpg": ["b"]}).ids == ("x",)
    with pytest.raises(InputError, match="two images have the name 'x'"):
        match({"x": "a"}, {"1/x.jpg": ["b"], "2/x.jpg": ["c"]})
    with pytest.raises(InputError, match="no image in common: candidates are of p, references of q"):
        match({"p": "a"}, {"q": ["b"]})


def test_stems():
    assert stem("a/b/COCO_val2014_000000000900.jpg") == "900"
    assert stem("photo.v2.JPEG") == "photo.v2"
    assert stem("no.suffix here") == "no.suffix here"


def test_find_pictures_by_path_name_stem_or_number(tmp_path: Path):
    for name in ("deep/a.jpg", "COCO_val2014_000000000042.jpg", "a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_pictures(["deep/a.jpg", "a.png", "42", "elsewhere/a.jpg", "gone"], tmp_path)
    names = [path and path.relative_to(tmp_path).as_posix() for path in found]
    assert names == ["deep/a.jpg", "a.png", "COCO_val2014_000000000042.jpg", "deep/a.jpg", None]
    with pytest.raises(InputError, match="no such folder"):
        find_pictures(["a"], tmp_path / "gone")


def test_what_recap_caption_writes_can_be_judged(tmp_path: Path):
    for suffix, content in (
        (".jsonl", '{"path": "photos/cat.jpg", "caption": "a cat", "score": 0.4}\n'),
        (".csv", "path,caption,score\nphotos/cat.jpg,a cat,0.4\n"),
    ):
        file = tmp_path / f"captions{suffix}"
        file.write_text(content)
        assert read_candidates(file) == {"photos/cat.jpg": "a cat"}
    assert match(read_candidates(tmp_path / "captions.csv"), {"cat": ["one cat"]}).ids == ("cat",)
