from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis

from recap.alignment import LinearAlignment
from recap.errors import InputError
from recap.metrics import clip
from recap.metrics.clip import mid
from recap.metrics.corpus import MetricWarning


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(30, 12))
    images = unit(shared + 0.8 * rng.normal(size=(30, 12)) + 1)
    texts = unit(shared + 0.8 * rng.normal(size=(30, 12)) - 0.5)
    counts = rng.integers(1, 5, 30)
    first = np.concatenate([[0], np.cumsum(counts)])
    references = unit(np.repeat(texts, counts, axis=0) + rng.normal(size=(counts.sum(), 12)))
    return images, texts, references, first


def by_hand(rows):
    """Cosine with the image, and the largest with a reference, one candidate at a time in float64."""
    images, texts, references, first = (np.asarray(part, dtype=np.float64) for part in rows)
    first = first.astype(int)
    cosine = np.array([image @ text for image, text in zip(images, texts, strict=True)])
    best = np.array([max(references[first[i] : first[i + 1]] @ text) for i, text in enumerate(texts)])
    return cosine, best


def test_clip_s_and_refclip_s(rows):
    cosine, best = by_hand(rows)
    expected = 2.5 * np.maximum(cosine, 0)
    assert (cosine < 0).any()
    np.testing.assert_allclose(clip.clip_s(*rows[:2]), expected, atol=1e-6)
    np.testing.assert_allclose(clip.refclip_s(*rows), harmonic(expected, best), atol=2e-6)
    np.testing.assert_allclose(clip.clip_score_100(*rows[:2]), 40 * expected, atol=1e-4)


def harmonic(one, best):
    """As RefCLIP-S is defined: the reference is clipped at zero, and nothing is the mean of zeros."""
    other = np.maximum(best, 0)
    return np.array([2 * a * b / (a + b) if a + b > 0 else 0.0 for a, b in zip(one, other, strict=True)])


def test_a_reference_on_the_other_side_counts_as_none(rows):
    images, texts, references, first = rows
    assert (by_hand((images, texts, -references, first))[1] < 0).any()
    expected = 2.5 * np.maximum(by_hand(rows)[0], 0)
    wanted = harmonic(expected, by_hand((images, texts, -references, first))[1])
    found = clip.refclip_s(images, texts, -references, first)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert found.min() >= 0


def test_distribution_normalisation(rows):
    images, texts, references, first = rows
    image_mean, text_mean = images.mean(axis=0), texts.mean(axis=0)
    expected = ((images - 0.25 * image_mean) * (texts - 0.25 * text_mean)).sum(axis=1)
    np.testing.assert_allclose(clip.clip_dn(images, texts, image_mean, text_mean), expected, atol=1e-6)
    with_reference = clip.clip_dn_ref(images, texts, references, first, image_mean, text_mean)
    np.testing.assert_allclose(with_reference, expected + 0.25 * by_hand(rows)[1], atol=1e-6)


@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_aligned_metrics_are_cosines_after_centring_and_map(rows, method):
    images, texts, references, first = rows
    alignment = LinearAlignment(method).fit(images, texts)
    mapped = unit((images - images.mean(axis=0)) @ alignment.W_.T)
    centred = unit(texts - texts.mean(axis=0))
    cosine, best = by_hand((mapped, centred, unit(references - texts.mean(axis=0)), first))
    plain, best = np.maximum(cosine, 0), np.maximum(best, 0)
    np.testing.assert_allclose(clip.aclip_s(images, texts, alignment), plain, atol=1e-6)
    total = plain + best
    harmonic = np.divide(2 * plain * best, total, out=np.zeros_like(total), where=total > 0)
    np.testing.assert_allclose(clip.refaclip_s(images, texts, references, first, alignment), harmonic, atol=1e-6)


def test_scores_are_float32(rows):
    alignment = LinearAlignment("ols").fit(*rows[:2])
    for scores in (clip.clip_s(*rows[:2]), clip.refclip_s(*rows), clip.refaclip_s(*rows, alignment)):
        assert scores.dtype == np.float32


def test_each_distinct_picture_and_text_is_encoded_once(tmp_path: Path, monkeypatch, toy, clip_like, paint):
    monkeypatch.setattr(clip, "BLOCK", 2)
    red, green = paint("red.png", "red"), paint("green.png", "green")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    pictures = [red, green, tmp_path / "broken.png", None]
    index = np.array([0, 0, 1, 2, 3, 1])
    candidates = ["red", "green", "green", "blue", "red", "red green"]
    references = [["red", "green"], ["green"], ["blue"], ["red"]]
    judged = clip.Judged(clip_like, candidates, index, pictures, references)
    plain = judged.score(judged.images, judged.texts(), lambda i, t, r, f: clip.cosines(i, t))
    best = judged.score(judged.images, judged.texts(), lambda i, t, r, f: clip.best_reference(t, r, f))
    vector, (of_red, of_green) = toy.vector, toy.encode_images([red, green])
    toy.seen_images.clear()
    expected = [of_red @ vector("red"), of_red @ vector("green"), of_green @ vector("green")]
    np.testing.assert_allclose(plain[[0, 1, 2]], expected, atol=1e-6)
    np.testing.assert_allclose(plain[5], of_green @ vector("red green"), atol=1e-6)
    np.testing.assert_allclose(best[[0, 1, 2, 5]], [1, 1, 1, vector("red green") @ vector("green")], atol=1e-6)
    assert np.isnan(plain[[3, 4]]).all()
    assert judged.scored.tolist() == [0, 1, 2, 5]
    assert len(judged.problems) == 1
    judged.score(judged.images, judged.texts("A photo depicts "), lambda i, t, r, f: clip.clip_s(i, t))
    distinct = ("red", "green", "blue", "red green")
    assert sorted(toy.seen_texts) == sorted(prefix + text for prefix in ("", "A photo depicts ") for text in distinct)
    assert toy.seen_images == []
    images, texts = judged.reference_pairs()
    np.testing.assert_allclose(images, [of_red, of_red, of_green], atol=1e-6)
    np.testing.assert_allclose(texts, [vector("red"), vector("green"), vector("green")], atol=1e-6)
    mean = np.mean([vector(text) for texts in references for text in texts], axis=0)
    np.testing.assert_allclose(judged.mean_text(), mean, atol=1e-6)


def test_texts_that_were_cut_are_counted(clip_like, toy, paint):
    judged = clip.Judged(clip_like, ["red", "green"], np.array([0, 0]), [paint("a.png", "red")], None)
    encode = toy.encode_texts

    def cutting(texts, *, progress=False):
        toy.truncated += 1
        return encode(texts)

    toy.encode_texts = cutting
    with pytest.warns(MetricWarning, match="1 of 2 texts are longer than toy reads"):
        judged.texts()


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
