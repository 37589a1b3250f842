"""The closed forms against numpy and scipy on raw rows.

Slopes against finite differences, losses against the definition, and the estimator around them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from recap.alignment import GRADIENT_METHODS, LinearAlignment, PairStatistics
from recap.alignment import solvers as g
from recap.alignment.solvers import beta_procrustes, identity, ols, procrustes, ridge, whitened
from recap.errors import InputError


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def orthonormal(d_text: int, d_image: int) -> np.ndarray:
    size = max(d_text, d_image)
    return np.linalg.qr(rows(size, size, 7))[0][:d_text, :d_image]


@pytest.mark.parametrize(("d_text", "d_image"), [(12, 12), (16, 12), (12, 16)])
def test_procrustes_recovers_a_known_map(d_text: int, d_image: int) -> None:
    w = orthonormal(d_text, d_image)
    f = rows(200, d_image)
    if d_text < d_image:  # only what W does not throw away can be told from the captions
        f = f @ w.T @ w
    e = f @ w.T
    assert np.allclose(procrustes(e.T @ f), w, atol=1e-10)


def test_procrustes_agrees_with_scipy() -> None:
    f, e = rows(50, 8), rows(50, 8, 1)
    assert np.allclose(procrustes(e.T @ f), orthogonal_procrustes(f, e)[0].T)


def test_procrustes_has_orthonormal_rows_or_columns() -> None:
    wide, tall = procrustes(rows(5, 9)), procrustes(rows(9, 5))
    assert np.allclose(wide @ wide.T, np.eye(5))
    assert np.allclose(tall.T @ tall, np.eye(5))


@pytest.mark.parametrize("n", [3, 10, 11, 60])
def test_ols_equals_lstsq_with_many_or_few_rows(n: int) -> None:
    f, e = rows(n, 10), rows(n, 6, 1)
    expected = np.linalg.lstsq(f, e, rcond=None)[0].T
    # n = d is allowed to be as ill-conditioned as it comes: F'F squares the condition number
    tolerance = 1e-12 * np.linalg.cond(f) ** 2
    assert np.allclose(ols(f.T @ f, e.T @ f), expected, atol=max(tolerance, 1e-9))


def test_ols_ignores_directions_that_do_not_occur() -> None:
    f, e = rows(40, 10), rows(40, 6, 1)
    f[:, 3] = 0
    f[:, 4] = f[:, 5]
    expected = np.linalg.lstsq(f, e, rcond=None)[0].T
    assert np.allclose(ols(f.T @ f, e.T @ f), expected)


def test_ols_cuts_where_it_is_told() -> None:
    f, e = rows(40, 4) * [1, 1, 1, 1e-3], rows(40, 3, 1)
    cut = ols(f.T @ f, e.T @ f, rcond=1e-4)
    assert np.allclose(cut[:, 3], 0, atol=1e-2)
    assert np.abs(ols(f.T @ f, e.T @ f)[:, 3]).max() > 1


def test_ridge_equals_least_squares_with_added_rows() -> None:
    f, e = rows(30, 10), rows(30, 6, 1)
    added = 0.2 * np.trace(f.T @ f) / 10
    augmented_f = np.vstack([f, np.sqrt(added) * np.eye(10)])
    augmented_e = np.vstack([e, np.zeros((10, 6))])
    expected = np.linalg.lstsq(augmented_f, augmented_e, rcond=None)[0].T
    assert np.allclose(ridge(f.T @ f, e.T @ f, 0.2), expected)


def test_ridge_does_not_depend_on_the_number_of_pairs_and_is_ols_at_zero() -> None:
    f, e = rows(30, 10), rows(30, 6, 1)
    gram, cross = f.T @ f, e.T @ f
    assert np.allclose(ridge(7 * gram, 7 * cross, 0.2), ridge(gram, cross, 0.2))
    assert np.allclose(ridge(gram, cross, 0.0), ols(gram, cross))


def test_beta_goes_from_procrustes_to_the_identity() -> None:
    cross = rows(6, 6)
    w = procrustes(cross)
    assert np.allclose(beta_procrustes(cross, 0), w)
    assert np.allclose(beta_procrustes(cross, 1), np.eye(6))
    assert np.allclose(beta_procrustes(cross, 0.85), 0.15 * w + 0.85 * np.eye(6))


@pytest.mark.parametrize("strength", [-0.1, np.nan, np.inf])
def test_ridge_refuses_a_strength_that_is_none(strength: float) -> None:
    with pytest.raises(InputError, match="strength"):
        ridge(np.eye(2), np.eye(2), strength)


@pytest.mark.parametrize("beta", [-0.1, 1.1, np.nan])
def test_beta_outside_its_range_is_refused(beta: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        beta_procrustes(np.eye(2), beta)


def test_a_shared_space_is_asked_for_where_it_is_needed() -> None:
    cross = np.ones((3, 2))
    with pytest.raises(InputError, match="dimensions are 2 and 3"):
        identity(cross)
    with pytest.raises(InputError, match="shared space"):
        beta_procrustes(cross, 0.5)


def test_whitened_lifts_the_weaker_directions_of_procrustes() -> None:
    cross = np.random.default_rng(3).normal(size=(4, 6))
    u, s, vt = np.linalg.svd(cross, full_matrices=False)
    found = np.linalg.svd(whitened(cross, 9), compute_uv=False)
    np.testing.assert_allclose(found, np.sort((s / s[0]) ** -0.15)[::-1], rtol=1e-9)
    np.testing.assert_allclose(u.T @ whitened(cross, 9) @ vt.T, np.diag((s / s[0]) ** -0.15), atol=1e-9)
    np.testing.assert_allclose(whitened(7 * cross, 63), whitened(cross, 9), rtol=1e-9)
    even = procrustes(cross)
    np.testing.assert_allclose(whitened(even, 9), even, atol=1e-9)


def test_whitened_leaves_out_directions_that_no_pair_shows_and_lifts_weak_ones_only_so_far() -> None:
    cross = np.eye(4, 3) * [1.0, 1e-9, 0.0]
    np.testing.assert_allclose(whitened(cross, 1), np.eye(4, 3) * [1.0, 1e-3**-0.15, 0.0], atol=1e-12)


def test_whitened_keeps_a_shared_space_where_few_pairs_show_nothing_else() -> None:
    texts = unit(np.random.default_rng(5).normal(size=(500, 16)))
    images = unit(texts + 0.1 * np.random.default_rng(6).normal(size=texts.shape))
    few, turn = slice(8), np.linalg.qr(np.random.default_rng(7).normal(size=(16, 16)))[0]

    w = whitened(texts[few].T @ images[few], 8)
    nearest = (unit(images @ w.T) @ texts.T).argmax(1)
    assert np.mean(nearest == np.arange(500)) > 0.9
    assert np.mean((images @ procrustes(texts[few].T @ images[few]).T @ texts.T).argmax(1) == np.arange(500)) < 0.3
    turned = images @ turn.T
    w = whitened(texts.T @ turned, 500)  # not shared: what 500 pairs say counts, whatever the prior
    assert np.mean((unit(turned @ w.T) @ texts.T).argmax(1) == np.arange(500)) > 0.9


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def related(n: int, d_image: int, d_text: int, captions: int = 2, noise: float = 1.0) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(n)
    images = random.standard_normal((n, d_image))
    groups = np.repeat(np.arange(n), captions)
    texts = images[groups] @ random.standard_normal((d_image, d_text)) / np.sqrt(d_image)
    return images, texts + noise * random.standard_normal(texts.shape), groups


def reranking_by_definition(mapped: np.ndarray, texts: np.ndarray) -> float:
    """Ouali et al.: the neighbours of an image may hold its own text, whose term is zero."""
    terms = []
    for v, p in zip(mapped, texts, strict=True):
        distances = np.linalg.norm(v - texts, axis=1)
        for place in np.argsort(distances)[: g.NEIGHBOURS]:
            margin = (1 - p @ texts[place]) / 4
            terms.append(max(0.0, np.linalg.norm(v - p) + margin - distances[place]))
    return float(np.mean(terms))


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_the_loss_is_the_mean_over_images_and_their_nearest_texts(noise: float) -> None:
    random = np.random.default_rng(3)
    texts = unit(random.standard_normal((9, 5)))
    mapped = unit(texts + noise * random.standard_normal((9, 5)))
    assert g.reranking(mapped, texts)[0] == pytest.approx(reranking_by_definition(mapped, texts), abs=1e-6)


def test_the_loss_of_images_far_from_their_texts() -> None:
    random = np.random.default_rng(0)
    mapped, texts = unit(random.standard_normal((9, 5))), unit(random.standard_normal((9, 5)))
    assert g.reranking(mapped, texts)[0] == pytest.approx(reranking_by_definition(mapped, texts), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_texts_than_neighbours_are_all_there_are(count: int) -> None:
    random = np.random.default_rng(1)
    mapped, texts = unit(random.standard_normal((count, 4))), unit(random.standard_normal((count, 4)))
    loss, slope = g.reranking(mapped, texts)
    assert loss == pytest.approx(reranking_by_definition(mapped, texts), abs=1e-6)
    assert np.isfinite(slope).all()


def differences(loss, w: np.ndarray, step: float = 1e-6) -> np.ndarray:
    slope = np.zeros_like(w)
    for place in np.ndindex(*w.shape):
        for sign in (1, -1):
            moved = w.copy()
            moved[place] += sign * step
            slope[place] += sign * loss(moved) / (2 * step)
    return slope


def test_slopes_at_the_map_agree_with_finite_differences() -> None:
    random = np.random.default_rng(2)
    images, texts = random.standard_normal((12, 4)), unit(random.standard_normal((12, 5)))
    w = random.standard_normal((5, 4))
    reranked = g.slope_of_map(w, images, lambda mapped: g.reranking(mapped, texts)[1])
    assert np.allclose(reranked, differences(lambda m: g.reranking(unit(images @ m.T), texts)[0], w), atol=1e-6)
    cosine = g.slope_of_map(w, images, lambda mapped: -texts / 12)
    assert np.allclose(cosine, differences(lambda m: -(unit(images @ m.T) * texts).sum() / 12, w), atol=1e-6)


def test_the_learning_rate_falls_along_a_cosine() -> None:
    rates = list(g.Schedule(iterations=100, learning_rate=1.0, final_rate=0.1).rates())
    assert rates[0] == 1.0
    assert rates[50] == pytest.approx(0.55)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_it_reaches_a_higher_mean_cosine_than_any_closed_form() -> None:
    images, texts, groups = related(200, 8, 10)
    found = {
        m: LinearAlignment(m).fit(images, texts, groups).score(images, texts, groups)
        for m in ("procrustes", "ols", "it")
    }
    assert found["it"] > max(found["procrustes"], found["ols"])


def test_lfa_lowers_its_loss_and_finds_more_than_it_started_from() -> None:
    images, texts, groups = related(400, 8, 10, captions=1, noise=0.7)

    def first(alignment: LinearAlignment) -> float:
        similarities = alignment.transform(images) @ alignment.transform_texts(texts).T
        return float((similarities.argmax(axis=1) == groups).mean())

    start, trained = (LinearAlignment(m).fit(images, texts, groups) for m in ("procrustes", "lfa"))
    assert first(trained) > first(start)


@pytest.mark.parametrize("method", GRADIENT_METHODS)
def test_a_rotation_is_left_as_it_is(method: str) -> None:
    random = np.random.default_rng(3)
    rotation = np.linalg.qr(random.standard_normal((12, 12)))[0]
    images = random.standard_normal((300, 12))
    fitted = LinearAlignment(method, beta=0.0).fit(images, images @ rotation.T)
    assert fitted.score(images, images @ rotation.T) > 0.99


def test_weights_of_it_equal_repetition() -> None:
    images, texts, groups = related(40, 5, 6)
    weights = np.random.default_rng(0).integers(0, 3, len(texts))
    again = np.repeat(np.arange(len(texts)), weights)
    one = LinearAlignment("it").fit(images, texts, groups, sample_weight=weights)
    other = LinearAlignment("it").fit(images[groups[again]], texts[again])
    assert np.allclose(one.W_, other.W_, atol=2e-3)


def test_lfa_draws_heavier_texts_oftener_and_none_without_weight() -> None:
    pairs = g.Pairing(
        np.zeros((3, 2), np.float32),
        np.zeros((6, 2), np.float32),
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([1.0, 3.0, 0, 1, 0, 0]),
    )
    random = np.random.default_rng(0)
    drawn = [dict(zip(*(a.tolist() for a in pairs.one_text_each(random, None)), strict=True)) for _ in range(2000)]
    assert all(set(batch) == {0, 1} and batch[1] == 3 for batch in drawn)
    assert np.mean([batch[0] == 1 for batch in drawn]) == pytest.approx(0.75, abs=0.04)
    assert len(pairs.one_text_each(random, 1)[0]) == 1


def test_lfa_starts_from_beta_procrustes_where_the_dimensions_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts, groups = related(50, 6, 6)
    monkeypatch.setattr(g, "LFA", replace(g.LFA, iterations=0))
    trained = LinearAlignment("lfa", beta=0.25).fit(images, texts, groups)
    blended = LinearAlignment("beta-procrustes", beta=0.25).fit(images, texts, groups)
    assert np.allclose(trained.W_, blended.W_, atol=1e-6)


def test_one_seed_gives_one_map_and_another_another() -> None:
    images, texts, groups = related(60, 6, 6)
    one, same, other = (LinearAlignment("lfa", seed=seed).fit(images, texts, groups).W_ for seed in (4, 4, 5))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("method", GRADIENT_METHODS)
def test_parts_and_statistics_are_refused_and_files_kept(method: str, tmp_path) -> None:
    images, texts, groups = related(30, 4, 5)
    with pytest.raises(InputError, match=f"{method} needs the pairs themselves"):
        LinearAlignment(method).partial_fit(images, texts, groups)
    statistics = PairStatistics.zeros(4, 5).update(images, texts, groups)
    with pytest.raises(InputError, match=f"{method} needs the pairs themselves"):
        LinearAlignment.from_statistics(statistics, method)
    fitted = LinearAlignment(method, seed=7).fit(images, texts, groups)
    fitted.save(tmp_path / "map.safetensors")
    loaded = LinearAlignment.load(tmp_path / "map.safetensors")
    assert loaded.get_params() == fitted.get_params()
    assert np.array_equal(loaded.transform(images), fitted.transform(images))
    with pytest.raises(InputError, match="do not vary together"):
        LinearAlignment(method).fit(images[:1], texts[:2], [0, 0])
