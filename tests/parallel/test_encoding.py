from __future__ import annotations

from pathlib import Path

import pytest

from recap.encoders import Encoder
from recap.errors import ImageError
from recap.parallel import encoding
from recap.parallel.encoding import in_parts
from recap.parallel.runners import LocalRunner
from recap.types import Pair


class Elsewhere(LocalRunner):
    """Does as if others did the work, and brings results in another order."""

    remote = True

    def map(self, prepare, items, device="cpu"):
        return reversed(list(super().map(prepare, items, device)))


def test_pictures_come_in_their_order(pairs: list[Pair], encoder: Encoder, tmp_path: Path):
    images = [*(pair.image for pair in pairs), tmp_path / "nothing.png", *(pair.image for pair in pairs * 8)]
    found = list(in_parts(encoder, Elsewhere()).encode_each(images))
    assert len(images) > 2 * encoding.IMAGES
    for one, other in zip(found, encoder.encode_each(images), strict=True):
        assert str(one) == str(other) if isinstance(one, ImageError) else (one == other).all()
    with pytest.raises(ImageError, match="no such file"):
        in_parts(encoder, Elsewhere()).encode_images(images)


def test_texts_come_in_their_order_and_cut_ones_are_counted(encoder: Encoder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "TEXTS", 3)
    texts = ["a red wall", "the wall is blue", "wall " * 40, "a green wall", "green", "wall " * 50, "a", "the"]
    parts = in_parts(encoder, Elsewhere())
    assert (parts.encode_texts(texts) == encoder.encode_texts(texts)).all()
    assert parts.text.truncated == 2
    assert (parts.encode_texts(texts[:3]) == encoder.encode_texts(texts[:3])).all()
    assert parts.text.truncated == 3


def test_without_others_the_encoder_stays(encoder: Encoder):
    assert in_parts(encoder, LocalRunner()) is encoder
