"""Which captions are new, decided from hashes of many shards, against a set that sees one after the other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.fitting.passes import ABSENT, FITTED, HELD_OUT, WITHHELD, ReadKeys, first_places, select
from recap.fitting.vectors import Row, Space, write_shard

SPACE = Space("onnx:nowhere", "a" * 64, "b" * 64, 2, 3)

pictures = st.tuples(st.integers(0, 3), st.lists(st.sampled_from("abc"), max_size=4), st.booleans())


def sha(content: int) -> str:
    return hashlib.sha256(bytes([content])).hexdigest()


def row(number: int, content: int, captions: list[str], broken: bool) -> Row:
    vectors = np.ones((len(captions), 3), np.float32)
    vector = None if broken else np.ones(2, np.float32)
    texts = tuple(captions)
    return Row(str(number), texts, "", sha(content), "broken" if broken else "", vector, vectors)


@settings(max_examples=40, deadline=None)
@given(shards=st.lists(st.lists(pictures, min_size=1, max_size=5), min_size=1, max_size=4))
def test_new_captions_are_those_that_a_set_has_not_seen(
    shards: list[list[tuple[int, list[str], bool]]], tmp_path_factory
):
    folder: Path = tmp_path_factory.mktemp("shards")
    seen: set[tuple[int, str]] = set()
    number, expected, keys = 0, [], []
    for place, contents in enumerate(shards):
        rows = []
        for content, captions, broken in contents:
            rows.append(row(number, content, captions, broken))
            if captions:
                expected.append([text for text in dict.fromkeys(captions) if (content, text) not in seen])
                seen |= {(content, text) for text in captions}
            number += 1
        write_shard(str(folder / f"{place}.parquet"), [rows], SPACE)
        keys.append(ReadKeys().read(str(folder / f"{place}.parquet")))
    found = []
    for contents, part in zip(shards, select(keys), strict=True):
        start = 0
        for _, captions, _ in contents:
            new = part.new[start : start + len(captions)]
            start += len(captions)
            if captions:
                found.append([text for text, is_new in zip(captions, new, strict=True) if is_new])
    assert found == expected


@given(values=st.lists(st.integers(0, 5)))
def test_first_places(values: list[int]):
    hashes = np.array([[value % 2, value] for value in values], np.uint64).reshape(-1, 2)
    assert first_places(hashes).tolist() == [values.index(value) for value in values]


def test_what_becomes_of_a_picture(tmp_path: Path):
    place = str(tmp_path / "shard.parquet")
    rows = [row(n, n, ["a"], broken=n == 0) for n in range(4)] + [row(4, 4, [], broken=False)]
    write_shard(place, [rows], SPACE)
    assert ReadKeys().read(place).roles.tolist() == [ABSENT, FITTED, FITTED, FITTED, ABSENT]
    assert ReadKeys(withheld=frozenset({sha(2)})).read(place).roles[2] == WITHHELD
    shares = {content: int(sha(content)[:13], 16) / 16**13 for content in (1, 2, 3)}
    middle = sorted(shares.values())[1]
    roles = ReadKeys(share=middle).read(place).roles
    assert [roles[content] == HELD_OUT for content in (1, 2, 3)] == [shares[content] < middle for content in (1, 2, 3)]
