from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.metrics import ngrams
from recap.metrics.ngrams import MAX_N, GroupedCounts, NgramTable, Sentences, pack_sentences, ranges

SENTENCES = st.lists(st.lists(st.integers(0, 4), max_size=7), min_size=1, max_size=6)


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
        flat = [word for words in lists for word in words]
        assert all(
            tuple(flat[p : p + n]) == spelled[g] for p, g in zip(rows.place.tolist(), rows.gram.tolist(), strict=True)
        )


@settings(deadline=None)
@given(SENTENCES, SENTENCES)
def test_other_sentences_share_ids_where_and_only_where_the_ngram_is_known(lists, others):
    table, _ = NgramTable.build(pack_sentences(lists), 5)
    for n, rows in enumerate(table.count(pack_sentences([[w + 2 for w in words] for words in others])), 1):
        spelled = dict(enumerate(names(table, n)))
        shifted = [[w + 2 for w in words] for words in others]
        seen: dict[int, tuple[int, ...]] = {}
        flat = [word for words in shifted for word in words]
        for gram, sentence, count, place in zip(rows.gram, rows.sentence, rows.count, rows.place, strict=True):
            spelling = tuple(flat[place : place + n])
            assert grams(shifted[sentence], n).count(spelling) == count
            assert seen.setdefault(int(gram), spelling) == spelling
            assert spelled.get(int(gram), spelling) == spelling
            assert (gram < table.size(n)) == (spelling in spelled.values())
        assert len(seen) == len(set(seen.values()))


@settings(deadline=None)
@given(SENTENCES, SENTENCES)
def test_locating_gives_the_id_at_every_place(lists, others):
    table, _ = NgramTable.build(pack_sentences(lists), 5)
    for n, ids in enumerate(table.locate(pack_sentences(others)), 1):
        known = {spelling: i for i, spelling in enumerate(names(table, n))}
        wanted = [
            known.get(tuple(words[i : i + n]), table.size(n)) if i + n <= len(words) else table.size(n)
            for words in others
            for i in range(len(words))
        ]
        assert ids.tolist() == wanted


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
