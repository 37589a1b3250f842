import math

import numpy as np
import pytest

from recap.metrics.statistics import bootstrap_sums, mean_result, mean_standard_error


def test_the_standard_error_of_a_mean():
    values = np.array([1.0, 2.0, 4.0])
    assert mean_standard_error(values) == pytest.approx(np.std(values, ddof=1) / math.sqrt(3))
    assert math.isnan(mean_standard_error(values[:1]))


def test_a_mean_result():
    result = mean_result("x", np.array([1.0, 3.0]))
    assert (result.name, result.value, result.standard_error) == ("x", 2.0, pytest.approx(1.0))
    assert result.per_image.tolist() == [1.0, 3.0]


def test_the_bootstrap_finds_the_error_of_a_mean():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    means = bootstrap_sums(rows, lambda sums: sums / 400, replicates=2000, seed=0)
    assert means.shape == (2000, 2)
    np.testing.assert_allclose(means.mean(axis=0), rows.mean(axis=0), atol=0.005)
    np.testing.assert_allclose(means.std(axis=0), rows.std(axis=0) / 20, rtol=0.06)
