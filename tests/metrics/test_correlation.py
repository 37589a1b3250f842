import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from recap.errors import InputError
from recap.metrics.correlation import _Ranking, correlate, kendall_tau, pairwise_accuracy, rater_agreement, rater_tau

numbers = st.integers(-3, 3) | st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 1))
pairs = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=40)


@given(pairs)
@settings(max_examples=300, deadline=None)
def test_tau_equals_scipy(rows):
    first, second = zip(*rows, strict=True)
    if len(set(first)) < 2 or len(set(second)) < 2:
        assert np.isnan(kendall_tau(first, second, "b"))
        return
    for variant in ("b", "c"):
        expected = kendalltau(first, second, variant=variant).statistic
        assert kendall_tau(first, second, variant) == pytest.approx(expected, abs=1e-12)


def test_tau_on_many_levels_equals_scipy():
    rng = np.random.default_rng(0)
    first = rng.normal(size=3000)
    second = np.round(first + rng.normal(size=3000), 2)
    assert kendall_tau(first, second, "c") == pytest.approx(kendalltau(first, second, variant="c").statistic, abs=1e-12)


@given(pairs, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_weights_mean_repetition(rows, random):
    first, second = (np.array(side, dtype=float) for side in zip(*rows, strict=True))
    weights = np.array([random.randint(0, 3) for _ in rows], dtype=float)
    if weights.sum() == 0:
        return
    repeated = np.repeat(np.arange(len(rows)), weights.astype(int))
    expected = _Ranking(first[repeated], second[repeated]).taus(np.ones(len(repeated)))
    assert _Ranking(first, second).taus(weights) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_interval_draws_whole_images():
    rng = np.random.default_rng(1)
    human = rng.integers(1, 5, 60).astype(float)
    scores = human + rng.normal(size=60)
    single = correlate("m", scores, human, replicates=300)
    tripled = correlate("m", np.repeat(scores, 3), np.repeat(human, 3), np.repeat(np.arange(60), 3), replicates=300)
    assert single.tau_b == kendall_tau(scores, human, "b")
    assert single.interval_c[0] < single.tau_c < single.interval_c[1]
    assert single.judgements == 60
    # copies of a judgement hold no new information, so the error must not shrink
    assert tripled.standard_error_b == pytest.approx(single.standard_error_b, rel=0.15)
    assert correlate("m", scores, human, replicates=300) == single


def test_pairwise_accuracy_counts_ties_half():
    assert pairwise_accuracy([3, 1, 2, 2], [1, 3, 2, 1]) == 2.5 / 4


def test_rater_tau_is_the_mean_over_pairs():
    ratings = np.array([[1, 2, 1], [2, 2, 3], [4, 3, 3], [1, 1, 2]])
    expected = np.mean([kendalltau(ratings[:, a], ratings[:, b]).statistic for a, b in ((0, 1), (0, 2), (1, 2))])
    assert rater_tau(ratings) == pytest.approx(expected)


def test_fleiss_kappa_of_the_textbook_table():
    table = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    observed, kappa = rater_agreement(table)
    assert observed == pytest.approx(0.378, abs=5e-4)
    assert kappa == pytest.approx(0.210, abs=5e-4)
    assert rater_agreement([[1, 0], [2, 0], [0, 3]]) == (1.0, 1.0)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [1]), ([], []), ([1, np.nan], [1, 2])])
def test_unusable_scores_are_refused(first, second):
    with pytest.raises(InputError):
        kendall_tau(first, second)


def test_agreement_needs_two_raters():
    with pytest.raises(InputError, match="two raters"):
        rater_tau([[1], [2]])
    with pytest.raises(InputError, match="two raters"):
        rater_agreement([[1, 0]])
