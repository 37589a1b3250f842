import json
from pathlib import Path

import pytest

from recap.datasets import find_images, read_pairs
from recap.errors import InputError, RecapWarning


def as_tuples(pairs):
    return [(pair.id, pair.captions) for pair in pairs]


def test_folder_with_sidecars_takes_every_line_and_skips_pictures_without(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for name in ("a.jpg", "deep/b.PNG", "lonely.jpg"):
        (tmp_path / name).write_bytes(b"picture")
    (tmp_path / "a.txt").write_text("a  red\tball\n\n a ball \n", encoding="utf-8")
    (tmp_path / "deep/b.txt").write_text("\ufeffein grüner Baum", encoding="utf-8")
    with pytest.warns(RecapWarning, match="1 pictures of .* have no caption"):
        pairs = read_pairs(tmp_path)
    assert as_tuples(pairs) == [("a.jpg", ("a red ball", "a ball")), (str(Path("deep/b.PNG")), ("ein grüner Baum",))]
    assert pairs[1].image == tmp_path / "deep/b.PNG"


def test_jsonl_joins_captions_of_one_picture(tmp_path: Path):
    lines = [{"image": "a.jpg", "caption": "one"}, {"image": "b.jpg", "captions": ["two", "three"]}]
    lines.append({"image": "a.jpg", "caption": "four"})
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert as_tuples(read_pairs(file)) == [("a.jpg", ("one", "four")), ("b.jpg", ("two", "three"))]
    assert read_pairs(file, images="/elsewhere")[0].image == Path("/elsewhere/a.jpg")


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_tables_may_hold_quoted_line_breaks(tmp_path: Path, suffix: str, delimiter: str):
    file = tmp_path / f"pairs{suffix}"
    file.write_text(f'caption{delimiter}image\n"a cat,\nasleep"{delimiter}a.jpg\n')
    assert as_tuples(read_pairs(file)) == [("a.jpg", ("a cat, asleep",))]


def test_coco_captions(tmp_path: Path):
    content = {
        "images": [{"id": 7, "file_name": "x.jpg"}],
        "annotations": [{"image_id": 7, "caption": "A cat."}, {"image_id": 7, "caption": "Cat"}],
    }
    file = tmp_path / "captions.json"
    file.write_text(json.dumps(content))
    assert as_tuples(read_pairs(file)) == [("x.jpg", ("A cat.", "Cat"))]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"image": "a.jpg", "caption": 3}', "a.jsonl:1: a caption must be text"),
        ("a.jsonl", b'{"image": "a.jpg"', "a.jsonl:1: not valid json"),
        ("a.jsonl", b"[1]", 'a.jsonl:1: expected an object with "image"'),
        ("a.jsonl", b"", "no pair of a picture and a caption"),
        ("a.csv", b"picture,words\n", "separated by commas; missing: caption, image"),
        ("a.csv", b"image,caption\nx.jpg,\xff\n", "not UTF-8"),
        ("a.json", b'{"images": []}', "not a COCO captions file"),
        ("a.xls", b"", "pairs are read from"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, name: str, content: bytes, message: str):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_pairs(file)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_only_line_feeds_end_a_line(tmp_path: Path):
    caption = "a dog\u2028on\x85grass\x0band sand"
    lines, table = tmp_path / "pairs.jsonl", tmp_path / "pairs.csv"
    lines.write_text(json.dumps({"image": "a.jpg", "caption": caption}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    table.write_text(f"image,caption\na.jpg,{caption}\n", encoding="utf-8")
    for file in (lines, table):
        assert as_tuples(read_pairs(file)) == [("a.jpg", ("a dog on grass and sand",))]


def test_missing_and_empty_inputs(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        read_pairs(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="same name beside it"):
        read_pairs(tmp_path)


def test_find_images_takes_files_folders_and_globs_once(tmp_path: Path):
    for name in ("b.jpg", "a.png", "sub/c.webp", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_images([tmp_path / "b.jpg", tmp_path, str(tmp_path / "*.png"), tmp_path / "gone.jpg"])
    names = [str(path.relative_to(tmp_path)) for path in found]
    assert names == ["b.jpg", "a.png", str(Path("sub/c.webp")), "gone.jpg"]
    assert list(find_images([str(tmp_path / "*.heic")])) == [tmp_path / "*.heic"]
    assert list(find_images([tmp_path / "notes.txt"])) == [tmp_path / "notes.txt"]


def test_captions_stand_in_either_kind_of_text_file(tmp_path: Path):
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / f"{name}.txt").write_text(f"of {name}")
    (tmp_path / "b.jpg").write_bytes(b"")
    (tmp_path / "b.txt").write_text("of b")
    assert {pair.id: pair.captions for pair in read_pairs(tmp_path)} == {
        "a.jpg": ("of a.jpg",),
        "a.png": ("of a.png",),
        "b.jpg": ("of b",),
    }
