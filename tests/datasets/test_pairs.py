"""Pairs from tables with pictures inside, shards, and Karpathy's splits; and captions without pictures."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recap.datasets import PairFiles, Sentence, find_images, read_pairs, read_sentences, stream_pairs
from recap.datasets.captions import read_references
from recap.datasets.pairs import parquet_pairs, shard_pairs
from recap.errors import InputError, RecapWarning
from recap.types import Pair


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


def test_token_files(tmp_path: Path):
    file = tmp_path / "Flickr8k.token.txt"
    file.write_text("a#1.jpg#0\tA cat .\na#1.jpg#1\tCat\nb.jpg#0\tdog\n")
    assert as_tuples(read_pairs(file)) == [("a#1.jpg", ("A cat .", "Cat")), ("b.jpg", ("dog",))]
    assert read_references(file) == {"a#1.jpg": ["A cat .", "Cat"], "b.jpg": ["dog"]}
    file.write_text("a.jpg\tA cat .\n")
    with pytest.raises(InputError, match=r"token\.txt:1: not a line of IMAGE#N<tab>caption"):
        read_pairs(file)


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


def shard(path: Path, members: dict[str, bytes]) -> Path:
    mode = "w:gz" if path.suffix == ".gz" else "w"
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


SAMPLES = {
    "000.jpg": b"one",
    "000.txt": b"a cat\n\n a  dog \n",
    "sub/001.json": json.dumps({"caption": "ein Bär"}).encode(),
    "sub/001.PNG": b"two",
    "sub/001.seg.png": b"a mask",
    "002.webp": b"three",
    "002.json": json.dumps({"captions": ["x", "y"], "width": 3}).encode(),
}


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_shards(tmp_path: Path, name: str):
    path = shard(tmp_path / name, SAMPLES)
    expected = [
        Pair(b"one", ("a cat", "a dog"), f"{name}/000"),
        Pair(b"two", ("ein Bär",), f"{name}/sub/001"),
        Pair(b"three", ("x", "y"), f"{name}/002"),
    ]
    assert read_pairs(path) == expected
    assert read_pairs(tmp_path) == expected
    assert not isinstance(stream_pairs(path), list), "an archive is never in memory as a whole"


def test_several_shards_in_order(tmp_path: Path):
    for number in (1, 0):
        shard(tmp_path / f"s{number}.tar", {"a.jpg": b"%d" % number, "a.txt": b"caption"})
    assert [pair.id for pair in read_pairs(f"{tmp_path}/s*.tar")] == ["s0.tar/a", "s1.tar/a"]


def test_samples_and_shards_that_are_broken(tmp_path: Path):
    members = {"a.jpg": b"1", "b.txt": b"no picture", "c.jpg": b"3", "c.json": b"{", "d.jpg": b"4", "d.txt": b"fine"}
    whole = shard(tmp_path / "a.tar", members)
    cut = tmp_path / "b.tar"
    cut.write_bytes(shard(cut, {"e.jpg": b"x" * 5000, "e.txt": b"lost"}).read_bytes()[:3000])
    files = PairFiles(tmp_path)
    assert [pair.captions for pair in files] == [("fine",)]
    messages = [str(error) for error in files.broken]
    assert len(messages) == 4
    for place, part in enumerate(("a: no caption", "b: captions without a picture", "c: a caption must be text")):
        assert f"{whole}/{part}" in messages[place]
    assert str(cut) in messages[3]
    with pytest.raises(InputError, match="without a picture"):
        read_pairs(tmp_path)


def test_captions_may_be_missing_where_they_are_not_required(tmp_path: Path):
    path = shard(tmp_path / "a.tar", {"a.jpg": b"1", "b.jpg": b"2", "b.json": b"{}", "c.jpg": b"3", "c.txt": b"three"})
    expected = [Pair(b"1", (), "a.tar/a"), Pair(b"2", (), "a.tar/b"), Pair(b"3", ("three",), "a.tar/c")]
    assert list(shard_pairs([path], captions_required=False)) == expected
    table = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"image": [b"1", b"2"], "caption": [None, "two"], "id": ["x", "y"]}), table
    )
    expected = [Pair(b"1", (), "x"), Pair(b"2", ("two",), "y")]
    assert list(parquet_pairs(table, tmp_path, captions_required=False)) == expected
    pyarrow.parquet.write_table(pyarrow.table({"image": ["1.png"]}), table)
    assert list(parquet_pairs(table, tmp_path, captions_required=False)) == [Pair(tmp_path / "1.png", (), "1.png")]


def test_pictures_beside_shards_are_not_passed_over(tmp_path: Path):
    shard(tmp_path / "backup.tar", {"a.jpg": b"1", "a.txt": b"caption"})
    (tmp_path / "b.png").write_bytes(b"2")
    with pytest.raises(InputError, match=r"pictures and archives \(backup\.tar\)"):
        read_pairs(tmp_path)
    assert len(read_pairs(tmp_path / "backup.tar")) == 1


def test_parquet_with_names_joins_rows(tmp_path: Path):
    table = pyarrow.table({"image": ["a.jpg", "b.jpg", "a.jpg"], "caption": ["one", "two", "three"]})
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    pairs = read_pairs(tmp_path / "p.parquet", images="/pictures")
    assert pairs == [
        Pair(Path("/pictures/a.jpg"), ("one", "three"), "a.jpg"),
        Pair(Path("/pictures/b.jpg"), ("two",), "b.jpg"),
    ]


def test_parquet_with_pictures_inside(tmp_path: Path):
    image = [{"bytes": b"1", "path": "x.jpg"}, {"bytes": b"2", "path": None}, {"bytes": None, "path": None}]
    table = pyarrow.table({"image": image, "captions": [["one", " two "], ["three"], ["four"]], "other": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    files = PairFiles(tmp_path / "p.parquet")
    assert list(files) == [Pair(b"1", ("one", "two"), "x.jpg"), Pair(b"2", ("three",), "p.parquet: row 1")]
    assert "row 2: no picture" in str(files.broken[0])
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "q.parquet")
    with pytest.raises(InputError, match="expected the columns image and caption; there are x"):
        read_pairs(tmp_path / "q.parquet")
    (tmp_path / "r.parquet").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a readable Parquet"):
        read_pairs(tmp_path / "r.parquet")


def test_karpathy_splits(tmp_path: Path):
    images = [
        {"filename": f"{n}.jpg", "filepath": "val2014", "split": split, "sentences": [{"raw": f" cap  {n}"}]}
        for n, split in enumerate(["train", "restval", "val", "test"])
    ]
    images.append({"filename": "broken.jpg", "split": "train", "sentences": [{"tokens": []}]})
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    files = PairFiles(path, images="/coco")
    assert [(pair.image, pair.captions) for pair in files] == [
        (Path("/coco/val2014/0.jpg"), ("cap 0",)),
        (Path("/coco/val2014/1.jpg"), ("cap 1",)),
    ]
    assert "image 4: expected filename" in str(files.broken[0])
    assert [pair.captions for pair in read_pairs(path, splits=["val", "test"])] == [("cap 2",), ("cap 3",)]
    with pytest.raises(InputError, match="no split dev; there are restval, test, train, val"):
        read_pairs(path, splits=["dev"])


def test_broken_lines_are_passed_over_when_they_are_collected(tmp_path: Path):
    lines = ['{"image": "a.jpg", "caption": "one"}', "{", '{"image": "b.jpg"}', '{"image": "c.jpg", "caption": 3}']
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines))
    files = PairFiles(path)
    assert len(files) == 1
    assert [str(error).partition(": ")[0] for error in files.broken] == [f"{path}:{n}" for n in (2, 3, 4)]
    content = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "x"}, {}]}
    coco = tmp_path / "coco.json"
    coco.write_text(json.dumps(content))
    files = PairFiles(coco)
    assert [pair.captions for pair in files] == [("x",)]
    assert "annotation 1" in str(files.broken[0])


def test_sentences(tmp_path: Path):
    text, lines, table = tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path / "a.csv"
    text.write_text("\ufeffa  cat\n\n a dog\n", encoding="utf-8")
    assert read_sentences(text) == [Sentence("a cat"), Sentence("a dog")]
    lines.write_text('{"caption": "x", "source": "s", "image": "i", "synthetic": true}\n{"captions": ["y", "z"]}\n')
    assert read_sentences(lines) == [Sentence("x", "s", "i", True), Sentence("y"), Sentence("z")]
    table.write_text("caption,image_id,synthetic\nx,7,false\n")
    assert read_sentences(table) == [Sentence("x", "", "7")]
    pyarrow.parquet.write_table(pyarrow.table({"caption": ["x"], "source": ["s"]}), tmp_path / "a.parquet")
    assert read_sentences(tmp_path / "a.parquet") == [Sentence("x", "s")]
    lines.write_text('{"words": "x"}')
    with pytest.raises(InputError, match=r"a\.jsonl:1: expected a caption"):
        read_sentences(lines)
    with pytest.raises(InputError, match="no such file"):
        read_sentences(tmp_path / "none.txt")


def claiming(size: int, name: str = "big.jpg", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of a member that is not there."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("name", ["big.jpg", "big.bin", ".hidden"])
@pytest.mark.parametrize("size", [10**12, 2**62])
def test_a_shard_ends_at_a_member_that_claims_too_much(tmp_path: Path, name: str, size: int):
    """To pass over it would take a read for every block it claims."""
    first = shard(tmp_path / "first.tar", {"a.jpg": b"one", "a.txt": b"caption"}).read_bytes()[:2048]
    (tmp_path / "bomb.tar").write_bytes(first + claiming(size, name) + bytes(4096))
    found: list[object] = []
    worker = threading.Thread(target=lambda: found.extend(shard_pairs([tmp_path / "bomb.tar"])), daemon=True)
    worker.start()
    worker.join(20)
    assert [type(item) for item in found] == [Pair, InputError]
    assert f"{name} ({size} bytes) is over the limit of 1024 MiB" in str(found[1])


@pytest.mark.parametrize(
    "content",
    [
        claiming(10**12, kind=tarfile.XHDTYPE),
        claiming(10**12, kind=tarfile.GNUTYPE_LONGNAME),
        claiming(512, kind=tarfile.GNUTYPE_SPARSE),
        claiming(512, kind=tarfile.XHDTYPE) + b"99999999999 x=y\n".ljust(512, b"\0"),
        claiming(1024, kind=tarfile.XHDTYPE)
        + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(1024, b"\0")
        + claiming(512)
        + b"9999999999".ljust(512, b"0"),
    ],
)
def test_broken_headers_of_a_shard_are_told(tmp_path: Path, content: bytes):
    (tmp_path / "odd.tar").write_bytes(content + bytes(1024))
    found = list(shard_pairs([tmp_path / "odd.tar"]))
    assert found
    assert all(isinstance(item, InputError) and "odd.tar" in str(item) for item in found)


def test_nested_json_in_a_shard_is_no_caption(tmp_path: Path):
    path = shard(tmp_path / "deep.tar", {"a.jpg": b"one", "a.json": b"[" * 200_000})
    assert [type(item) for item in shard_pairs([path])] == [InputError]
