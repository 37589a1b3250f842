from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from recap.distributed.embedding import embed
from recap.distributed.parts import find_parts
from recap.distributed.runners import LocalRunner
from recap.distributed.shards import VectorFolder, is_vectors, read_shard
from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError
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


def test_a_killed_run_goes_on(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    class Killed(LocalRunner):
        def map(self, prepare, items, device="cpu"):
            for number, result in super().map(prepare, items, device):
                if number == 2:
                    raise KeyboardInterrupt
                yield number, result

    out, parts = str(tmp_path / "out"), find_parts(str(pairs_folder), size=5)
    with pytest.raises(KeyboardInterrupt):
        embed(parts, out, encoder, runner=Killed())
    assert not is_vectors(out)
    there = VectorFolder(out).there()
    assert len(there) == 3
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in there}
    done = embed(parts, out, encoder)
    assert (done.pictures, done.new) == (18, 1)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in there} == times
    assert embed(parts, out, encoder, restart=True).new == 4


def test_what_changed_is_embedded_again(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    folder, out = tmp_path / "pairs", str(tmp_path / "out")
    shutil.copytree(pairs_folder, folder)
    embed(find_parts(str(folder), size=6), out, encoder)
    (folder / "yellow2.txt").write_text("a new caption")
    done = embed(find_parts(str(folder), size=6), out, encoder)
    assert (done.new, done.captions) == (1, 52)
    assert VectorFolder(out).there() == {shard.file for shard in done.shards}


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
