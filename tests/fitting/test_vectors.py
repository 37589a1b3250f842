from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from recap.datasets import records
from recap.errors import EncoderMismatchError, InputError
from recap.fitting.vectors import (
    ROWS,
    Row,
    ShardFacts,
    Space,
    VectorFolder,
    is_vectors,
    read_shard,
    read_space,
    shard_facts,
    write_shard,
)

SPACE = Space("onnx:nowhere", "a" * 64, "b" * 64, 4, 3)


def rows(count: int) -> list[Row]:
    """Rows with no to three captions, some without a picture, some broken."""
    draws = np.random.default_rng(0)
    made = []
    for number in range(count):
        captions = tuple(f"{number} {letter}" for letter in "abc"[: number % 4])
        row = Row(f"name{number}", captions, caption_vectors=draws.random((len(captions), 3), np.float32))
        if number % 5:
            row.image, row.sha256, row.vector = f"/pictures/{number}", f"{number:064x}", draws.random(4, np.float32)
        elif number % 2:
            row.error = f"/pictures/{number}: broken"
        made.append(row)
    return made


def test_what_is_written_is_read(tmp_path: Path):
    place, given = str(tmp_path / "shard.parquet"), rows(ROWS + 100)
    facts = write_shard(place, [given[:300], given[300:]], SPACE)
    blocks = list(read_shard(place))
    assert max(map(len, blocks)) <= ROWS
    start = 0
    for block in blocks:
        part = given[start : start + len(block)]
        start += len(block)
        for name in ("id", "image", "sha256", "error"):
            assert block.texts(name) == [getattr(row, name) for row in part]
        assert [tuple(captions) for captions in block.captions] == [row.captions for row in part]
        assert block.counts.tolist() == [len(row.captions) for row in part]
        assert (block.caption_vectors == np.concatenate([row.caption_vectors for row in part])).all()
        for vector, row in zip(block.image_vectors, part, strict=True):
            assert row.vector is None or (vector == row.vector).all()
    assert start == len(given)
    assert facts == shard_facts(place)
    assert facts.pictures == sum(row.vector is not None for row in given)


def test_other_programs_find_vectors_and_encoder(tmp_path: Path):
    place = tmp_path / "shard.parquet"
    given = rows(7)
    write_shard(str(place), [given], SPACE)
    table = pyarrow.parquet.read_table(place)
    assert table.schema.metadata[b"recap.encoder"] == b"onnx:nowhere"
    assert table.schema.metadata[b"recap.image_fingerprint"] == b"a" * 64
    vectors = table.column("image_vector").to_pylist()
    assert vectors[0] == [0.0] * len(vectors[1])
    assert not table.column("image_vector").combine_chunks().null_count
    assert vectors[1] == given[1].vector.tolist()
    assert table.column("caption_vectors").to_pylist()[3] == given[3].caption_vectors.tolist()
    assert read_space(str(place)) == SPACE


def test_a_folder_is_complete_when_its_manifest_is_there(tmp_path: Path):
    folder, names = VectorFolder(str(tmp_path)), [f"{n:06d}-{'ab' * 8}.parquet" for n in range(3)]
    facts = [write_shard(str(tmp_path / name), [rows(5)], SPACE) for name in names]
    (tmp_path / "somebody elses.parquet").write_bytes(b"")
    assert not is_vectors(str(tmp_path))
    folder.finish(SPACE, facts[:2])
    assert is_vectors(str(tmp_path))
    again = VectorFolder(str(tmp_path))
    assert (again.space, again.shards) == (SPACE, [str(tmp_path / name) for name in names[:2]])
    assert again.shard_names() == set(names[:2])
    assert (tmp_path / "somebody elses.parquet").exists()


def test_what_is_not_ours_is_refused(tmp_path: Path):
    place = str(tmp_path / "shard.parquet")
    with pytest.raises(EncoderMismatchError, match="onnx:nowhere"):
        replace(SPACE, text_fingerprint="c" * 64).check(SPACE, "here")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), place)
    with pytest.raises(InputError, match="not a shard"):
        read_space(place)
    Path(place).write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a readable"):
        list(read_shard(place))
    (tmp_path / "vectors.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        _ = VectorFolder(str(tmp_path)).shards


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / "vectors.json").read_text())
    edit(manifest)
    (folder / "vectors.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest.pop("space"),
        lambda manifest: manifest["space"].update(encoder=5),
        lambda manifest: manifest["space"].update(image_dimension=10**30),
        lambda manifest: manifest["shards"].clear(),
        lambda manifest: manifest["shards"][0].update(file="../elsewhere.parquet"),
        lambda manifest: manifest["shards"][0].update(file="/elsewhere.parquet"),
        lambda manifest: manifest["shards"][0].pop("file"),
    ],
)
def test_a_manifest_of_a_stranger_is_checked(tmp_path: Path, edit: Callable[[dict[str, Any]], Any]):
    VectorFolder(str(tmp_path)).finish(SPACE, [ShardFacts(f"{0:06d}-{0:016x}.parquet")])
    assert len(VectorFolder(str(tmp_path)).shards) == 1
    change(tmp_path, edit)
    with pytest.raises(InputError, match=r"vectors\.json: damaged"):
        _ = VectorFolder(str(tmp_path)).shards


def test_a_manifest_without_end_and_a_pipe_are_refused(tmp_path: Path):
    (tmp_path / "vectors.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="damaged"):
        _ = VectorFolder(str(tmp_path)).shards
    os.mkfifo(tmp_path / "shard.parquet")
    with pytest.raises(InputError, match="not a file"):
        list(read_shard(str(tmp_path / "shard.parquet")))
    (tmp_path / "vectors.json").unlink()
    os.mkfifo(tmp_path / "vectors.json")
    with pytest.raises(InputError, match="not a file"):
        _ = VectorFolder(str(tmp_path)).shards


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("sha256", ["no hash"] * 3, "a hash that is none"),
        ("captions", [None, [], []], "a caption that is none"),
        ("captions", [["a"], [None], []], "a caption that is none"),
        ("image", [1, 2, 3], "columns are not those"),
    ],
)
def test_rows_of_a_stranger_are_checked(tmp_path: Path, name: str, values: list[object], why: str):
    place = str(tmp_path / "shard.parquet")
    write_shard(place, [rows(3)], SPACE)
    table = pyarrow.parquet.read_table(place)
    kind = None if name == "image" else table.schema.field(name).type
    column = pyarrow.array(values, kind)
    pyarrow.parquet.write_table(table.set_column(table.schema.get_field_index(name), name, column), place)
    with pytest.raises(InputError, match=why):
        list(read_shard(place))


def test_a_caption_that_every_row_has_is_read_in_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A text is stored once, however many rows have it, and would be in memory once for each."""
    monkeypatch.setattr(records, "PARQUET_BYTES", 1_000_000)
    place, vectors = str(tmp_path / "shard.parquet"), np.zeros((1, 3), np.float32)
    write_shard(place, [[Row(str(number), ("x" * 100_000,), caption_vectors=vectors) for number in range(50)]], SPACE)
    blocks = list(read_shard(place, ("captions",)))
    assert sum(map(len, blocks)) == 50
    assert max(map(len, blocks)) <= 10
