import math

import numpy as np
import pytest

from recap.errors import InputError
from recap.metrics import Corpus, MetricWarning, References
from recap.metrics.corpus import bootstrap_sums, mean_result, mean_standard_error


@pytest.mark.parametrize(
    ("candidates", "references", "image_index", "message"),
    [
        (["a"], [], None, "no references"),
        (["a"], [[]], None, "image 0 has no reference"),
        (["a", "b"], [["a"], "b"], None, r"references\[1\] is a string"),
        (["a"], [["a"], ["b"]], None, "1 candidates but references of 2 images"),
        ("a", [["a"]], None, "list of at least one string"),
        ([], [["a"]], [], "list of at least one string"),
        (["a"], [["a"]], [1], "between 0 and 0"),
        (["a"], [["a"]], [-1], "between 0 and 0"),
        (["a"], [["a"]], [0, 0], "one integer for each"),
        (["a"], [["a"]], [0.0], "one integer for each"),
        ([None], [["a"]], None, "must be strings"),
        (["a"], [[float("nan")]], None, "must be strings"),
    ],
)
def test_what_cannot_be_scored_is_said(candidates, references, image_index, message):
    with pytest.raises(InputError, match=message):
        Corpus.of(candidates, references, image_index)


def test_tokens_with_a_space_are_several_words():
    corpus = Corpus.of(["22 3/4 cups"], [["a 22 3/4 b", "3/4"]])
    names = {number: word for word, number in corpus.vocabulary.items()}
    assert [names[i] for i in corpus.tokens[0].tolist()] == ["22\xa03/4", "cups"]
    assert [names[i] for i in corpus.words[0].tolist()] == ["22", "3/4", "cups"]
    assert [names[i] for i in corpus.references.words[0].tolist()] == ["a", "22", "3/4", "b"]
    assert corpus.references.words[1].tolist() == [corpus.vocabulary["3/4"]]


def test_new_words_of_candidates_leave_the_references_alone():
    references = References.of([["a dog"], ["a cat"]])
    before = dict(references.vocabulary)
    Corpus.of(["a zebra", "1 1/2 x"], references)
    assert references.vocabulary == before


def test_pairs():
    pairs = Corpus.of(["x", "y", "z"], [["a", "b"], ["c"]], np.array([1, 0, 0])).pairs
    assert pairs.candidate.tolist() == [0, 1, 1, 2, 2]
    assert pairs.reference.tolist() == [2, 0, 1, 0, 1]
    assert pairs.starts.tolist() == [0, 1, 3]


def test_empty_candidates_are_counted():
    with pytest.warns(MetricWarning, match="2 of 3"):
        Corpus.of(["", "a", "."], [["a"], ["b"], ["c"]])


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
