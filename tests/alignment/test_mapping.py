"""The estimator against numpy on raw rows, and its manners."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from recap.alignment import METHODS, LinearAlignment, PairStatistics, search_beta
from recap.alignment.mapping import BETAS, _count_hits
from recap.errors import InputError


def unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def related(n: int, d_image: int, d_text: int, captions: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, texts that follow from them up to noise, and the image of each text."""
    random = np.random.default_rng(n)
    images = random.standard_normal((n, d_image)) + 1
    groups = np.repeat(np.arange(n), captions)
    texts = images[groups] @ random.standard_normal((d_image, d_text)) + random.standard_normal((len(groups), d_text))
    return images.astype(np.float32), texts.astype(np.float32), groups


def centred(rows: np.ndarray) -> np.ndarray:
    rows = unit(rows)
    return rows - rows.mean(axis=0)


@pytest.mark.parametrize(("d_text", "d_image"), [(16, 16), (24, 16)])
@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_a_known_rotation_is_recovered(d_text: int, d_image: int, method: str) -> None:
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.standard_normal((d_text, d_text)))[0][:, :d_image]
    images = random.standard_normal((3000, d_image)).astype(np.float32)
    fitted = LinearAlignment(method).fit(images, (images @ rotation.T).astype(np.float32))
    assert np.abs(fitted.W_ - rotation).max() < 1e-6
    assert fitted.score(images, images @ rotation.T) == pytest.approx(1, abs=1e-6)


def test_a_map_into_fewer_dimensions_has_orthonormal_rows() -> None:
    images, texts, _ = related(500, 12, 7)
    fitted = LinearAlignment().fit(images, texts)
    assert np.allclose(fitted.W_ @ fitted.W_.T, np.eye(7), atol=1e-6)


@pytest.mark.parametrize("n", [10, 39, 40, 41, 3000])
def test_ols_equals_lstsq_also_with_fewer_pairs_than_dimensions(n: int) -> None:
    images, texts, _ = related(n, 40, 7)
    wanted = np.linalg.lstsq(centred(images), centred(texts), rcond=1e-9)[0].T
    assert np.allclose(LinearAlignment("ols").fit(images, texts).W_, wanted, atol=2e-6 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("method", METHODS)
def test_groups_and_weights_equal_repetition(method: str) -> None:
    images, texts, groups = related(50, 6, 6, captions=3)
    weights = np.random.default_rng(0).integers(0, 3, len(texts))
    again = np.repeat(np.arange(len(texts)), weights)
    one = LinearAlignment(method).fit(images, texts, groups, sample_weight=weights)
    other = LinearAlignment(method).fit(images[groups[again]], texts[again])
    assert np.allclose(one.W_, other.W_, atol=1e-5)
    assert np.allclose(one.image_mean_, other.image_mean_, atol=1e-6)
    assert one.n_pairs_ == other.n_pairs_ == weights.sum()


@pytest.mark.parametrize("method", METHODS)
def test_partial_fits_shards_and_statistics_equal_one_fit(method: str) -> None:
    images, texts, groups = related(60, 6, 6, captions=2)
    whole = LinearAlignment(method).fit(images, texts, groups)
    parts = LinearAlignment(method).partial_fit(images[:25], texts[:50], groups[:50])
    parts.partial_fit(images[25:], texts[50:], groups[50:] - 25)
    solved = LinearAlignment.from_statistics(whole.statistics_, method)
    assert np.allclose(parts.W_, whole.W_, atol=1e-6)
    assert np.array_equal(solved.W_, whole.W_)


def test_partial_fit_leaves_given_statistics_alone() -> None:
    images, texts, _ = related(60, 6, 4)
    statistics = PairStatistics.zeros(6, 4).update(images[:30], texts[:30])
    more = LinearAlignment.from_statistics(statistics).partial_fit(images[30:], texts[30:])
    assert (statistics.pairs, more.n_pairs_) == (30, 60)


def test_fit_forgets_what_was_fitted_before() -> None:
    images, texts, _ = related(60, 6, 6)
    again = LinearAlignment().fit(images[:30], texts[:30]).fit(images[30:], texts[30:])
    assert np.array_equal(again.W_, LinearAlignment().fit(images[30:], texts[30:]).W_)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("center", [True, False])
def test_dot_products_are_aligned_cosines(method: str, center: bool) -> None:
    images, texts, groups = related(50, 6, 6, captions=2)
    fitted = LinearAlignment(method, center=center).fit(images, texts, groups)
    f, e = unit(images)[groups], unit(texts)
    if center:
        f, e = f - f.mean(axis=0), e - e.mean(axis=0)
    mapped = f @ fitted.W_.T.astype(np.float64)
    cosines = (unit(mapped) * unit(e)).sum(axis=1)
    found = (fitted.transform(images)[groups] * fitted.transform_texts(texts)).sum(axis=1)
    assert np.allclose(found, cosines, atol=1e-5)
    assert fitted.score(images, texts, groups) == pytest.approx(cosines.mean(), abs=1e-5)
    assert fitted.transform(images).dtype == np.float32


def test_identity_without_centring_is_the_plain_cosine() -> None:
    images, texts, _ = related(20, 6, 6)
    fitted = LinearAlignment("identity", center=False).fit(images, texts)
    found = fitted.transform(images) @ fitted.transform_texts(texts).T
    assert np.allclose(found, unit(images) @ unit(texts).T, atol=1e-6)


def test_ridge_and_beta_are_used() -> None:
    images, texts, _ = related(40, 6, 6)
    f, e = centred(images), centred(texts)
    wanted = np.linalg.solve(f.T @ f + 0.3 * np.trace(f.T @ f) / 6 * np.eye(6), f.T @ e).T
    assert np.allclose(LinearAlignment("ridge", ridge=0.3).fit(images, texts).W_, wanted, atol=1e-5)
    w = LinearAlignment().fit(images, texts).W_
    blended = LinearAlignment("beta-procrustes", beta=0.25).fit(images, texts).W_
    assert np.allclose(blended, 0.75 * w + 0.25 * np.eye(6), atol=1e-6)


def test_transform_takes_vectors_of_any_length() -> None:
    images, texts, _ = related(40, 6, 4)
    fitted = LinearAlignment().fit(images, texts)
    assert np.allclose(fitted.transform(5 * images), fitted.transform(images), atol=1e-6)
    assert np.allclose(fitted.transform_texts(5 * texts), fitted.transform_texts(texts), atol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_transformed_row_does_not_depend_on_its_batch(order: str) -> None:
    images, texts, _ = related(300, 96, 80)
    fitted = LinearAlignment().fit(images, texts)
    for transform, rows in ((fitted.transform, images), (fitted.transform_texts, texts)):
        alone = np.concatenate([transform(row[None]) for row in rows[:40]])
        for size in (2, 3, 7, 31, 32, 40, 300):
            batch = np.array(rows[:size], order=order)  # type: ignore[call-overload]
            assert np.array_equal(transform(batch)[:40], alone[:size])


def test_an_image_equal_to_the_mean_stays_zero() -> None:
    angles = np.array([-0.3, 0.3])
    images = np.column_stack([np.cos(angles), np.sin(angles), [0, 0]])
    fitted = LinearAlignment("identity").fit(np.vstack([images, images]), np.vstack([images, -images]))
    fitted.image_mean_ = unit(np.array([[1.0, 2.0, 3.0]]))[0].astype(np.float32)
    assert not fitted.transform([[3.0, 6.0, 9.0]]).any()


def test_settings_are_kept_as_given_and_can_be_cloned() -> None:
    original = LinearAlignment("ridge", ridge=0.5, beta=0.1, center=False)
    copy = LinearAlignment(**original.get_params())
    assert copy.get_params() == {"method": "ridge", "ridge": 0.5, "beta": 0.1, "center": False, "seed": 0}
    assert copy.set_params(method="ols") is copy
    assert copy.method == "ols"
    assert repr(copy) == "LinearAlignment(method='ols', ridge=0.5, beta=0.1, center=False, seed=0)"
    with pytest.raises(InputError, match="unknown setting gamma"):
        copy.set_params(gamma=1)


@pytest.mark.parametrize("method", METHODS)
def test_save_and_load(tmp_path: Path, method: str) -> None:
    images, texts, _ = related(40, 6, 6)
    statistics = PairStatistics.zeros(6, 6, image_encoder="eye", text_encoder="pen").update(images, texts)
    saved = LinearAlignment.from_statistics(statistics, method, ridge=0.2, beta=0.4)
    saved.save(tmp_path / "map.safetensors")
    loaded = LinearAlignment.load(tmp_path / "map.safetensors")
    assert loaded.get_params() == saved.get_params()
    assert (loaded.n_pairs_, loaded.image_encoder_, loaded.text_encoder_) == (40, "eye", "pen")
    assert np.array_equal(loaded.transform(images), saved.transform(images))
    assert np.array_equal(loaded.transform_texts(texts), saved.transform_texts(texts))
    with pytest.raises(InputError, match="read from a file holds no statistics"):
        loaded.partial_fit(images, texts)


def test_what_cannot_be_done_is_said() -> None:
    images, texts, _ = related(40, 6, 4)
    with pytest.raises(InputError, match="not fitted yet"):
        LinearAlignment().transform(images)
    with pytest.raises(InputError, match="not fitted yet"):
        LinearAlignment().save("never-written")
    with pytest.raises(InputError, match="unknown method 'magic'; known: procrustes, ols"):
        LinearAlignment("magic").fit(images, texts)
    with pytest.raises(InputError, match="dimensions are 6 and 4"):
        LinearAlignment("identity").fit(images, texts)
    with pytest.raises(InputError, match="40 images but 39 texts"):
        LinearAlignment().fit(images, texts[:-1])
    with pytest.raises(InputError, match="no vectors"):
        LinearAlignment().fit(images[:0], texts[:0])
    lean = PairStatistics.zeros(6, 4, gram=False).update(images, texts)
    with pytest.raises(InputError, match="need F'F"):
        LinearAlignment.from_statistics(lean, "ols")


def test_bad_rows_are_named_when_transforming() -> None:
    images, texts, _ = related(40, 6, 4)
    fitted = LinearAlignment().fit(images, texts)
    images[3] = np.nan
    texts[5] = 0
    with pytest.raises(InputError, match="images: row 3 holds NaN"):
        fitted.transform(images)
    with pytest.raises(InputError, match="texts: row 5 holds only zeros"):
        fitted.transform_texts(texts)
    with pytest.raises(InputError, match="images: expected vectors of 6 numbers, got 4"):
        fitted.transform(texts)
    with pytest.raises(InputError, match="3 images but 4 texts"):
        fitted.score(images[:3], texts[:4])


@pytest.mark.parametrize("method", ["procrustes", "ols", "ridge", "beta-procrustes"])
def test_pairs_that_say_nothing_are_refused(method: str) -> None:
    images, texts, _ = related(5, 6, 6)
    with pytest.raises(InputError, match="do not vary together"):
        LinearAlignment(method).fit(images[:1], texts, [0] * 5)
    assert LinearAlignment(method, center=False).fit(images[:1], texts, [0] * 5).n_pairs_ == 5


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
    found = _count_hits(LinearAlignment("beta-procrustes", beta=0.0).fit(images, texts, groups), images, texts, groups)
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


@pytest.mark.parametrize(
    ("method", "pairs", "warned"),
    [("procrustes", 5, 1), ("beta-procrustes", 5, 1), ("procrustes", 6, 0), ("ridge", 5, 0), ("identity", 5, 0)],
)
def test_an_orthogonal_map_from_fewer_pairs_than_dimensions_is_warned_of(method: str, pairs: int, warned: int):
    images, texts, _ = related(pairs, 6, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LinearAlignment(method).fit(images, texts)
    expected = f"5 pairs for 6 dimensions: {method} is arbitrary in the directions that no pair shows"
    assert [str(item.message).partition(";")[0] for item in caught] == [expected] * warned
