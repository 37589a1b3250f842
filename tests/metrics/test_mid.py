import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis

from recap.errors import InputError
from recap.metrics.mid import mid


def pairs(seed, count, images=3, texts=4):
    rng = np.random.default_rng(seed)
    left = rng.normal(size=(count, images))
    return left, np.hstack([left, left[:, :1]])[:, :texts] + 0.5 * rng.normal(size=(count, texts))


def test_equals_the_definition():
    reference_images, references = pairs(0, 50)
    images, candidates = pairs(1, 7)
    together = np.hstack([reference_images, references])
    sides = [
        (reference_images, images, 1),
        (references, candidates, 1),
        (together, np.hstack([images, candidates]), -1),
    ]
    expected = np.zeros(7)
    for fitted, judged, sign in sides:
        covariance = np.cov(fitted, rowvar=False)
        inverse, mean = np.linalg.inv(covariance), fitted.mean(axis=0)
        distances = [mahalanobis(row, mean, inverse) ** 2 for row in judged]
        expected += sign * 0.5 * (np.linalg.slogdet(covariance)[1] + np.array(distances))
    result = mid(images, candidates, reference_images, references)
    np.testing.assert_allclose(result.per_image, expected, rtol=1e-9)
    assert result.value == pytest.approx(expected.mean())


def test_true_pairs_score_higher_than_shuffled_ones():
    images, texts = pairs(2, 400)
    assert mid(images, texts, images, texts).value > mid(images, texts[::-1], images, texts).value + 0.5


def test_float32_input_is_summed_in_float64():
    images, texts = pairs(3, 60)
    small = mid(*(side.astype(np.float32) for side in (images, texts, images, texts)))
    assert small.per_image.dtype == np.float64
    assert small.value == pytest.approx(mid(images, texts, images, texts).value, abs=1e-4)


def test_too_few_pairs_are_refused():
    images, texts = pairs(4, 7)
    with pytest.raises(InputError, match="more than 7 references"):
        mid(images, texts, images, texts)
    with pytest.raises(InputError, match="picture of each"):
        mid(images, texts, images[:5], texts)
    repeated = np.repeat(images[:2], 20, axis=0)
    with pytest.raises(InputError, match="the pictures is singular"):
        mid(repeated, pairs(5, 40)[1], repeated, pairs(5, 40)[1])
