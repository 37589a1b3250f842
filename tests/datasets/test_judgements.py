import json
from pathlib import Path

import numpy as np
import pytest

from recap.datasets.captions import read_references
from recap.datasets.judgements import Judgements, Preferences, guess_format, read_judgements
from recap.errors import InputError

TOKENS = "".join(f"{name}.jpg#{n}\t{name} caption {n} .\n" for name in "abc" for n in range(2))


@pytest.fixture
def flickr8k(tmp_path: Path) -> Path:
    (tmp_path / "Flickr8k.token.txt").write_text(TOKENS)
    return tmp_path


def test_expert_scores_without_the_images_own_captions(flickr8k: Path):
    file = flickr8k / "ExpertAnnotations.txt"
    file.write_text("a.jpg\tb.jpg#1\t1\t2\t1\na.jpg\ta.jpg#0\t4\t4\t4\nb.jpg\tc.jpg#0\t3\t3\t4\n")
    judged = read_judgements(file, "flickr8k-expert")
    assert isinstance(judged, Judgements)
    assert judged.images == ("a.jpg", "b.jpg")
    assert judged.captions == ("b caption 1 .", "c caption 0 .")
    assert judged.ratings == ((1, 2, 1), (3, 3, 4))
    assert judged.references == {
        "a.jpg": ["a caption 0 .", "a caption 1 ."],
        "b.jpg": ["b caption 0 .", "b caption 1 ."],
    }
    assert judged.variant == "c"


def test_crowdflower_keeps_all_pairs_and_takes_judged_captions_out_of_the_references(flickr8k: Path):
    """The usual protocol: a judged caption of the picture itself is no reference, in none of the picture's rows."""
    file = flickr8k / "CrowdFlowerAnnotations.txt"
    rows = ["a.jpg\tb.jpg#1\t0.25\t1\t3", "a.jpg\ta.jpg#1\t1\t3\t0", "b.jpg\ta.jpg#1\t0\t0\t3"]
    file.write_text("\n".join(rows) + "\n")
    judged = read_judgements(file, "flickr8k-crowdflower")
    assert judged.images == ("a.jpg", "a.jpg", "b.jpg")
    assert judged.captions == ("b caption 1 .", "a caption 1 .", "a caption 1 .")
    assert judged.ratings == ((0.25,), (1,), (0,))
    assert judged.votes == ((1, 3), (3, 0), (0, 3))
    assert judged.variant == "b"
    assert judged.references == {"a.jpg": ["a caption 0 ."], "b.jpg": ["b caption 0 .", "b caption 1 ."]}


def test_captions_may_lie_elsewhere_but_must_be_there(tmp_path: Path):
    file = tmp_path / "ExpertAnnotations.txt"
    file.write_text("a.jpg\tb.jpg#1\t1\t2\t1\n")
    with pytest.raises(InputError, match="the captions are missing"):
        read_judgements(file, "flickr8k-expert")
    tokens = tmp_path / "other.txt"
    tokens.write_text(TOKENS.replace("b.jpg#1", "b.jpg#9"))
    with pytest.raises(InputError, match=r"1 captions are not in .*such as b\.jpg#1"):
        read_judgements(file, "flickr8k-expert", captions=tokens)
    tokens.write_text(TOKENS)
    assert len(read_judgements(file, "flickr8k-expert", captions=tokens)) == 1


@pytest.mark.parametrize("line", ["a.jpg\tb.jpg#1\t1\t2", "a.jpg\tb.jpg#1\tx\t2\t3"])
def test_bad_lines_are_named(flickr8k: Path, line: str):
    file = flickr8k / "ExpertAnnotations.txt"
    file.write_text(f"a.jpg\tb.jpg#1\t1\t2\t1\n{line}\n")
    with pytest.raises(InputError, match=r"ExpertAnnotations\.txt:2: expected image"):
        read_judgements(file, "flickr8k-expert")


def thumb_line(number: int, caption: str, score: float) -> str:
    image = f"COCO_val2014_{number:012}.jpg"
    row = {"SYS": "Human", "seg_id": str(number), "set_id": 5, "hyp": caption, "image": image, "human_score": score}
    return json.dumps({**row, "P": 4.0, "R": 3.0, "Fl": -0.0, "Inc": -0.0, "Con": -0.0}) + "\n"


def test_thumb_with_and_without_references(tmp_path: Path):
    file = tmp_path / "mscoco_THumB-1.0.jsonl"
    file.write_text(thumb_line(974, "An elephant.", 3.5) + thumb_line(2453, "A bench.", 4.2))
    judged = read_judgements(file, "thumb")
    assert judged.images == ("COCO_val2014_000000000974.jpg", "COCO_val2014_000000002453.jpg")
    assert judged.captions == ("An elephant.", "A bench.")
    assert judged.ratings == ((3.5,), (4.2,))
    assert judged.references == {}
    given = judged.with_references({"974": ["people on an elephant"], "1": ["nobody"]})
    assert given.references == {"COCO_val2014_000000000974.jpg": ["people on an elephant"]}
    (tmp_path / "mscoco_references.jsonl").write_text(json.dumps({"seg_id": "2453", "refs": ["a bench"]}))
    assert read_judgements(file, "thumb").references == {"COCO_val2014_000000002453.jpg": ["a bench"]}
    file.write_text('{"image": "x.jpg"}\n')
    with pytest.raises(InputError, match=r"1\.0\.jsonl:1: .*human_score"):
        read_judgements(file, "thumb")


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_thumb_as_published_has_references_in_json_lines(tmp_path: Path, suffix: str):
    """``mscoco_references.json`` is JSON Lines, and ``recap score`` reads it, too."""
    file, references = tmp_path / "mscoco_THumB-1.0.jsonl", tmp_path / f"mscoco_references{suffix}"
    file.write_text(thumb_line(974, "An elephant.", 3.5) + thumb_line(2453, "A bench.", 4.2))
    known = {"974": ["people on an elephant", "an elephant"], "2453": ["a bench"]}
    references.write_text("".join(json.dumps({"seg_id": name, "refs": texts}) + "\n" for name, texts in known.items()))
    assert read_references(references) == known
    judged = read_judgements(file)
    assert judged.references == {f"COCO_val2014_{int(name):012}.jpg": texts for name, texts in known.items()}
    assert read_judgements(file, captions=references).references == judged.references


@pytest.mark.parametrize("columns", [0, 27])
def test_composite_takes_captions_and_ratings_after_the_picture(tmp_path: Path, columns: int):
    before = ["x"] * columns
    rows = [
        [*before, "Input.image_url", "t1", "t2", "c1", "c2"],
        [*before, "http://host/dir/123_ab.jpg", "a dog", "two dogs; one", "4", "2"],
        ["", "", ""],
    ]
    file = tmp_path / "8k_correctness.csv"
    file.write_text("\n".join(";".join(f'"{cell}"' for cell in row) for row in rows))
    judged = read_judgements(file, "composite")
    assert judged.images == ("123_ab.jpg", "123_ab.jpg")
    assert judged.captions == ("a dog", "two dogs; one")
    assert judged.ratings == ((4,), (2,))
    file.write_text("http://host/x.jpg;a dog;two dogs;4\n")
    with pytest.raises(InputError, match="as many ratings"):
        read_judgements(file, "composite")
    file.write_text("nothing\n")
    with pytest.raises(InputError, match="no judgements"):
        read_judgements(file, "composite")


def struct(count: int, *fields: str) -> np.ndarray:
    """A MATLAB struct array of one row."""
    return np.zeros((1, count), dtype=[(field, object) for field in fields])


def cell(value: str) -> np.ndarray:
    """A MATLAB cell with a text in it."""
    box = np.empty((1, 1), dtype=object)
    box[0, 0] = value
    return box


def test_pascal_50s(tmp_path: Path):
    io = pytest.importorskip("scipy.io")
    inputs = struct(2, "image", "first", "second")
    triplets = struct(96, "reference", "first", "second", "winner")
    for pair, (first, second, wins) in enumerate([("a cat ", "a dog", 30), ("one", "two", 0)]):
        inputs[0, pair] = (f"{pair}.jpg", first, second)
        for vote in range(48):
            swapped = vote % 2 == 1  # the two captions may stand in either order
            order = (second, first) if swapped else (first, second)
            label = 1 if (vote < wins) != swapped else -1
            triplets[0, 48 * pair + vote] = (cell(f"reference {vote}"), *map(cell, order), label)
    io.savemat(tmp_path / "pair_pascal.mat", {"new_input": inputs, "category": np.array([[1, 4]])})
    io.savemat(tmp_path / "consensus_pascal.mat", {"triplets": triplets})
    judged = read_judgements(tmp_path, "pascal-50s")
    assert isinstance(judged, Preferences)
    assert judged.images == ("0.jpg", "1.jpg")
    assert (judged.first, judged.second) == (("a cat", "one"), ("a dog", "two"))
    assert judged.votes == ((30, 18), (0, 48))
    assert judged.categories == ("HC", "MM")
    assert judged.references[1][:2] == ("reference 0", "reference 1")
    assert {len(texts) for texts in judged.references} == {48}
    (tmp_path / "consensus_pascal.mat").unlink()
    with pytest.raises(InputError, match=r"consensus_pascal\.mat is missing"):
        read_judgements(tmp_path, "pascal-50s")


def test_unknown_kind(tmp_path: Path):
    with pytest.raises(InputError, match="flickr8k-expert, flickr8k-crowdflower, thumb, composite, pascal-50s"):
        read_judgements(tmp_path, "flickr30k")


OWN = [
    {"image": "1.jpg", "caption": "a dog", "ratings": [4, 3], "references": ["a dog runs", "one dog"]},
    {"image": "1.jpg", "caption": "a cat", "ratings": [1, 2], "references": ["a dog runs"]},
    {"image": "2.jpg", "caption": "a boat", "ratings": [2, 2]},
]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_own_ratings(tmp_path: Path, suffix: str):
    file = tmp_path / f"human{suffix}"
    file.write_text(json.dumps(OWN) if suffix == ".json" else "\n".join(map(json.dumps, OWN)))
    judged = read_judgements(file)
    assert isinstance(judged, Judgements)
    assert judged.images == ("1.jpg", "1.jpg", "2.jpg")
    assert judged.captions == ("a dog", "a cat", "a boat")
    assert judged.ratings == ((4, 3), (1, 2), (2, 2))
    assert judged.references == {"1.jpg": ("a dog runs", "one dog")}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "no judgements"),
        ([{"image": "1.jpg", "caption": "a dog"}], "entry 0: expected"),
        ([OWN[0], {**OWN[1], "ratings": 3}], "as many ratings"),
        ([{**OWN[0], "ratings": []}], "as many ratings"),
        (["a dog"], "entry 0: expected"),
    ],
)
def test_own_ratings_that_cannot_be_used(tmp_path: Path, content: list[object], reason: str):
    file = tmp_path / "human.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=reason):
        read_judgements(file)


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [
        ("ExpertAnnotations.txt", "a.jpg\tb.jpg#1\t1\t2\t1", "flickr8k-expert"),
        ("CrowdFlowerAnnotations.txt", "a.jpg\tb.jpg#1\t1\t3\t0", "flickr8k-crowdflower"),
        ("thumb.jsonl", '{"image": "1.jpg", "hyp": "a dog", "human_score": 4}', "thumb"),
        ("8k_correctness.csv", "picture;caption", "composite"),
        ("pair_pascal.mat", "", "pascal-50s"),
    ],
)
def test_format_is_told_from_the_file(tmp_path: Path, name: str, first: str, expected: str):
    (tmp_path / name).write_text(first + "\n")
    assert guess_format(tmp_path / name) == expected


def test_format_that_cannot_be_told(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("some words\n")
    with pytest.raises(InputError, match="not clear"):
        guess_format(tmp_path / "notes.txt")
