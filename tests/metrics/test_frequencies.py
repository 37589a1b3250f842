import numpy as np
import pytest

from recap.errors import InputError
from recap.metrics import DocumentFrequencies, cider_d

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
