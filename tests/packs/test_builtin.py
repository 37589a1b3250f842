from recap.alignment import LinearAlignment, PairStatistics
from recap.packs.builtin import choose_captions, concept_sentences, packaged_file
from recap.packs.folder import ALIGNMENT, STATISTICS


def test_the_packaged_map_is_that_of_the_packaged_statistics():
    statistics = PairStatistics.load(packaged_file(STATISTICS))
    packaged = LinearAlignment.load(packaged_file(ALIGNMENT))
    solved = LinearAlignment.from_statistics(statistics, packaged.method)
    assert abs(solved.W_ - packaged.W_).max() < 1e-4
    assert packaged.W_.shape == (512, 512)
    assert statistics.pairs > 100_000


def test_captions_are_chosen_once_each_and_always_the_same():
    records = [(str(i), f"a dog number {i}") for i in range(100)]
    noisy = [*records, ("x", "  A  dog number 3. "), ("y", "word"), ("z", "long " * 26)]
    chosen = choose_captions(noisy, 10)
    assert chosen == choose_captions(noisy, 10)
    assert len(set(chosen)) == 10
    assert choose_captions(noisy, 0) == records
    assert choose_captions(noisy, 1000) == records


def test_concepts_are_sentences_each_once():
    sentences = concept_sentences()
    assert len(sentences) == len(set(sentences)) > 900
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)
    assert "An astronaut in a space suit." in sentences
