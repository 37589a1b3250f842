from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap.encoders.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from recap.errors import InputError


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))


def test_normalisation_of_an_untouched_picture() -> None:
    picture = noise(16, 16)
    expected = (np.asarray(picture) / 255 - IMAGENET_MEAN) / IMAGENET_STD
    result = Preprocess(size=16)(picture)
    assert result.dtype == np.float32
    assert np.allclose(result, expected.transpose(2, 0, 1), atol=1e-6)


def test_shorter_side_is_at_its_size_already_so_only_the_centre_is_cut() -> None:
    picture = noise(30, 16)
    assert np.array_equal(np.asarray(Preprocess(size=16).scale(picture)), np.asarray(picture)[:, 7:23])


def test_squash_uses_the_whole_picture() -> None:
    picture = noise(30, 16)
    squashed = Preprocess(size=8, resize="squash", interpolation="bilinear").scale(picture)
    assert np.array_equal(np.asarray(squashed), np.asarray(picture.resize((8, 8), Image.Resampling.BILINEAR)))


def test_longest_fills_the_rest() -> None:
    result = np.asarray(Preprocess(size=8, resize="longest", fill=7).scale(Image.new("RGB", (16, 8), "white")))
    assert (result[2:6] == 255).all()
    assert (result[:2] == 7).all()
    assert (result[6:] == 7).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 40), st.booleans(), st.sampled_from(["shortest", "longest", "squash"]))
def test_every_shape_works(width: int, height: int, turned: bool, resize: str) -> None:
    size = (height, width) if turned else (width, height)
    assert Preprocess(size=12, resize=resize)(Image.new("RGB", size)).shape == (3, 12, 12)


def test_the_middle_of_a_strip_is_what_counts() -> None:
    strip = Image.new("RGB", (50_000, 2), "black")
    strip.paste("white", (24_000, 0, 26_000, 2))
    assert (np.asarray(Preprocess(size=12).scale(strip)) == 255).all()


def test_fingerprint_changes_with_every_setting() -> None:
    variants = [
        Preprocess(),
        Preprocess(size=225),
        Preprocess(mean=(0.5, 0.5, 0.5)),
        Preprocess(std=(0.5, 0.5, 0.5)),
        Preprocess(interpolation="bilinear"),
        Preprocess(resize="squash"),
        Preprocess(fill=1),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)}, {"interpolation": "best"}, {"resize": "stretch"}],
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Preprocess(**wrong)
