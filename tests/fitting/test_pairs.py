"""Pairs before they are fitted: how they are checked, and which of them are sampled.

Which captions are new, decided from hashes of many shards, against a set that sees one after the other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.datasets import PairFiles
from recap.errors import InputError
from recap.fitting.pairs import (
    ABSENT,
    FITTED,
    HELD_OUT,
    WITHHELD,
    FitReport,
    FittedPicture,
    ReadKeys,
    Sample,
    as_pairs,
    first_places,
    select,
    smallest_hashes,
)
from recap.fitting.vectors import Row, Space, VectorFolder, write_shard
from recap.types import Pair


def picture(number: int, sha256: str) -> FittedPicture:
    vector, caption_vectors = np.zeros(2, np.float32), np.zeros((1, 3), np.float32)
    return FittedPicture(Pair("", ("a wall",), str(number)), sha256, vector, caption_vectors)


@given(hashes=st.lists(st.text("0123456789abcdef", min_size=4, max_size=4)), most=st.integers(0, 6))
def test_the_smallest_hashes_come_in_the_order_of_the_input(hashes: list[str], most: int):
    found = smallest_hashes(((sha256, place) for place, sha256 in enumerate(hashes)), most)
    assert found == sorted(found)
    assert found == sorted(sorted(range(len(hashes)), key=lambda place: (hashes[place], place))[:most])


@given(st.permutations(range(12)), st.integers(1, 5))
def test_a_sample_does_not_depend_on_order_or_blocks(order: list[int], size: int):
    sample = Sample(4)
    for start in range(0, len(order), size):
        sample.take(picture(number, f"{number * 7 % 12:064x}") for number in order[start : start + size])
    kept = [int(item.pair.id) for item in sample.pictures]
    assert set(kept) == {number for number in range(12) if number * 7 % 12 < 4}
    assert kept == [number for number in order if number in kept]


def test_pairs_of_one_id_are_joined_and_captions_folded():
    found = as_pairs([("a.jpg", "a  red\nwall"), ("b.jpg", ["one", "two"]), ("a.jpg", "another")])
    assert list(found) == [Pair("a.jpg", ("a red wall", "another"), "a.jpg"), Pair("b.jpg", ("one", "two"), "b.jpg")]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no pairs to fit"),
        (["a.jpg"], "pair 0 is not a Pair"),
        ([("a.jpg", "a wall"), ("b.jpg", 3)], "pair 1: captions are text"),
        ([("a.jpg", [])], "pair 0: captions are text"),
        ([("a.jpg", " \n")], "pair 0 has an empty caption"),
        (VectorFolder("vectors"), "vectors holds vectors"),
    ],
)
def test_what_is_no_pair_is_named(pairs: object, message: str):
    with pytest.raises(InputError, match=message):
        as_pairs(pairs)  # type: ignore[arg-type]


def test_files_are_read_when_they_are_gone_through(pairs_folder: Path):
    assert isinstance(as_pairs(pairs_folder), PairFiles)
    assert len(list(as_pairs(str(pairs_folder)))) == 18


def test_a_report_lists_the_first_of_each_kind_and_writes_all(tmp_path: Path):
    report = FitReport(
        broken=tuple(InputError(f"{n}.jpg: no caption") for n in range(12)), repeated_pairs=(("a", "b"),)
    )
    lines = list(report.summary("see there"))
    assert lines[0] == "12 broken:"
    assert lines[10:13] == ["  9.jpg: no caption", "  ... and 2 more; see there", "1 repeated pairs, left out:"]
    report.write(tmp_path / "report.jsonl")
    assert len((tmp_path / "report.jsonl").read_text().splitlines()) == 13


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
