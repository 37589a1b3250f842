"""Statistics against numpy on all rows at once, in float64."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.alignment import PairStatistics, statistics
from recap.errors import EncoderMismatchError, InputError, PackError


def vectors(n: int, d: int, seed: int, dtype: type = np.float64) -> np.ndarray:
    """Rows with a common part, as those of an encoder have, and of different lengths."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, d)) + 2 * np.random.default_rng(d).standard_normal(d)
    return (rows * random.uniform(0.5, 2, (n, 1))).astype(dtype)


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def expected(images: np.ndarray, texts: np.ndarray, weights: Any = None) -> tuple[np.ndarray, ...]:
    """The centred moments of rows in pairs, by the book."""
    f, e = unit(images), unit(texts)
    w = np.ones(len(f)) if weights is None else np.asarray(weights, dtype=float)
    mean_f, mean_e = np.average(f, axis=0, weights=w), np.average(e, axis=0, weights=w)
    f, e = f - mean_f, e - mean_e
    return mean_f, mean_e, (f * w[:, None]).T @ f, (e * w[:, None]).T @ f


def assert_moments(found: PairStatistics, wanted: tuple[np.ndarray, ...], tolerance: float = 1e-13) -> None:
    """Rows have unit length, so the scale of a second moment is the number of pairs."""
    image_mean, text_mean, gram, cross = found.centred()
    assert gram is not None
    assert np.abs(image_mean - wanted[0]).max() <= tolerance
    assert np.abs(text_mean - wanted[1]).max() <= tolerance
    assert np.abs(gram - wanted[2]).max() <= tolerance * found.pairs
    assert np.abs(cross - wanted[3]).max() <= tolerance * found.pairs


def assert_same(one: PairStatistics, other: PairStatistics) -> None:
    assert one.pairs == pytest.approx(other.pairs)
    assert_moments(one, tuple(np.asarray(part) for part in other.centred()))


def fitted(images: np.ndarray, texts: np.ndarray, *args: Any, **kwargs: Any) -> PairStatistics:
    return PairStatistics.zeros(images.shape[1], texts.shape[1]).update(images, texts, *args, **kwargs)


@given(n=st.integers(2, 60), d_image=st.integers(1, 9), d_text=st.integers(1, 9), seed=st.integers(0, 99))
def test_moments_of_pairs_in_any_shape(n: int, d_image: int, d_text: int, seed: int) -> None:
    images, texts = vectors(n, d_image, seed), vectors(n, d_text, seed + 1)
    found = fitted(images, texts)
    assert found.pairs == n
    assert_moments(found, expected(images, texts))


def test_float64_rows_give_float64_moments() -> None:
    images, texts = vectors(500, 6, 0), vectors(500, 5, 1)
    found = fitted(images, texts)
    assert_moments(found, expected(images, texts))
    assert found.precision == np.float64


def test_few_float32_rows_are_multiplied_in_float64() -> None:
    images, texts = vectors(30, 40, 0, np.float32), vectors(30, 8, 1, np.float32)
    found = fitted(images, texts)
    assert_moments(found, expected(images, texts))
    assert np.linalg.matrix_rank(found.centred().gram, tol=1e-12) == 29


def test_many_float32_rows_keep_float32_precision() -> None:
    images, texts = vectors(6000, 16, 0, np.float32), vectors(6000, 12, 1, np.float32)
    found = fitted(images, texts)
    assert found.precision == np.float32
    assert_moments(found, expected(images, texts), 1e-8)


def test_a_large_common_part_costs_no_precision() -> None:
    images, texts = (vectors(5000, d, d, np.float32) + np.float32(50) for d in (16, 12))
    wanted = expected(images, texts)
    found = fitted(images, texts).centred()
    # rounding unit rows to float32 is all that may go wrong: 6e-8 of 1 / sqrt(d), against a spread of 1e-2
    assert np.abs(found.cross - wanted[3]).max() / np.abs(wanted[3]).max() < 1e-5


def test_uncentred_moments() -> None:
    images, texts = vectors(90, 6, 0), vectors(90, 5, 1)
    image_mean, text_mean, gram, cross = fitted(images, texts).uncentred()
    assert not image_mean.any()
    assert not text_mean.any()
    assert np.allclose(gram, unit(images).T @ unit(images))
    assert np.allclose(cross, unit(texts).T @ unit(images))


@given(images=st.integers(2, 30), texts=st.integers(1, 80), seed=st.integers(0, 99), ordered=st.booleans())
def test_groups_equal_repeated_rows(images: int, texts: int, seed: int, ordered: bool) -> None:
    groups = np.random.default_rng(seed).integers(0, images, texts)
    if ordered:
        groups.sort()
    f, e = vectors(images, 5, seed), vectors(texts, 4, seed + 1)
    assert_moments(fitted(f, e, groups), expected(f[groups], e))
    assert_same(fitted(f, e, groups), fitted(f[groups], e))


def test_counts_equal_groups() -> None:
    f, e, counts = vectors(4, 5, 0), vectors(9, 4, 1), [3, 0, 5, 1]
    assert_same(fitted(f, e, counts=counts), fitted(f, e, np.repeat(np.arange(4), counts)))


@given(seed=st.integers(0, 99), repeats=st.lists(st.integers(0, 4), min_size=12, max_size=12).filter(any))
def test_weights_equal_repetition(seed: int, repeats: list[int]) -> None:
    groups = np.random.default_rng(seed).integers(0, 6, 12)
    f, e = vectors(6, 5, seed), vectors(12, 4, seed + 1)
    again = np.repeat(np.arange(12), repeats)
    assert_same(fitted(f, e, groups, weights=repeats), fitted(f, e[again], groups[again]))


def test_fractional_weights() -> None:
    images, texts = vectors(40, 5, 0), vectors(40, 4, 1)
    weights = np.random.default_rng(0).random(40)
    assert_moments(fitted(images, texts, weights=weights), expected(images, texts, weights))


@pytest.mark.parametrize("block", [1, 7, 100, 4096])
def test_the_block_size_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = np.random.default_rng(0).integers(0, 150, 400)
    f, e = vectors(150, 7, 0), vectors(400, 6, 1)
    monkeypatch.setattr(statistics, "BLOCK", block)
    assert_moments(fitted(f, e, groups), expected(f[groups], e))


@given(cuts=st.lists(st.integers(1, 99), max_size=4), seed=st.integers(0, 99))
def test_shards_and_streams_equal_all_at_once(cuts: list[int], seed: int) -> None:
    images, texts = vectors(100, 6, seed), vectors(100, 5, seed + 1)
    edges = [0, *sorted(set(cuts)), 100]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    merged, streamed = (PairStatistics.zeros(6, 5) for _ in range(2))
    for part in parts:
        merged.merge(fitted(images[part], texts[part]))
        streamed.update(images[part], texts[part])
    assert_same(merged, fitted(images, texts))
    assert_same(streamed, fitted(images, texts))


def test_subtracting_equals_never_having_seen() -> None:
    groups = np.sort(np.random.default_rng(0).integers(0, 90, 300))
    f, e = vectors(90, 6, 0), vectors(300, 5, 1)
    early, late = groups < 60, groups >= 60
    kept = fitted(f[:60], e[early], groups[early])
    everything, withdrawn = fitted(f, e, groups), fitted(f[60:], e[late], groups[late] - 60)
    assert_same(everything - withdrawn, kept)
    assert_same(everything.update(f[60:], e[late], groups[late] - 60, sign=-1), kept)


def test_operators_leave_their_operands_alone() -> None:
    one, other = (fitted(vectors(20, 4, seed), vectors(20, 3, seed + 5)) for seed in (0, 1))
    before = one.centred(), other.centred()
    together = one + other
    assert_same(together - other, one)
    for statistic, moments in zip((one, other), before, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(statistic.centred(), moments, strict=True))


def test_taking_out_everything_leaves_nothing_and_one_can_start_again() -> None:
    images, texts = vectors(40, 5, 0), vectors(40, 4, 1)
    weights = np.random.default_rng(0).random(40)
    found = fitted(images, texts, weights=weights)
    for row in np.random.default_rng(1).permutation(40):
        found.update(images[[row]], texts[[row]], weights=weights[[row]], sign=-1)
    assert found.pairs == 0
    with pytest.raises(InputError, match="no pairs"):
        found.centred()
    assert_moments(found.update(images, texts), expected(images, texts))


def test_more_than_there_is_cannot_be_taken_out() -> None:
    images, texts = vectors(10, 5, 0), vectors(10, 4, 1)
    found = fitted(images[:6], texts[:6])
    with pytest.raises(InputError, match="cannot take out 10 pairs: there are only 6"):
        found.update(images, texts, sign=-1)
    with pytest.raises(InputError, match="cannot take out 10 pairs: there are only 6"):
        found.subtract(fitted(images, texts))
    assert_moments(found, expected(images[:6], texts[:6]))


def test_a_bad_row_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 4)
    images, texts = vectors(20, 5, 0), vectors(20, 4, 1)
    found = fitted(images, texts)
    spoilt = texts.copy()
    spoilt[15] = np.nan
    with pytest.raises(InputError, match="texts: row 15 holds NaN"):
        found.update(images, spoilt)
    assert found.pairs == 20
    assert_moments(found, expected(images, texts))


def test_without_gram_there_is_only_the_cross_product() -> None:
    images, texts = vectors(50, 5, 0), vectors(50, 4, 1)
    lean = PairStatistics.zeros(5, 4, gram=False).update(images, texts)
    assert lean.centred().gram is None
    assert lean.uncentred().gram is None
    assert np.array_equal(lean.centred().cross, fitted(images, texts).centred().cross)
    assert np.allclose((lean + lean).centred().cross, 2 * lean.centred().cross)
    with pytest.raises(InputError, match="only one of the two statistics holds F'F"):
        lean.merge(fitted(images, texts))


def test_encoders_are_kept_apart() -> None:
    one = PairStatistics.zeros(5, 4, image_encoder="a", text_encoder="t")
    for other in (
        PairStatistics.zeros(5, 4, image_encoder="b", text_encoder="t"),
        PairStatistics.zeros(5, 4, image_encoder="a"),
        PairStatistics.zeros(6, 4, image_encoder="a", text_encoder="t"),
    ):
        with pytest.raises(EncoderMismatchError, match="cannot be combined"):
            one.merge(other)
        with pytest.raises(EncoderMismatchError, match="cannot be combined"):
            one.subtract(other)


def test_other_unusable_input() -> None:
    found = PairStatistics.zeros(5, 4)
    with pytest.raises(InputError, match="images: expected vectors of 5 numbers, got 3"):
        found.update(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(InputError, match="texts: expected vectors of 4 numbers, got 3"):
        found.update(np.ones((2, 5)), np.ones((2, 3)))
    with pytest.raises(InputError, match="sign must be 1"):
        found.update(np.ones((2, 5)), np.ones((2, 4)), sign=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dimensions must be positive"):
        PairStatistics.zeros(0, 4)
    with pytest.raises(InputError, match="no pairs yet"):
        found.uncentred()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-15), (np.float32, 1e-7)])
@pytest.mark.parametrize("gram", [True, False])
def test_save_and_load(tmp_path: Path, dtype: type, tolerance: float, gram: bool) -> None:
    images, texts = vectors(30, 8, 0), vectors(30, 6, 1)
    saved = PairStatistics.zeros(8, 6, image_encoder="eye", text_encoder="pen", gram=gram).update(images, texts)
    saved.save(tmp_path / "pairs.safetensors", dtype=dtype)
    loaded = PairStatistics.load(tmp_path / "pairs.safetensors")
    assert (loaded.pairs, loaded.image_encoder, loaded.text_encoder) == (30, "eye", "pen")
    assert loaded.precision == dtype
    for got, want in zip(loaded.centred(), saved.centred(), strict=True):
        assert (got is None) == (want is None)
        assert got is None or np.allclose(got, want, rtol=tolerance, atol=tolerance)
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.safetensors"]


def test_loaded_statistics_go_on(tmp_path: Path) -> None:
    images, texts = vectors(60, 8, 0), vectors(60, 6, 1)
    fitted(images[:20], texts[:20]).save(tmp_path / "pairs.safetensors")
    loaded = PairStatistics.load(tmp_path / "pairs.safetensors")
    assert_moments(loaded.update(images[20:], texts[20:]), expected(images, texts))


def test_saving_asks_for_pairs_and_a_known_precision(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pairs"):
        PairStatistics.zeros(2, 2).save(tmp_path / "x")
    with pytest.raises(InputError, match="float32 or float64, not float16"):
        fitted(np.eye(2), np.eye(2)).save(tmp_path / "x", dtype=np.float16)
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_map_is_no_statistics(tmp_path: Path) -> None:
    from recap.alignment import LinearAlignment

    LinearAlignment().fit(vectors(9, 3, 0), vectors(9, 3, 1)).save(tmp_path / "map.safetensors")
    with pytest.raises(PackError, match=r"map\.safetensors: this is not a file of pair-statistics"):
        PairStatistics.load(tmp_path / "map.safetensors")
