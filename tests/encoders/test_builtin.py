"""The first part of a network, cut out of its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

from recap.assets import ASSETS, Asset, fetch, is_cached
from recap.assets.registry import LocalFile
from recap.encoders.builtin import cut, dinov2_part, first_part, part_sha256, smaller_dinov2
from recap.encoders.int8 import saturates
from recap.encoders.onnx import Chain
from recap.encoders.preprocess import Preprocess
from recap.errors import AssetError


@pytest.fixture
def two_steps(tmp_path: Path, tiny: ModuleType) -> Path:
    model: Path = tiny.save_model(
        tmp_path / "two.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["middle"]), helper.make_node("MatMul", ["middle", "v"], ["output"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "v": np.ones((4, 2), np.float32)},
        ["batch", "2"],
    )
    return model


def test_a_part_ends_at_its_tensor_and_leaves_later_weights_out(tmp_path: Path, two_steps: Path) -> None:
    onnx.save(cut(two_steps, "middle"), tmp_path / "part.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "part.onnx"), providers=["CPUExecutionProvider"])
    rows = np.eye(3, dtype=np.float32)
    (middle,) = session.run(None, {"x": rows})
    assert np.array_equal(middle, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert _weights(tmp_path / "part.onnx") == {"w"}


def test_the_last_file_of_a_chain_also_reads_the_network_beside(tmp_path: Path, two_steps: Path, tiny: ModuleType):
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("rows", "others")]
    last: Path = tiny.save_model(
        tmp_path / "last.onnx", [helper.make_node("Sub", ["rows", "others"], ["output"])], inputs, {}, ["batch", "2"]
    )
    beside: Path = tiny.save_model(
        tmp_path / "beside.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["output"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        {"w": np.full((3, 2), 5, np.float32)},
        ["batch", "2"],
    )
    rows = np.eye(3, dtype=np.float32)
    whole = np.arange(12, dtype=np.float32).reshape(3, 4) @ np.ones((4, 2), np.float32)
    assert np.array_equal(Chain((two_steps, last), beside=beside).run({"x": rows}), whole - 5)


@pytest.mark.skipif(not is_cached("dinov2"), reason="needs the weights of recap setup")
def test_dinov2_with_fewer_patches_sees_nearly_the_same() -> None:
    cat = Image.open(Path(__file__).parents[2] / "examples" / "pictures" / "cat.jpg").convert("RGB")
    pixels = Preprocess(resize="squash")(cat)[None]
    before, after = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"input": pixels})[0]
        for path in (fetch("dinov2"), dinov2_part())
    )
    assert (before.shape, after.shape) == ((1, 8, 8, 384), (1, 7, 7, 384))
    ours, theirs = after.reshape(-1, 384).mean(0), before.reshape(-1, 384).mean(0)
    assert ours @ theirs > 0.8 * np.linalg.norm(ours) * np.linalg.norm(theirs)


@pytest.mark.skipif(not is_cached("dinov2"), reason="needs the weights of recap setup")
def test_dinov2_in_eight_bits_sees_what_it_sees_in_float() -> None:
    coffee = Image.open(Path(__file__).parents[2] / "examples" / "pictures" / "coffee.jpg").convert("RGB")
    pixels = Preprocess(resize="squash")(coffee)[None]
    models = smaller_dinov2(fetch("dinov2")).SerializeToString(), str(dinov2_part())
    exact, ours = (
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"input": pixels})[0]
        for model in models
    )
    cosines = (exact * ours).sum(-1) / np.linalg.norm(exact, axis=-1) / np.linalg.norm(ours, axis=-1)
    assert cosines.mean() > 0.995
    assert cosines.min() > 0.99
    share = 0.54 if saturates() else 0.31  # without VNNI each matrix in 8 bits is the sum of two
    assert dinov2_part().stat().st_size < share * fetch("dinov2").stat().st_size


def test_an_unknown_tensor_is_named(two_steps: Path) -> None:
    with pytest.raises(AssetError, match="no tensor elsewhere"):
        cut(two_steps, "elsewhere")


def test_a_part_is_cut_once(tmp_path: Path, two_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ASSETS, "two", Asset("two", LocalFile(two_steps)))
    first = first_part("two", "middle")
    two_steps.unlink()
    assert first_part("two", "middle") == first
    assert part_sha256("two", "middle") != part_sha256("two", "output")


@pytest.mark.parametrize("damage", [lambda content: content[:-7], lambda content: bytes(len(content))])
def test_a_part_that_has_changed_is_cut_again(
    tmp_path: Path, two_steps: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ASSETS, "two", Asset("two", LocalFile(two_steps)))
    content = first_part("two", "middle").read_bytes()
    first_part("two", "middle").write_bytes(damage(content))
    assert first_part("two", "middle").read_bytes() == content


def _weights(path: Path) -> set[str]:
    return {tensor.name for tensor in onnx.load(path).graph.initializer}
