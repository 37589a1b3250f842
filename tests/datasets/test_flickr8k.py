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
    with pytest.raises(InputError, match=r"dev\.txt is missing"):
        read_flickr8k(tmp_path, "dev")
