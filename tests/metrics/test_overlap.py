import math
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import corpora

from recap.metrics import MetricWarning, bleu, rouge_l, tokenize
from recap.metrics.corpus import Corpus
from recap.metrics.overlap import _common_subsequences, score_rouge_l

pytestmark = pytest.mark.filterwarnings("ignore::recap.metrics.MetricWarning")


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def words_of(candidates, references):
    """Split as coco-caption does for this metric: at any white space."""

    def split(texts):
        return [" ".join(tokens).split() for tokens in tokenize(texts)]

    flat = iter(split([text for texts in references for text in texts]))
    return split(candidates), [[next(flat) for _ in texts] for texts in references]


def parts_of(candidate, references):
    parts = []
    for n in range(1, 5):
        most = Counter()
        for reference in references:
            most |= grams(reference, n)
        parts.append((sum((grams(candidate, n) & most).values()), max(0, len(candidate) - n + 1)))
    closest = min((abs(len(r) - len(candidate)), len(r)) for r in references)[1]
    return parts, len(candidate), closest


def bleu_from(parts, length, closest):
    values, product = [], 1.0
    for n, (correct, guess) in enumerate(parts, 1):
        product *= (correct + 1e-15) / (guess + 1e-9)
        values.append(product ** (1 / n))
    ratio = (length + 1e-15) / (closest + 1e-9)
    return [value * math.exp(1 - 1 / ratio) if ratio < 1 else value for value in values]


@settings(deadline=None)
@given(corpora(least=1))
def test_it_is_what_the_definition_says(corpus):
    rows = [parts_of(c, r) for c, r in zip(*words_of(*corpus), strict=True)]
    sums = [tuple(sum(row[0][n][k] for row in rows) for k in (0, 1)) for n in range(4)]
    whole = bleu_from(sums, sum(row[1] for row in rows), sum(row[2] for row in rows))
    each = np.array([bleu_from(*row) for row in rows])
    for n, result in enumerate(bleu(*corpus, replicates=0)):
        assert result.name == f"BLEU-{n + 1}"
        assert result.value == pytest.approx(whole[n], abs=1e-12)
        np.testing.assert_allclose(result.per_image, each[:, n], rtol=0, atol=1e-12)


def test_a_perfect_candidate():
    results = bleu(["a dog runs in the park"] * 2, [["a dog runs in the park", "x"], ["a dog runs in the park"]])
    assert [result.value for result in results] == pytest.approx([1, 1, 1, 1])
    assert [result.standard_error for result in results] == pytest.approx([0, 0, 0, 0])


def test_the_length_compared_with_is_the_closest_and_of_two_the_shorter():
    (result, *_) = bleu(["a b c d"], [["a b c", "a b c d e"]], replicates=0)
    assert result.value == pytest.approx(1.0)
    (result, *_) = bleu(["a b c d"], [["a b c d e", "a b c d e f"]], replicates=0)
    assert result.value == pytest.approx(math.exp(1 - 5 / 4))


def test_the_standard_error_is_that_of_resampled_images():
    generator = np.random.default_rng(3)
    vocabulary = np.array(["a", "dog", "cat", "runs", "on", "grass", "red"])
    texts = [[" ".join(generator.choice(vocabulary, 8)) for _ in range(4)] for _ in range(60)]
    candidates, references = [t[0] for t in texts], [t[1:] for t in texts]
    rows = [parts_of(c, r) for c, r in zip(*words_of(candidates, references), strict=True)]
    resampled = []
    for _ in range(800):
        drawn = [rows[i] for i in generator.integers(0, 60, 60)]
        sums = [tuple(sum(row[0][n][k] for row in drawn) for k in (0, 1)) for n in range(4)]
        resampled.append(bleu_from(sums, sum(row[1] for row in drawn), sum(row[2] for row in drawn)))
    errors = [result.standard_error for result in bleu(candidates, references, replicates=800, seed=1)]
    np.testing.assert_allclose(errors, np.std(resampled, axis=0, ddof=1), rtol=0.15)
    assert errors == [result.standard_error for result in bleu(candidates, references, replicates=800, seed=1)]
    assert errors != [result.standard_error for result in bleu(candidates, references, replicates=800, seed=2)]


def test_one_image_has_no_standard_error():
    assert all(math.isnan(result.standard_error) for result in bleu(["a dog"], [["a dog"]]))


def test_empty_candidates_are_counted_in_a_warning():
    with pytest.warns(MetricWarning, match="1 of 2 candidates hold no word"):
        results = bleu(["...", "a dog"], [["a dog"], ["a dog"]])
    assert results[0].per_image[0] == pytest.approx(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bleu(["a cat", "a dog"], [["a dog"], ["a dog"]])


pytestmark = pytest.mark.filterwarnings("ignore::recap.metrics.MetricWarning")


def common(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


@settings(deadline=None)
@given(corpora(least=1))
def test_rouge_is_what_the_definition_says(corpus):
    candidates, references = corpus
    # split at the plain space, where the empty sentence is one empty word
    found = [" ".join(tokens).split(" ") for tokens in tokenize(candidates)]
    flat = iter(tokenize([text for texts in references for text in texts]))
    wanted = [[" ".join(next(flat)).split(" ") for _ in texts] for texts in references]
    values = []
    for candidate, texts in zip(found, wanted, strict=True):
        precision = max(common(candidate, text) / len(candidate) for text in texts)
        recall = max(common(candidate, text) / len(text) for text in texts)
        values.append(2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0)
    result = rouge_l(candidates, references)
    np.testing.assert_allclose(result.per_image, values, rtol=0, atol=1e-12)
    assert result.value == pytest.approx(np.mean(values))
    if len(values) > 1:
        assert result.standard_error == pytest.approx(np.std(values, ddof=1) / len(values) ** 0.5)


@settings(deadline=None)
@given(st.lists(st.text("ab ", max_size=300), min_size=1, max_size=4), st.text("ab ", max_size=300))
def test_sentences_of_any_length(references, candidate):
    corpus = Corpus.of([candidate], [references])
    lengths = _common_subsequences(corpus.tokens, corpus.references.tokens, corpus.pairs)
    wanted = [common(candidate.split() or [""], text.split() or [""]) for text in references]
    assert lengths.tolist() == wanted


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_around_the_width_of_a_machine_word(length):
    words = " ".join(f"w{'ab'[i % 2]}{'xyz'[i % 3]}" for i in range(length))
    assert rouge_l([words], [[words]]).value == pytest.approx(1.0)


def test_precision_and_recall_may_come_from_different_references():
    corpus = Corpus.of(["a b c d"], [["a b c d e f g h", "a"]])
    precision, recall = 1.0, 1.0
    assert score_rouge_l(corpus).value == pytest.approx(2.44 * precision * recall / (recall + 1.44 * precision))
