"""The closed forms against numpy and scipy on raw rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

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
    found = np.linalg.svd(whitened(cross), compute_uv=False)
    np.testing.assert_allclose(found, np.sort((s / s[0]) ** -0.15)[::-1], rtol=1e-9)
    np.testing.assert_allclose(u.T @ whitened(cross) @ vt.T, np.diag((s / s[0]) ** -0.15), atol=1e-9)
    np.testing.assert_allclose(whitened(7 * cross), whitened(cross), rtol=1e-9)
    even = procrustes(cross)
    np.testing.assert_allclose(whitened(even), even, atol=1e-9)


def test_whitened_leaves_out_directions_that_no_pair_shows_and_lifts_weak_ones_only_so_far() -> None:
    np.testing.assert_allclose(whitened(np.diag([1.0, 1e-9, 0.0])), np.diag([1.0, 1e-3**-0.15, 0.0]), atol=1e-12)
