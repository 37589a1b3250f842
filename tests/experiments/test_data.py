"""Splits and the maps fitted to them, against numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from recap.errors import InputError
from recap.experiments.data import Split, join_frames
from recap.types import Pair, Vectors


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def split_of(images: np.ndarray, texts: np.ndarray, owners: Sequence[int], frames: Vectors | None = None) -> Split:
    counts = np.bincount(owners)
    captions = tuple(tuple("x" * count) for count in counts)
    ids = tuple(map(str, range(len(images))))
    return Split("x", ids, captions, images.astype(np.float32), texts.astype(np.float32), frames=frames)


def test_zero_shot_is_the_plain_cosine() -> None:
    """The paper's ZS is the encoder as it is: no mean is subtracted, whatever the training pairs are."""
    random = np.random.default_rng(0)
    images, texts = unit(random.standard_normal((6, 4)) + 3), unit(random.standard_normal((12, 4)) - [5, 0, 0, 0])
    fitted = split_of(images, texts, np.repeat(np.arange(6), 2)).fit("identity")
    new_images, new_texts = random.standard_normal((5, 4)), random.standard_normal((7, 4))
    found = fitted.transform(new_images) @ fitted.transform_texts(new_texts).T
    np.testing.assert_allclose(found, unit(new_images) @ unit(new_texts).T, atol=1e-6)


@pytest.fixture
def videos() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four frames of each of thirty videos, and some captions of each."""
    random = np.random.default_rng(1)
    owners = np.repeat(np.arange(30), random.integers(1, 4, 30))
    frames = unit(random.standard_normal((120, 5)) + 1).reshape(30, 4, 5)
    texts = unit(
        frames.mean(axis=1)[owners] @ random.standard_normal((5, 6)) + random.standard_normal((len(owners), 6))
    )
    return frames, texts, owners


@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_every_frame_is_paired_with_all_captions(videos, method: str) -> None:
    """The map is that of the pairs (frame, caption) written out one by one."""
    frames, texts, owners = videos
    pairs = [(frame, text) for video in range(30) for frame in frames[video] for text in texts[owners == video]]
    images, captions = (np.array(side) for side in zip(*pairs, strict=True))
    f, e = images - images.mean(axis=0), captions - captions.mean(axis=0)
    if method == "ols":
        expected = np.linalg.lstsq(f, e, rcond=None)[0].T
    else:
        u, _, vt = np.linalg.svd(e.T @ f, full_matrices=False)
        expected = u @ vt
    means = unit(frames.mean(axis=1))
    fitted = split_of(means, texts, owners, frames.transpose(1, 0, 2).astype(np.float32)).fit(method)
    np.testing.assert_allclose(fitted.W_, expected, atol=2e-4)
    np.testing.assert_allclose(fitted.image_mean_, images.mean(axis=0), atol=1e-5)
    of_means = split_of(means, texts, owners).fit(method)
    assert np.linalg.norm(of_means.W_ - expected) > 0.02 * np.linalg.norm(expected), "means of frames are not the same"


def test_gradient_methods_see_the_same_pairs(videos) -> None:
    frames, texts, owners = videos
    split = split_of(unit(frames.mean(axis=1)), texts, owners, frames.transpose(1, 0, 2).astype(np.float32))
    order = np.concatenate([owners + 30 * frame for frame in range(4)])
    flat = split_of(frames.transpose(1, 0, 2).reshape(120, 5), np.tile(texts, (4, 1)), order)
    np.testing.assert_allclose(split.fit("it").W_, flat.fit("it").W_, atol=1e-5)
    assert split.first(7).frames.shape == (4, 7, 5)


def test_a_video_is_the_mean_of_its_frames_and_keeps_them() -> None:
    rows = unit(np.random.default_rng(2).standard_normal((7, 3))).astype(np.float32)
    pairs = [
        Pair(f"{video}/{n}.jpg", ("a",), f"{video}#{n}")
        for video, count in (("v", 3), ("w", 1), ("x", 3))
        for n in range(count)
    ]
    kept, means, frames = join_frames(pairs, rows, 3)
    assert [(pair.id, pair.image) for pair in kept] == [("v", "v/0.jpg"), ("x", "x/0.jpg")]
    np.testing.assert_allclose(means, unit(np.stack([rows[:3].sum(axis=0), rows[4:].sum(axis=0)])), atol=1e-6)
    np.testing.assert_array_equal(frames, np.stack([rows[:3], rows[4:]], axis=1))
    with pytest.raises(InputError, match="no video has all of its 4 frames"):
        join_frames(pairs, rows, 4)
