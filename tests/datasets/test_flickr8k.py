from pathlib import Path

import pytest

from recap.datasets import read_flickr8k
from recap.errors import InputError


def test_pairs_of_a_split_in_its_order(tmp_path: Path):
    (tmp_path / "captions.token.txt").write_text("a.jpg#0\tA dog .\nb.jpg#0\tA  cat .\na.jpg#1\tDog\nc.jpg#0\tA cow\n")
    (tmp_path / "train.txt").write_text("b.jpg\na.jpg\nnone.jpg\n")
    pairs = read_flickr8k(tmp_path, "train")
    assert [(pair.id, pair.captions) for pair in pairs] == [("b.jpg", ("A cat .",)), ("a.jpg", ("A dog .", "Dog"))]
    assert pairs[0].image == tmp_path / "images" / "b.jpg"
    with pytest.raises(InputError, match=r"Flickr_8k\.devImages\.txt is missing.*hockenmaier"):
        read_flickr8k(tmp_path, "dev")
    with pytest.raises(InputError, match="Flickr8k has no split 'val'; there are train, dev, test"):
        read_flickr8k(tmp_path, "val")


def test_the_names_of_the_published_archives_are_known(tmp_path: Path):
    (tmp_path / "Flicker8k_Dataset").mkdir()
    (tmp_path / "Flickr8k.token.txt").write_text("a.jpg#0\tA dog .\na.jpg.1#0\tNobody's\nb.jpg#0\tA cat\n")
    (tmp_path / "Flickr_8k.testImages.txt").write_text("a.jpg\n")
    (pair,) = read_flickr8k(tmp_path, "test")
    assert (pair.image, pair.captions) == (tmp_path / "Flicker8k_Dataset" / "a.jpg", ("A dog .",))
    with pytest.raises(
        InputError, match=r"Flickr8k\.token\.txt is missing: it belongs to Flickr8k, which is found here"
    ):
        read_flickr8k(tmp_path / "nowhere", "train")
