from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.metrics import ngrams
from recap.metrics.ngrams import MAX_N, GroupedCounts, NgramTable, Sentences, offsets_of, ranges

SENTENCES = st.lists(st.lists(st.integers(0, 4), max_size=7), min_size=1, max_size=6)


def pack_sentences(lists: list[list[int]]) -> Sentences:
    return Sentences(np.array([word for words in lists for word in words], np.int64), offsets_of([*map(len, lists)]))


def grams(words: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def names(table: NgramTable, n: int) -> list[tuple[int, ...]]:
    """Spell out the n-gram behind every id."""
    if n == 1:
        return [(word,) for word in range(table.words)]
    prefixes = names(table, n - 1)
    return [(*prefixes[pair >> 32], pair & 0xFFFFFFFF) for pair in table.pairs[n - 2].tolist()]


@settings(deadline=None)
@given(SENTENCES)
def test_building_a_table_counts_every_ngram_of_every_sentence(lists):
    table, counts = NgramTable.build(pack_sentences(lists), 5)
    for n in range(1, MAX_N + 1):
        spelled = names(table, n)
        rows = counts[n - 1]
        found = {
            (s, spelled[g]): c
            for g, s, c in zip(rows.gram.tolist(), rows.sentence.tolist(), rows.count.tolist(), strict=True)
        }
        assert found == {(i, g): c for i, words in enumerate(lists) for g, c in Counter(grams(words, n)).items()}


@settings(deadline=None)
@given(SENTENCES, SENTENCES)
def test_other_sentences_share_ids_and_new_ngrams_get_new_ones(lists, others):
    shifted = [[word + 2 for word in words] for words in others]
    table, _ = NgramTable.build(pack_sentences(lists), 5)
    counts, new = table.count(pack_sentences(shifted))
    spelled = [(word,) for word in range(7)]
    for n in range(1, MAX_N + 1):
        if n > 1:
            known = table.pairs[n - 2].tolist() + new[n - 2].tolist()
            spelled = [(*spelled[pair >> 32], pair & 0xFFFFFFFF) for pair in known]
            assert len(set(spelled)) == len(spelled)
        rows = counts[n - 1]
        found = {
            (s, spelled[g]): c
            for g, s, c in zip(rows.gram.tolist(), rows.sentence.tolist(), rows.count.tolist(), strict=True)
        }
        assert found == {(i, g): c for i, words in enumerate(shifted) for g, c in Counter(grams(words, n)).items()}


@settings(deadline=None)
@given(SENTENCES, SENTENCES)
def test_finding_the_ngrams_of_another_table(lists, others):
    table, _ = NgramTable.build(pack_sentences(lists), 5)
    other, _ = NgramTable.build(pack_sentences(others), 5)
    words = ids = np.arange(5)
    for n in range(2, MAX_N + 1):
        ids = table.find(n, other.pairs[n - 2], ids, words)
        known = {spelling: i for i, spelling in enumerate(names(table, n))}
        assert ids.tolist() == [known.get(spelling, table.size(n)) for spelling in names(other, n)]


@settings(deadline=None)
@given(SENTENCES, st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_grouping_by_image(lists, sizes):
    image_of = np.repeat(np.arange(6), sizes)[: len(lists)]
    table, counts = NgramTable.build(pack_sentences(lists), 5)
    for n in range(1, MAX_N + 1):
        grouped, spelled = GroupedCounts.of(counts[n - 1], image_of), names(table, n)
        maximum: dict[tuple[tuple[int, ...], int], int] = {}
        for image, words in zip(image_of.tolist(), lists, strict=False):
            for gram, count in Counter(grams(words, n)).items():
                maximum[gram, image] = max(maximum.get((gram, image), 0), count)
        gram, image = np.divmod(grouped.keys, grouped.images)
        found = dict(
            zip(zip([spelled[g] for g in gram], image.tolist(), strict=True), grouped.maximum.tolist(), strict=True)
        )
        assert found == maximum
        frequency = Counter(g for g, _ in maximum)
        assert grouped.document_frequency(table.size(n)).tolist() == [frequency[s] for s in spelled]


def test_keys_too_large_to_pack_are_sorted_all_the_same():
    keys = np.array([1 << 61, 5, 1 << 61, 0, 5])
    places = np.arange(5) + 100
    ordered, moved = ngrams._sort_together(keys, places)
    assert ordered.tolist() == sorted(keys.tolist())
    assert moved.tolist() == [103, 101, 104, 100, 102]


def test_ranges():
    assert ranges(np.array([3, 7, 0]), np.array([5, 7, 2])).tolist() == [3, 4, 0, 1]


@pytest.mark.parametrize("lists", [[[]], [[], [1]], [[1, 2], []]])
def test_empty_sentences(lists):
    sentences = pack_sentences(lists)
    assert isinstance(sentences, Sentences)
    assert [sentences[i].tolist() for i in range(len(sentences))] == lists
