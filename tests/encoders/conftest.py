"""Tiny models and pictures made on the spot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SIZE = 16
IMAGE_DIMENSION = 6
TEXT_DIMENSION = 5
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "red", "dog", "runs", "house", "sea")


def _allow_open_clip_to_import() -> None:
    """Declare two operators that a torchvision built for another torch expects to find."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:
        import torch

        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _allow_open_clip_to_import.library = library  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def open_clip() -> object:
    pytest.importorskip("torch")
    _allow_open_clip_to_import()
    return pytest.importorskip("open_clip")


def save_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    output: list[str],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "tiny",
        inputs,
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def image_weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, IMAGE_DIMENSION)).astype(np.float32)


def save_image_model(path: Path, *, seed: int = 0, patches: bool = False, batch: int | str = "batch") -> Path:
    """Colours by cell of a 4x4 grid, mapped linearly and shifted by the largest value in the whole batch.

    The shift stands for dynamic quantisation: neighbours in a batch change each other unless each runs alone.
    The output is (batch, 4, 4, d) with ``patches``, else their mean, (batch, d).
    """
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [batch, 3, SIZE, SIZE])
    nodes = [
        helper.make_node("AveragePool", ["pixels"], ["cells"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Transpose", ["cells"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["last", "weights"], ["mapped"]),
        helper.make_node("ReduceMax", ["mapped"], ["top"], keepdims=1),
        helper.make_node("Add", ["top", "one"], ["scale"]),
        helper.make_node("Exp", ["scale"], ["positive"]),
        helper.make_node("Add", ["mapped", "positive"], ["output" if patches else "shifted"]),
    ]
    if not patches:
        nodes.append(helper.make_node("ReduceMean", ["shifted"], ["output"], axes=[1, 2], keepdims=0))
    shape = ["n", "height", "width", "d"] if patches else ["n", "d"]
    return save_model(path, nodes, [pixels], {"weights": image_weights(seed), "one": np.ones(1, np.float32)}, shape)


def image_oracle(pixels: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """What ``save_image_model`` computes for one picture alone, of unit length."""
    cells = pixels.reshape(3, 4, 4, 4, 4).mean(axis=(2, 4)).transpose(1, 2, 0)
    mapped = cells @ image_weights(seed)
    vector = (mapped + np.exp(mapped.max() + 1)).mean(axis=(0, 1))
    return vector / np.linalg.norm(vector)


def text_weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(100 + seed).standard_normal((len(WORDS), TEXT_DIMENSION)).astype(np.float32)


def save_text_model(path: Path, *, seed: int = 0, kind: int = TensorProto.INT64) -> Path:
    """One vector for each token, times its place among the masked ones, so that order and padding matter."""
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name in names]
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("CumSum", ["mask", "axis"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["output"]),
    ]
    weights = {"weights": text_weights(seed), "axis": np.array(1), "last": np.array([2])}
    return save_model(path, nodes, inputs, weights, ["n", "tokens", "d"])


def text_oracle(words: list[str], *, seed: int = 0) -> np.ndarray:
    """The unit vector of a text whose tokens, special ones included, are given."""
    rows = text_weights(seed)[[WORDS.index(word) for word in words]]
    vector = (rows * np.arange(1, len(words) + 1)[:, None]).mean(axis=0)
    return vector / np.linalg.norm(vector)


def save_tokenizer(path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(length=32)  # as published files have it; the encoder must switch it off
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The functions of this file, for tests that make their own models."""
    return sys.modules[__name__]


@pytest.fixture
def onnx_pair(tmp_path: Path) -> Path:
    """A folder for ``onnx:FOLDER``."""
    folder = tmp_path / "pair"
    save_image_model(folder / "image.onnx")
    save_text_model(folder / "text.onnx")
    save_tokenizer(folder / "tokenizer.json")
    config = {"image": {"size": SIZE}, "text": {"max_length": 6, "pooling": "mean"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def make_picture() -> Callable[..., Image.Image]:
    def make(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
        values = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3), np.uint8)
        return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)

    return make
