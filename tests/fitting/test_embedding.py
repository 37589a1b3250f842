from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError, ImageError, InputError
from recap.fitting import embedding as encoding
from recap.fitting.embedding import embed, in_parts
from recap.fitting.vectors import VectorFolder, is_vectors, read_shard
from recap.parallel.parts import find_parts
from recap.parallel.runners import LocalRunner
from recap.types import Pair


def test_vectors_are_the_encoders(pairs: list[Pair], pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    done = embed(find_parts(str(pairs_folder), size=5), str(tmp_path / "out"), encoder)
    blocks = [block for place in VectorFolder(str(tmp_path / "out")).shards for block in read_shard(place)]
    assert [name for block in blocks for name in block.texts("id")] == [pair.id for pair in pairs]
    found = np.concatenate([block.image_vectors for block in blocks])
    assert (found == encoder.encode_images([pair.image for pair in pairs])).all()
    texts = np.concatenate([block.caption_vectors for block in blocks])
    assert (texts == encoder.encode_texts([text for pair in pairs for text in pair.captions])).all()
    assert (done.pictures, done.captions, len(done.shards), done.new, done.broken) == (18, 54, 4, 4, [])


KILLED = """
import os, signal, sys
from recap.fitting import vectors as shards
from recap.fitting.embedding import embed
from recap.parallel.parts import find_parts
from recap.encoders import load_encoder

made, blocks = shards.batch, []

def batch(rows, schema):
    blocks.append(rows)
    if len(blocks) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return made(rows, schema)

shards.batch = batch
pairs, out, encoder = sys.argv[1:]
embed(find_parts(pairs, size=5), out, load_encoder(encoder))
"""


def test_a_killed_run_goes_on(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    out, folder = str(tmp_path / "out"), tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(pairs_folder), out, encoder.name], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not is_vectors(out)
    there = VectorFolder(out).shard_names()
    assert len(there) == 2
    left = {path.name for path in folder.iterdir()} - there
    assert len(left) == 1
    (folder / f".somebody elses{next(iter(left))}").touch()
    times = {name: (folder / name).stat().st_mtime_ns for name in there}
    parts = find_parts(str(pairs_folder), size=5)
    done = embed(parts, out, encoder)
    assert (done.pictures, done.new) == (18, 2)
    assert {name: (folder / name).stat().st_mtime_ns for name in there} == times
    assert not left & {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 6, "four shards, what says so, and a file that is not ours"
    assert embed(parts, out, encoder, restart=True).new == 4


def test_a_picture_that_comes_later_is_embedded(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    table, out = tmp_path / "pairs.jsonl", str(tmp_path / "out")
    table.write_text("\n".join(json.dumps({"image": f"{n}.png", "caption": "a wall"}) for n in range(4)))
    for number in range(3):
        shutil.copy(pairs_folder / f"red{number}.png", tmp_path / f"{number}.png")

    def run() -> tuple[int, int, int]:
        done = embed(find_parts(str(table), size=2), out, encoder)
        return done.pictures, len(done.broken), done.new

    assert [run(), run()] == [(3, 1, 2), (3, 1, 0)]
    shutil.copy(pairs_folder / "blue0.png", tmp_path / "3.png")
    assert [run(), run()] == [(4, 0, 1), (4, 0, 0)]
    shutil.copy(pairs_folder / "green0.png", tmp_path / "0.png")
    assert run() == (4, 0, 1)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_bucket_that_fails_for_a_while(pairs_folder: Path, encoder: Encoder, tmp_path: Path, kind: str):
    bucket, folder, out = fsspec.filesystem("memory"), f"memory://pairs-{kind}", str(tmp_path / "out")
    picture = (pairs_folder / "red0.png").read_bytes()
    bucket.pipe(f"{folder}/here.png", picture)
    if kind == "jsonl":
        lines = [json.dumps({"image": f"{name}.png", "caption": "a wall"}) for name in ("here", "there")]
        bucket.pipe(f"{folder}/pairs.jsonl", "\n".join(lines).encode())
    else:
        table = pyarrow.table({"image": ["here.png", "there.png"], "caption": ["a wall", "a wall"]})
        with bucket.open(f"{folder}/pairs.parquet", "wb") as file:
            pyarrow.parquet.write_table(table, file)

    def run() -> tuple[int, int, int]:
        done = embed(find_parts(f"{folder}/pairs.{kind}"), out, encoder)
        return done.pictures, len(done.broken), done.new

    assert [run(), run()] == [(1, 1, 1), (1, 1, 0)]
    bucket.pipe(f"{folder}/there.png", picture)
    assert [run(), run()] == [(2, 0, 1), (2, 0, 0)]


def test_vectors_of_another_input_are_not_deleted(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    one, other, out = tmp_path / "one", tmp_path / "other.txt", str(tmp_path / "out")
    shutil.copytree(pairs_folder, one)
    other.write_text("a red wall")
    embed(find_parts(str(one)), out, encoder, source=str(one))
    with pytest.raises(InputError, match=f"vectors of {one}, which would be deleted"):
        embed(find_parts(str(other)), out, encoder, source=str(other))
    # what has changed is still the same input
    (one / "red0.txt").write_text("another caption")
    assert embed(find_parts(str(one)), out, encoder, source=str(one)).new == 1
    assert embed(find_parts(str(other)), out, encoder, source=str(other), restart=True).captions == 1
    # nor are those of a run that was not finished
    (tmp_path / "out" / "vectors.json").unlink()
    with pytest.raises(InputError, match="vectors of another input"):
        embed(find_parts(str(one)), out, encoder, source=str(one))
    assert embed(find_parts(str(other)), out, encoder, source=str(other)).new == 0


def test_what_changed_is_embedded_again(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    folder, out = tmp_path / "pairs", str(tmp_path / "out")
    shutil.copytree(pairs_folder, folder)
    embed(find_parts(str(folder), size=6), out, encoder)
    (folder / "yellow2.txt").write_text("a new caption")
    done = embed(find_parts(str(folder), size=6), out, encoder)
    assert (done.new, done.captions) == (1, 52)
    assert VectorFolder(out).shard_names() == {shard.file for shard in done.shards}


def test_a_broken_picture_is_reported_also_when_nothing_is_new(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    folder, out = tmp_path / "pairs", str(tmp_path / "out")
    shutil.copytree(pairs_folder, folder)
    (folder / "red1.png").write_bytes(b"no picture")
    for new in (1, 0):
        done = embed(find_parts(str(folder)), out, encoder)
        assert (done.pictures, done.new) == (17, new)
        assert len(done.broken) == 1
        assert str(folder / "red1.png") in done.broken[0]


def test_two_encoders_are_not_mixed(pairs_folder: Path, encoder: Encoder, shared_encoder_folder: Path, tmp_path: Path):
    parts = find_parts(str(pairs_folder))
    embed(parts, str(tmp_path), encoder)
    with pytest.raises(EncoderMismatchError, match="another folder"):
        embed(parts, str(tmp_path), load_encoder(f"onnx:{shared_encoder_folder}"))


class Elsewhere(LocalRunner):
    """Does as if others did the work, and brings results in another order."""

    remote = True

    def map(self, prepare, items, device="cpu"):
        return reversed(list(super().map(prepare, items, device)))


def test_pictures_come_in_their_order(pairs: list[Pair], encoder: Encoder, tmp_path: Path):
    images = [*(pair.image for pair in pairs), tmp_path / "nothing.png", *(pair.image for pair in pairs * 8)]
    found = list(in_parts(encoder, Elsewhere()).encode_each(images))
    assert len(images) > 2 * encoding.IMAGES
    for one, other in zip(found, encoder.encode_each(images), strict=True):
        assert str(one) == str(other) if isinstance(one, ImageError) else (one == other).all()
    with pytest.raises(ImageError, match="no such file"):
        in_parts(encoder, Elsewhere()).encode_images(images)


def test_texts_come_in_their_order_and_cut_ones_are_counted(encoder: Encoder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "TEXTS", 3)
    texts = ["a red wall", "the wall is blue", "wall " * 40, "a green wall", "green", "wall " * 50, "a", "the"]
    parts = in_parts(encoder, Elsewhere())
    assert (parts.encode_texts(texts) == encoder.encode_texts(texts)).all()
    assert parts.text.truncated == 2
    assert (parts.encode_texts(texts[:3]) == encoder.encode_texts(texts[:3])).all()
    assert parts.text.truncated == 3


def test_without_others_the_encoder_stays(encoder: Encoder):
    assert in_parts(encoder, LocalRunner()) is encoder
