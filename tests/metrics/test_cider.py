import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import corpora

from recap.errors import InputError
from recap.metrics import Cider, CiderD, Corpus, DocumentFrequencies, MetricWarning, cider, cider_d, tokenize

REFERENCES = [["a dog runs", "22 3/4 dogs in a café"], ["a dog sleeps on a rug"], ["the cat", "a cat on a rug"]]


def test_a_saved_table_scores_as_before(tmp_path):
    path = tmp_path / "df.npz"
    frequencies = DocumentFrequencies.of(REFERENCES)
    frequencies.save(path)
    loaded = DocumentFrequencies.load(path)
    assert loaded.documents == 3
    assert loaded.vocabulary == frequencies.vocabulary
    candidates = ["a dog on a rug", "a zebra"]
    few = [["a dog on the rug"], ["a cat on a rug"]]
    before = cider_d(candidates, few, document_frequencies=frequencies)
    after = cider_d(candidates, few, document_frequencies=loaded)
    np.testing.assert_array_equal(before.per_image, after.per_image)
    assert before.value > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["df.npz"]


def test_counts_are_images_not_occurrences():
    frequencies = DocumentFrequencies.of([["a a", "a b"], ["a c"], ["d"]])
    assert {word: frequencies.counts[0][index] for word, index in frequencies.vocabulary.items()} == {
        "a": 2,
        "b": 1,
        "c": 1,
        "d": 1,
    }


def test_a_file_that_is_something_else(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(InputError, match=r"x\.npz"):
        DocumentFrequencies.load(path)
    path.write_bytes(b"no")
    with pytest.raises(InputError, match=r"x\.npz"):
        DocumentFrequencies.load(path)
    np.savez(path, other=np.zeros(1))
    with pytest.raises(InputError, match=r"x\.npz"):
        DocumentFrequencies.load(path)


pytestmark = pytest.mark.filterwarnings("ignore::recap.metrics.MetricWarning")


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def words_of(candidates, references):
    """Split as coco-caption does for this metric: at any white space."""

    def split(texts):
        return [" ".join(tokens).split() for tokens in tokenize(texts)]

    flat = iter(split([text for texts in references for text in texts]))
    return split(candidates), [[next(flat) for _ in texts] for texts in references]


def definition(candidates, references, *, clipped=True, documents=None):
    found, wanted = words_of(candidates, references)
    corpus = wanted if documents is None else words_of([], documents)[1]
    log_n = math.log(len(corpus))
    frequency = [
        Counter(g for texts in corpus for g in set().union(*(grams(t, n) for t in texts))) for n in range(1, 5)
    ]

    def weighted(words, n):
        return {g: c * (log_n - math.log(max(1, frequency[n - 1][g]))) for g, c in grams(words, n).items()}

    def cosine(a, b):
        dot = sum((min(x, b.get(g, 0)) if clipped else x) * b.get(g, 0) for g, x in a.items())
        norms = math.sqrt(sum(x * x for x in a.values())) * math.sqrt(sum(x * x for x in b.values()))
        return dot / norms if norms else 0.0

    values = []
    for candidate, texts in zip(found, wanted, strict=True):
        total = 0.0
        for text in texts:
            delta = max(0, len(candidate) - 1) - max(0, len(text) - 1)
            penalty = math.exp(-(delta**2) / 72) if clipped else 1.0
            total += penalty * sum(cosine(weighted(candidate, n), weighted(text, n)) for n in range(1, 5)) / 4
        values.append(10 * total / len(texts))
    return values


@settings(deadline=None)
@given(corpora())
def test_cider_d_is_what_the_definition_says(corpus):
    result = cider_d(*corpus)
    np.testing.assert_allclose(result.per_image, definition(*corpus), rtol=0, atol=1e-12)
    assert result.value == pytest.approx(np.mean(definition(*corpus)))


@settings(deadline=None)
@given(corpora())
def test_plain_cider_is_what_the_definition_says(corpus):
    np.testing.assert_allclose(cider(*corpus).per_image, definition(*corpus, clipped=False), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(corpora(), corpora(least=1))
def test_document_frequencies_of_another_corpus(documents, corpus):
    frequencies = DocumentFrequencies.of(documents[1])
    result = cider_d(*corpus, document_frequencies=frequencies)
    np.testing.assert_allclose(result.per_image, definition(*corpus, documents=documents[1]), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(corpora())
def test_own_document_frequencies_change_nothing(corpus):
    candidates, references = corpus
    given_own = cider_d(candidates, references, document_frequencies=DocumentFrequencies.of(references))
    np.testing.assert_allclose(given_own.per_image, cider_d(candidates, references).per_image, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(corpora(), st.data())
def test_many_candidates_an_image_score_as_if_alone(corpus, data):
    candidates, references = corpus
    images = data.draw(st.lists(st.integers(0, len(references) - 1), min_size=1, max_size=8))
    texts = data.draw(st.lists(st.sampled_from(candidates), min_size=len(images), max_size=len(images)))
    scorer = CiderD(references)
    together = scorer.score(texts, images)
    for text, image, value in zip(texts, images, together.per_image, strict=True):
        alone = list(candidates)
        alone[image] = text
        assert value == pytest.approx(cider_d(alone, references).per_image[image], abs=1e-12)


def test_one_image_means_nothing_and_says_so():
    with pytest.warns(MetricWarning, match="one image"):
        assert cider_d(["a dog"], [["a dog"]]).value == 0.0


def test_a_scorer_wants_its_own_references():
    corpus = Corpus.of(["a", "b"], [["a"], ["b"]])
    with pytest.raises(InputError, match="other references"):
        Cider([["a"], ["b"]]).score_corpus(corpus)
    assert CiderD(corpus.references).score_corpus(corpus).name == "CIDEr-D"
