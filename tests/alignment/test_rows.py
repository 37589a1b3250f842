"""What comes in: shapes, lengths, weights, and which text belongs to which image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from recap.alignment import rows as rows_module
from recap.alignment.rows import (
    as_rows,
    assign_captions,
    centre_rows,
    centred_unit_rows,
    check_weights,
    inverse_lengths,
    read_tensors,
    usable_unit_rows,
    write_tensors,
)
from recap.errors import InputError, PackError
from recap.types import unit_rows

FLOAT32 = np.dtype(np.float32)


def test_centring_is_that_of_float64() -> None:
    random = np.random.default_rng(0)
    unit = unit_rows(random.standard_normal((50, 8)).astype(np.float32) + 1)
    mean = unit.mean(axis=0)
    exact = unit.astype(np.float64) - mean
    assert np.allclose(centre_rows(unit, mean), exact, atol=1e-7)
    assert np.allclose(centred_unit_rows(unit, mean), exact / np.linalg.norm(exact, axis=1, keepdims=True), atol=1e-6)


def test_what_rounding_leaves_of_the_mean_has_no_direction() -> None:
    mean = unit_rows(np.array([[1.0, 2.0, 3.0]], np.float32))[0]
    rows = np.stack([mean + np.float32([6e-8, 0, 0]), mean + np.float32([1e-5, 0, 0])])
    assert centre_rows(rows, mean).any(axis=1).tolist() == [False, True]
    assert np.allclose(np.linalg.norm(centred_unit_rows(rows, mean), axis=1), [0, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(bad: float) -> None:
    vectors = np.ones((5000, 3), dtype=np.float32)
    vectors[[7, 4321], 1] = bad
    for check in (lambda: inverse_lengths(vectors, "images", FLOAT32), lambda: usable_unit_rows(vectors, "images")):
        with pytest.raises(InputError, match=r"images: row 7, 4321 holds NaN or infinite values"):
            check()


def test_zero_rows_are_named_and_a_long_list_is_cut() -> None:
    zero = np.array([[1.0, 0], [0, 0]])
    for check in (lambda: inverse_lengths(zero, "texts", FLOAT32), lambda: usable_unit_rows(zero, "texts")):
        with pytest.raises(InputError, match=r"texts: row 1 holds only zeros"):
            check()
    with pytest.raises(InputError, match=r"row 0, 1, 2, 3, 4 \(and 15 more\)"):
        inverse_lengths(np.zeros((20, 2)), "texts", FLOAT32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(3), "one vector a row"),
        (np.ones((2, 2, 2)), "one vector a row"),
        (np.ones((0, 3)), "no vectors"),
        (np.ones((3, 0)), "no vectors"),
        ([["a", "b"]], "real numbers"),
        (np.ones((2, 2), dtype=complex), "real numbers"),
        (np.ones((2, 4)), "expected vectors of 3 numbers, got 4"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(values: object, message: str) -> None:
    with pytest.raises(InputError, match=f"images: .*{message}"):
        as_rows(values, "images", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], "expected one for each of 3 texts"),
        ([1.0, -1.0, 1.0], "row 1 is not"),
        ([1.0, 1.0, np.nan], "row 2 is not"),
    ],
)
def test_weights_are_checked(weights: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weights(weights, 3)


@pytest.mark.parametrize(
    ("images", "texts", "groups", "counts", "message"),
    [
        (3, 4, None, None, "3 images but 4 texts"),
        (3, 3, [0, 1, 2], [1, 1, 1], "not both"),
        (3, 3, [0, 1], None, "groups: expected one for each of 3 texts, got 2"),
        (3, 3, [0, 1, 3], None, "text 2 belongs to image 3, but there are 3 images"),
        (3, 3, [0, -1, 2], None, "text 1 belongs to image -1"),
        (3, 3, [0.0, 1.0, 2.0], None, "whole numbers"),
        (3, 3, [[0, 1, 2]], None, "whole numbers"),
        (3, 3, None, [1, 2], "counts: expected one for each of 3 images, got 2"),
        (3, 3, None, [1, 1, 2], "add up to 4, but there are 3 texts"),
        (3, 3, None, [4, -1, 0], "cannot be negative, but row 1 is"),
    ],
)
def test_assignments_that_do_not_fit_are_refused(
    images: int, texts: int, groups: object, counts: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        assign_captions(images, texts, groups, counts)  # type: ignore[arg-type]


@given(data=st.data(), images=st.integers(1, 12), ordered=st.booleans(), gathered=st.integers(1, 20))
def test_sums_and_masses_equal_a_plain_loop(data: st.DataObject, images: int, ordered: bool, gathered: int) -> None:
    groups = data.draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=40))
    groups = np.array(sorted(groups) if ordered else groups)
    random = np.random.default_rng(len(groups))
    texts, factors = random.standard_normal((len(groups), 3)), random.random(len(groups))
    expected, masses = np.zeros((images, 3)), np.zeros(images)
    for text, factor, image in zip(texts, factors, groups, strict=True):
        expected[image] += factor * text
        masses[image] += factor
    captions = assign_captions(images, len(groups), groups, None)
    cut = data.draw(st.integers(0, images - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "GATHERED_TEXTS", gathered)
        halves = [
            captions.sums(texts, factors, part)
            for part in (slice(0, cut), slice(cut, images))
            if part.stop > part.start
        ]
    assert np.allclose(np.vstack(halves), expected)
    assert np.allclose(captions.masses(factors), masses)
    assert np.array_equal(captions.masses(None), np.bincount(groups, minlength=images))


def test_arrays_and_facts_come_back_whatever_their_strides(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "x", "kind", {"a": array.T, "b": array[:, ::2]}, {"fact": "7"})
    tensors, facts = read_tensors(tmp_path / "x", "kind", ["a", "b"], ["fact"])
    assert np.array_equal(tensors["a"], array.T)
    assert np.array_equal(tensors["b"], array[:, ::2])
    assert facts["fact"] == "7"


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"none: cannot be read"):
        read_tensors(tmp_path / "none", "kind", [], [])
    write_tensors(tmp_path / "x", "kind", {"a": np.ones(100)}, {})
    (tmp_path / "half").write_bytes((tmp_path / "x").read_bytes()[:-300])
    with pytest.raises(PackError, match=r"half: cannot be read"):
        read_tensors(tmp_path / "half", "kind", [], [])


def test_other_kinds_versions_and_gaps_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", "kind", {"a": np.ones(2)}, {})
    with pytest.raises(PackError, match=r"not a file of other, but 'recap\.kind'"):
        read_tensors(tmp_path / "x", "other", [], [])
    with pytest.raises(PackError, match="incomplete, without b, fact"):
        read_tensors(tmp_path / "x", "kind", ["a", "b"], ["fact"])
    save_file({"a": np.ones(2)}, tmp_path / "foreign")
    with pytest.raises(PackError, match="unknown kind"):
        read_tensors(tmp_path / "foreign", "kind", [], [])
    save_file({"a": np.ones(2)}, tmp_path / "newer", {"format": "recap.kind", "version": "99"})
    with pytest.raises(PackError, match="version 99 is unknown"):
        read_tensors(tmp_path / "newer", "kind", [], [])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        write_tensors(tmp_path / "x", "kind", {"a": np.ones(2)}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
