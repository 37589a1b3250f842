from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import AssetError
from recap.language.phrases import Phrases, often_written, triples_of

TRIPLES = st.lists(st.tuples(*[st.integers(0, 20_000)] * 3), min_size=1, max_size=200)


@given(TRIPLES)
def test_no_phrase_is_forgotten(triples: list[tuple[int, int, int]]):
    assert Phrases.of(triples, bits=1 << 16).have(triples).all()


def test_few_others_are_taken_for_one():
    random = np.random.default_rng(0)
    kept, others = random.integers(0, 10_000, (400_000, 3)), random.integers(0, 10_000, (100_000, 3))
    phrases = Phrases.of(kept)
    assert phrases.have(kept).all()
    assert phrases.have(others).mean() < 0.004
    assert phrases.have(kept[:, ::-1]).mean() < 0.004  # the order of words counts
    assert not Phrases.of(np.empty((0, 3))).have(others).any()


def test_phrases_are_read_as_they_were_written(tmp_path: Path):
    phrases = Phrases.of([(1, 2, 3)], bits=1 << 10)
    phrases.save(tmp_path / "p.bin")
    assert Phrases.load(tmp_path / "p.bin").have([(1, 2, 3), (3, 2, 1)]).tolist() == [True, False]
    (tmp_path / "p.bin").write_bytes(b"")
    with pytest.raises(AssetError, match="install recap again"):
        Phrases.load(tmp_path / "p.bin")
    with pytest.raises(AssetError, match="install recap again"):
        Phrases.load(tmp_path / "nothing.bin")


def test_triples_run_from_the_beginning_to_the_end():
    assert triples_of([7, 8], 1, 2) == [(1, 7, 8), (7, 8, 2)]
    assert triples_of([], 1, 2) == []
    assert often_written([[7, 8], [7, 8, 9], [7, 8], [7, 8]], 1, 2) == [(1, 7, 8), (7, 8, 2)]
