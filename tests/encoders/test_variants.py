"""Several views of one picture: the mean of what the single encoder says about each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from recap.encoders import load_encoder

MakePicture = Callable[..., Image.Image]


def test_vector_is_the_direction_of_the_four_views(onnx_pair: Path, make_picture: MakePicture) -> None:
    single = load_encoder(f"onnx:{onnx_pair}").image
    views = load_encoder(f"onnx:{onnx_pair}@views,onnx:{onnx_pair}").image
    picture = make_picture(3, (60, 30))
    square = picture.resize((single.shorter_side,) * 2, Image.Resampling.BICUBIC)
    seen = [picture, ImageOps.mirror(picture), square, ImageOps.mirror(square)]
    total = single.encode_images(seen).sum(axis=0)
    row = views.encode_images([picture])[0]
    np.testing.assert_allclose(row, total / np.linalg.norm(total), atol=1e-4)
    assert np.abs(row - single.encode_images([picture])[0]).max() > 3e-3
    np.testing.assert_allclose(row, views.encode_images([ImageOps.mirror(picture)])[0], atol=1e-6)


def test_views_keep_their_pair_and_their_name(onnx_pair: Path) -> None:
    encoder = load_encoder(f"onnx:{onnx_pair}@views")
    assert encoder.name == f"onnx:{onnx_pair}@views,onnx:{onnx_pair}"
    assert load_encoder(encoder.name).image.fingerprint == encoder.image.fingerprint
    assert encoder.image.fingerprint != load_encoder(f"onnx:{onnx_pair}").image.fingerprint


def test_views_beside_a_single_one(onnx_pair: Path, make_picture: MakePicture) -> None:
    name = f"onnx:{onnx_pair}"
    joined = load_encoder(f"{name}@views+{name},{name}").image
    picture = make_picture(5, (30, 50))
    expected = [load_encoder(f"{one},{name}").encode_images([picture])[0] for one in (f"{name}@views", name)]
    np.testing.assert_allclose(joined.encode_images([picture])[0], np.concatenate(expected) / np.sqrt(2), atol=1e-6)


def test_bare_texts_are_read_up_to_their_last_word(onnx_pair: Path) -> None:
    whole = load_encoder(f"onnx:{onnx_pair}")
    bare = load_encoder(f"onnx:{onnx_pair}@views,onnx:{onnx_pair}@bare")
    assert bare.text.fingerprint != whole.text.fingerprint
    rows = bare.encode_texts(["a red dog .", "a red dog", "..."])
    np.testing.assert_array_equal(rows, whole.encode_texts(["a red dog", "a red dog", "..."]))
    assert np.abs(whole.encode_texts(["a red dog ."]) - rows[0]).max() > 1e-3


def test_joined_texts_are_unit_vectors_side_by_side(onnx_pair: Path) -> None:
    name = f"onnx:{onnx_pair}"
    whole, joined = load_encoder(name), load_encoder(f"{name},{name}@bare+{name}")
    texts = ["a red dog .", "a red dog", "two cats"]
    rows = joined.encode_texts(texts)
    parts = [load_encoder(f"{name},{name}@bare").encode_texts(texts), whole.encode_texts(texts)]
    np.testing.assert_allclose(rows, np.concatenate(parts, axis=1) / np.sqrt(2), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert joined.text.dimension == 2 * whole.text.dimension == rows.shape[1]
    assert not joined.shares_space
    assert joined.text.fingerprint not in (
        whole.text.fingerprint,
        load_encoder(f"{name},{name}+{name}").text.fingerprint,
    )
    joined.encode_texts(["word " * 600])
    assert joined.text.truncated == 1
    joined.text.truncated = 0
    assert joined.text.truncated == 0
