from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.errors import InputError
from recap.metrics import bleu
from recap.metrics.corpus import MetricResult, known_mean, mean_result
from recap.metrics.evaluate import evaluate
from recap.metrics.report import Report
from recap.metrics.significance import Comparison, compare, pearson, save_heatmap

WORDS = ["a", "red", "green", "dog", "cat", "runs", "sits", "on", "grass"]


def sentences(seed, count):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(count)]


def compared(values, other, **how) -> Comparison:
    ids = tuple(map(str, range(len(values))))
    return compare(*(Report(ids, (known_mean("x", side),)) for side in (values, other)), **how)[0]


def test_mean_difference_has_the_interval_of_the_normal_theory():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=400)
    better, worse = shared + 0.1 + 0.2 * rng.normal(size=400), shared + 0.2 * rng.normal(size=400)
    found = compared(better, worse, replicates=2000)
    assert found.difference == pytest.approx((better - worse).mean())
    error = (better - worse).std(ddof=1) / 20
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert found.p_value == pytest.approx(2 / 2001)  # never zero: the sample itself counts
    assert compared(better, better + 0.0).p_value == 1
    assert compared(shared, rng.permutation(shared)).p_value > 0.9  # equal means whatever the pairing


def test_values_that_are_missing_are_left_out_in_pairs():
    values = np.array([1.0, 2.0, np.nan, 4.0])
    other = np.array([0.0, np.nan, 5.0, 3.0])
    assert compared(values, other).interval == (1, 1)


def test_bleu_is_compared_by_its_counts():
    references = [[a, b] for a, b in zip(sentences(1, 40), sentences(2, 40), strict=True)]
    good = [texts[0] if row % 2 else texts[1] + " dog" for row, texts in enumerate(references)]
    bad = sentences(3, 40)
    reports = [evaluate(system, references, metrics="bleu,cider") for system in (good, bad)]
    found = {item.metric: item for item in compare(*reports, replicates=200)}
    for row, other in zip(bleu(good, references), bleu(bad, references), strict=True):
        item = found[row.name]
        assert (item.value, item.other) == (row.value, other.value)
        assert item.difference == pytest.approx(row.value - other.value)
        assert item.interval[0] < item.difference < item.interval[1]
        assert item.p_value < 0.02
    # the same resampling by hand
    drawn = [np.random.default_rng(0)]
    samples = []
    for _ in range(20):
        rows = drawn[0].integers(0, 40, 40, dtype=np.int32)
        pair = [bleu([system[i] for i in rows], [references[i] for i in rows], replicates=0) for system in (good, bad)]
        samples.append(pair[0][3].value - pair[1][3].value)
    again = {item.metric: item for item in compare(*reports, replicates=20, seed=0)}["BLEU-4"]
    assert again.interval == pytest.approx(tuple(np.percentile(samples, [2.5, 97.5])), abs=1e-12)
    same = compare(reports[0], reports[0], replicates=50)
    assert {(item.difference, item.p_value) for item in same} == {(0.0, 1.0)}


def test_no_test_without_a_way_to_resample():
    row = MetricResult("METEOR", 0.5, np.array([0.1, 0.2]), 0.1)
    item = compare(Report(("a", "b"), (row,)), Report(("a", "b"), (row,)))[0]
    assert item.difference == 0
    assert np.isnan(item.p_value)
    assert np.isnan(item.interval).all()


def test_systems_must_be_of_the_same_images():
    rows = (mean_result("x", np.array([1.0, 2.0])),)
    with pytest.raises(InputError, match="same images"):
        compare(Report(("a", "b"), rows), Report(("b", "a"), rows))


def report_of(columns):
    rows = tuple(mean_result(name, np.array(values, dtype=float)) for name, values in columns.items())
    return Report(tuple(map(str, range(len(rows[0].per_image)))), rows)


def test_pearson_equals_numpy():
    rng = np.random.default_rng(4)
    columns = {name: rng.normal(size=30) for name in "abc"}
    names, matrix = pearson(report_of(columns))
    assert names == ["a", "b", "c"]
    np.testing.assert_allclose(matrix, np.corrcoef(list(columns.values())), atol=1e-12)
    with_gap = {**columns, "d": np.where(np.arange(30) < 5, np.nan, columns["a"])}
    np.testing.assert_allclose(pearson(report_of(with_gap))[1][0, 3], 1)
    assert np.isnan(pearson(report_of({"a": [1, 2], "flat": [1, 1]}))[1][0, 1])
    with pytest.raises(InputError):
        pearson(Report((), ()))


def test_heatmap_is_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    report = report_of({"a": [1, 2, 4], "b": [2, 1, 5], "flat": [1, 1, 1]})
    save_heatmap(report, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as picture:
        assert min(picture.size) > 200
    with pytest.raises(InputError, match="written as"):
        save_heatmap(report, tmp_path / "map.txt")
