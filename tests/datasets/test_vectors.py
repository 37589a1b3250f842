"""Vectors in place of pictures: what was written comes back, and those of another encoder are refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from recap.datasets.vectors import PictureVectors, write_vectors
from recap.errors import EncoderMismatchError, InputError, RecapWarning


@dataclass
class Encoder:
    name: str = "tiny"
    fingerprint: str = "aa"
    dimension: int = 4


ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32) * 7


def test_rows_come_back_by_id_at_unit_length(tmp_path: Path) -> None:
    write_vectors(tmp_path, [30, 10, 20], ROWS, Encoder())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known = PictureVectors.read(tmp_path, Encoder())
    assert known.ids == ("30", "10", "20")
    assert "10" in known
    assert "11" not in known
    wanted = ROWS[[2, 0]] / np.linalg.norm(ROWS[[2, 0]], axis=1, keepdims=True)
    np.testing.assert_allclose(known.take(["20", "30"]), wanted, rtol=1e-6)


def test_several_encoders_lie_side_by_side_and_are_told_apart_by_fingerprint(tmp_path: Path) -> None:
    write_vectors(tmp_path, ["a", "b", "c"], ROWS, Encoder())
    other = Encoder("onnx:/some/where", "bb", 2)
    write_vectors(tmp_path, ["a", "b", "c"], ROWS[:, :2], other)
    assert PictureVectors.read(tmp_path, other).take(["b"]).shape == (1, 2)
    assert PictureVectors.read(tmp_path, Encoder()).take(["b"]).shape == (1, 4)
    with pytest.raises(InputError, match="other pictures"):
        write_vectors(tmp_path, ["x", "y", "z"], ROWS, Encoder("third", "cc"))


def test_vectors_of_another_encoder_are_refused(tmp_path: Path) -> None:
    write_vectors(tmp_path, ["a", "b", "c"], ROWS, Encoder())
    with pytest.raises(EncoderMismatchError, match="another version of tiny"):
        PictureVectors.read(tmp_path, Encoder(fingerprint="zz"))
    with pytest.raises(EncoderMismatchError, match="holds vectors of tiny, not of large"):
        PictureVectors.read(tmp_path, Encoder("large", "ll"))


def test_a_file_without_a_fingerprint_is_believed_with_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    np.save(tmp_path / "tiny.npy", ROWS.astype(np.float16))
    with pytest.warns(RecapWarning, match="taken to be this one"):
        known = PictureVectors.read(tmp_path, Encoder())
    assert known.take(["1"]).dtype == np.float32
    with (
        pytest.warns(RecapWarning, match="taken to be"),
        pytest.raises(EncoderMismatchError, match="makes rows of 5"),
    ):
        PictureVectors.read(tmp_path, Encoder(dimension=5))


def test_broken_folders_are_named(tmp_path: Path) -> None:
    write_vectors(tmp_path, ["a", "b", "c"], ROWS, Encoder())
    np.save(tmp_path / "ids.npy", np.arange(2))
    with pytest.raises(InputError, match="3 vectors beside the ids of 2"):
        PictureVectors.read(tmp_path, Encoder())
    (tmp_path / "vectors.json").write_text(json.dumps(["tiny.npy"]))
    with pytest.raises(InputError, match=r"vectors.json: expected an object"):
        PictureVectors.read(tmp_path, Encoder())
