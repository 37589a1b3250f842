import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import corpora

from recap.metrics import rouge_l, tokenize
from recap.metrics.corpus import Corpus
from recap.metrics.rouge import _common_subsequences, score_rouge_l

pytestmark = pytest.mark.filterwarnings("ignore::recap.metrics.MetricWarning")


def common(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


@settings(deadline=None)
@given(corpora(least=1))
def test_it_is_what_the_definition_says(corpus):
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
