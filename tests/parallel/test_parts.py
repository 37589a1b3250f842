from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recap.datasets import read_pairs
from recap.encoders.images import read
from recap.errors import InputError
from recap.parallel.parts import LARGEST, SMALLEST, Record, find_parts, picture_parts


def records(source: object, **options: object) -> list[Record]:
    return [record for part in find_parts(str(source), **options) for record in part.records()]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["folder", "jsonl", "parquet", "tar"])
@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_parts_hold_what_recap_fit_reads(same_pairs: Callable[[str], Path], kind: str, place: str):
    path = same_pairs(kind)
    found = records(place.format(path), size=5)
    expected = read_pairs(path)
    assert [(r.id, r.captions, read(r.picture())) for r in found] == [
        (pair.id, pair.captions, read(pair.image)) for pair in expected
    ]
    assert not any(record.error for record in found)


def test_names_in_a_table_are_relative_to_it_or_to_another_folder(pairs_folder: Path, tmp_path: Path):
    (tmp_path / "pairs.csv").write_text("image,caption\nred0.png,a red wall\n")
    assert records(tmp_path / "pairs.csv")[0].image == str(tmp_path / "red0.png")
    assert records(tmp_path / "pairs.csv", images=str(pairs_folder))[0].image == str(pairs_folder / "red0.png")
    assert records(f"file://{tmp_path}/pairs.csv")[0].image == f"file://{tmp_path}/red0.png"


def test_a_line_that_cannot_be_used_is_a_record_with_an_error(tmp_path: Path):
    (tmp_path / "pairs.jsonl").write_text('{"image": "a.png", "caption": "one"}\nnonsense\n')
    good, bad = records(tmp_path / "pairs.jsonl")
    assert (good.captions, good.error) == (("one",), "")
    assert "pairs.jsonl:2" in bad.error
    assert not bad.has_picture


def test_pictures_without_captions_and_captions_without_pictures(pairs_folder: Path, tmp_path: Path):
    (tmp_path / "a.png").write_bytes((pairs_folder / "red0.png").read_bytes())
    assert [(r.id, r.captions, r.has_picture) for r in records(tmp_path)] == [("a.png", (), True)]
    (tmp_path / "captions.txt").write_text("one\n\n two  words \n")
    assert [(r.id, r.captions, r.has_picture) for r in records(tmp_path / "captions.txt")] == [
        ("captions.txt:1", ("one",), False),
        ("captions.txt:3", ("two words",), False),
    ]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_archives_without_captions(pairs_folder: Path, tmp_path: Path, kind: str):
    path, picture = tmp_path / f"silent.{kind}", (pairs_folder / "red0.png").read_bytes()
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            archive.add(pairs_folder / "red0.png", "red0.png")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"image": [picture]}), path)
    assert [(r.captions, r.picture(), r.error) for r in records(path)] == [((), picture, "")]
    if kind == "tar":
        assert [r.error for r in records(path, captions_required=True)] == [f"{path}/red0: no caption"]
    else:
        with pytest.raises(InputError, match="columns image and caption"):
            records(path, captions_required=True)


def test_pictures_and_archives_side_by_side_are_refused(same_pairs: Callable[[str], Path], tmp_path: Path):
    shutil.copy(same_pairs("tar"), tmp_path / "backup.tar")
    assert len(find_parts(str(tmp_path))) == 1
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"pictures and archives \(backup\.tar\)"):
        find_parts(str(tmp_path))
    assert len(find_parts(str(tmp_path / "*.tar"))) == 1


@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_vectors_that_were_written_are_no_input(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch):
    shard, here = f"000000-{'ab' * 8}.parquet", tmp_path / "pictures"
    for folder in (here, here / "vectors"):
        folder.mkdir()
        (folder / shard).write_bytes(b"")
    (here / "a.png").write_bytes(b"")
    (here / "vectors" / shard).rename(here / "vectors" / "somebody elses.parquet")
    with pytest.raises(InputError, match="pictures and archives"):
        find_parts(place.format(here), out=place.format(here / "vectors"))
    (here / "vectors" / "somebody elses.parquet").unlink()
    assert [r.id for r in records(place.format(here), out=place.format(here))] == ["a.png"]
    monkeypatch.chdir(here)
    (here / shard).rename(here / "vectors" / shard)
    assert [r.id for r in records(place.format(here), out="vectors")] == ["a.png"]


def test_the_digest_of_a_table_changes_with_its_pictures(tmp_path: Path):
    (tmp_path / "pairs.csv").write_text("image,caption\na.png,one\n")
    digests = [find_parts(str(tmp_path / "pairs.csv"))[0].digest for _ in range(2)]
    for content in (b"a picture", b"another picture"):
        (tmp_path / "a.png").write_bytes(content)
        digests.append(find_parts(str(tmp_path / "pairs.csv"))[0].digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_digest_changes_with_what_is_in_a_part(pairs_folder: Path, tmp_path: Path):
    for name in ("red0.png", "red0.txt"):
        (tmp_path / name).write_bytes((pairs_folder / name).read_bytes())
    digests = [find_parts(str(tmp_path))[0].digest for _ in range(2)]
    (tmp_path / "red0.txt").write_text("something else")
    digests.append(find_parts(str(tmp_path))[0].digest)
    (tmp_path / "red1.png").write_bytes(b"")
    digests.append(find_parts(str(tmp_path))[0].digest)
    assert len(dict.fromkeys(digests)) == 3
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("count", "size", "parts"), [(1, SMALLEST, 1), (SMALLEST + 1, SMALLEST, 2), (6400, 100, 64)])
def test_parts_are_neither_small_nor_many(tmp_path: Path, count: int, size: int, parts: int):
    (tmp_path / "captions.txt").write_text("\n".join(f"caption {number}" for number in range(count)))
    found = find_parts(str(tmp_path / "captions.txt"))
    assert (len(found), max(len(part.listed) for part in found)) == (parts, min(size, count))
    assert size <= LARGEST


def test_a_list_of_pictures_is_cut(tmp_path: Path):
    assert [len(part.listed) for part in picture_parts(map(str, range(70)), 32)] == [32, 32, 6]


def test_an_input_without_anything_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no pictures"):
        find_parts(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        find_parts(str(tmp_path / "nothing"))
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match=r"empty\.txt: no pictures, captions"):
        find_parts(str(tmp_path / "empty.txt"))
