"""Choosing beta: by what is nearest, on images that were not fitted."""

from __future__ import annotations

import numpy as np
import pytest

from recap.alignment import LinearAlignment, search_beta
from recap.alignment.search import BETAS, _found
from recap.errors import InputError


def pairs(rotated: bool, n: int = 200, d: int = 12, noise: float = 0.8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.standard_normal((d, d)))[0] if rotated else np.eye(d)
    images, groups = random.standard_normal((n, d)), np.repeat(np.arange(n), 2)
    texts = images[groups] @ rotation.T + noise * random.standard_normal((2 * n, d))
    return images, texts, groups


def test_turned_spaces_want_the_map_and_equal_spaces_the_identity() -> None:
    assert search_beta(*pairs(rotated=True)) < 0.4
    assert search_beta(*pairs(rotated=False, n=50, d=32, noise=2)) > 0.4


def test_counts_equal_the_plain_way_of_counting() -> None:
    images, texts, groups = pairs(rotated=True, n=40)
    found = _found(LinearAlignment("beta-procrustes", beta=0.0).fit(images, texts, groups), images, texts, groups)
    for count, beta in zip(found, BETAS, strict=True):
        aligned = LinearAlignment("beta-procrustes", beta=beta).fit(images, texts, groups)
        nearest = (aligned.transform(images) @ aligned.transform_texts(texts).T).argmax(axis=1)
        assert count == (groups[nearest] == np.arange(40)).sum()


def test_the_answer_is_one_of_the_values_and_follows_the_seed() -> None:
    images, texts, groups = pairs(rotated=True, n=30)
    assert search_beta(images, texts, groups, seed=3) == search_beta(images, texts, groups, seed=3)
    assert search_beta(images, texts[::2]) in BETAS


def test_too_few_images_and_wrong_groups_are_refused() -> None:
    with pytest.raises(InputError, match="with 2 images"):
        search_beta(np.eye(2), np.eye(2))
    with pytest.raises(InputError, match="text 1 belongs to image 9"):
        search_beta(np.eye(5), np.eye(5), [0, 9, 2, 3, 4])
