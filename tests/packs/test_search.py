from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.encoders.cache import VectorCache
from recap.errors import InputError
from recap.packs.search import PictureSearch


@pytest.fixture
def photos(new_pictures: dict[str, Path], tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for colour, path in new_pictures.items():
        shutil.copy(path, folder / ("deep" if colour == "blue" else "") / path.name)
    (folder / "torn.png").write_bytes(b"no picture")
    return folder


def test_the_picture_that_a_text_describes_comes_first(pack_folder: Path, photos: Path):
    captioner = ReCap.from_pretrained(pack_folder)
    index = captioner.index(photos)
    assert [str(problem).partition(":")[0] for problem in index.problems] == [str(photos / "torn.png")]
    for colour in ("red", "blue"):
        found = captioner.search(f"a {colour} wall", index, 2)
        assert Path(found[0].path).stem == colour
        assert found[0].similarity > found[1].similarity


def test_similarities_are_aligned_cosines(pack_folder: Path, photos: Path):
    captioner = ReCap.from_pretrained(pack_folder)
    text = captioner.alignment.transform_texts(captioner.encoder.encode_texts(["a red wall"]))[0]
    for item in captioner.search("a red wall", photos, 3):
        expected = captioner.alignment.transform(captioner.encoder.encode_images([item.path]))[0] @ text
        np.testing.assert_allclose(item.similarity, expected, atol=1e-6)


def test_a_second_search_reads_nothing_but_what_has_changed(pack_folder: Path, photos: Path, tmp_path: Path):
    cache = tmp_path / "vectors.sqlite"
    search = PictureSearch.load(pack_folder)
    first = search.index(photos, cache=cache)
    blind = PictureSearch(search.alignment, search.image_fingerprint, _refuse, search.text_side)
    (photos / "torn.png").unlink()
    again = blind.index(photos, cache=cache)
    assert again.paths == first.paths
    np.testing.assert_array_equal(again.vectors, first.vectors)
    shutil.copyfile(photos / "red.png", photos / "green.png")
    with pytest.raises(AssertionError, match="read a picture"):
        blind.index(photos, cache=cache)
    changed = search.index(photos, cache=cache)
    assert {Path(item.path).stem for item in search.search("a red wall", changed, 2)} == {"red", "green"}


@pytest.fixture
def kept_points(monkeypatch: pytest.MonkeyPatch, photos: Path) -> Path:
    """The pictures of a folder that count as many, and can all be read."""
    monkeypatch.setattr("recap.packs.search.MANY", 2)
    (photos / "torn.png").unlink()
    return photos


def test_points_of_many_pictures_are_taken_as_they_were_written(
    pack_folder: Path, kept_points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    search, cache = PictureSearch.load(pack_folder), tmp_path / "vectors.sqlite"
    first = search.index(kept_points, cache=cache)
    monkeypatch.setattr("recap.packs.search.VectorCache", _refuse)
    again = search.index(kept_points, cache=cache)
    assert again.paths == first.paths
    np.testing.assert_array_equal(again.vectors, first.vectors)


@pytest.mark.parametrize("change", ["a picture", "the map", "the file", "its end", "another folder"])
def test_points_of_anything_else_are_not_taken(pack_folder: Path, kept_points: Path, tmp_path: Path, change: str):
    search, cache = PictureSearch.load(pack_folder), tmp_path / "vectors.sqlite"
    search.index(kept_points, cache=cache)
    (file,) = tmp_path.glob("points-*.f4")
    before = content = file.read_bytes()
    if change == "a picture":
        shutil.copyfile(kept_points / "deep" / "blue.png", kept_points / "red.png")
    elif change == "the map":
        search.alignment.W_ = -search.alignment.W_
    elif change == "the file":
        content = before[:-9] + bytes([before[-9] ^ 1]) + before[-8:]
    elif change == "its end":
        content = before[:-4]
    file.write_bytes(content)
    if change == "another folder":
        kept_points = kept_points.rename(tmp_path / "moved")
    expected = search.index(kept_points)
    np.testing.assert_array_equal(search.index(kept_points, cache=cache).vectors, expected.vectors)
    assert (file.read_bytes() == before) == (change in ("the file", "its end", "another folder"))


def test_a_folder_in_which_nothing_can_be_written_is_searched_all_the_same(
    pack_folder: Path, kept_points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    search, cache = PictureSearch.load(pack_folder), tmp_path / "vectors.sqlite"

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("recap.packs.search.atomic_write", refuse)
    assert len(search.index(kept_points, cache=cache).paths) == len(search.index(kept_points).paths) > 1


def _refuse(*given: object) -> None:
    raise AssertionError("it read a picture")


def test_vectors_of_another_encoder_are_not_taken(pack_folder: Path, photos: Path, tmp_path: Path):
    cache = tmp_path / "vectors.sqlite"
    search = PictureSearch.load(pack_folder)
    search.index(photos, cache=cache)
    with VectorCache(cache) as store:
        paths = [str(photos / "red.png")]
        assert len(store.get_files(search.image_fingerprint, paths, 4)) == 1
        assert store.get_files("00" * 32, paths, 4) == {}


def test_what_cannot_be_asked(pack_folder: Path, photos: Path, tmp_path: Path):
    captioner = ReCap.from_pretrained(pack_folder)
    with pytest.raises(InputError, match="empty text"):
        captioner.search(" ", photos)
    with pytest.raises(InputError, match="k must be"):
        captioner.search("red", photos, 0)
    (tmp_path / "none").mkdir()
    assert captioner.search("red", tmp_path / "none") == ()
