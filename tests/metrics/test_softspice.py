import numpy as np
import pytest

from recap.errors import InputError
from recap.metrics.softspice import mean_best_cosine, soft_spice


def test_mean_over_candidate_phrases_of_the_best_match(toy):
    candidates = [["red", "blue box"], ["green"], [], ["red"]]
    references = [["red", "green"], ["white", "blue"], ["red"], []]
    result = soft_spice(candidates, references, toy)
    v = toy.vector
    first = np.mean([max(v(mine) @ v(other) for other in references[0]) for mine in candidates[0]])
    second = max(v("green") @ v("white"), v("green") @ v("blue"))
    np.testing.assert_allclose(result.per_image, [first, second, 0, 0], atol=1e-6)
    assert result.value == pytest.approx(np.mean([first, second, 0, 0]))
    assert result.name == "SoftSPICE"
    assert len(toy.seen_texts) == len(set(toy.seen_texts)) == 5


def test_a_candidate_is_judged_by_its_own_phrases_only():
    references = np.eye(3, dtype=np.float32)
    assert mean_best_cosine(references[:1], references) == 1
    assert mean_best_cosine(references, references[:1]) == pytest.approx(1 / 3)


def test_lengths_must_agree(toy):
    with pytest.raises(InputError):
        soft_spice([["red"]], [], toy)
    assert soft_spice([[]], [[]], toy).value == 0
