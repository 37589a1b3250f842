"""A small BERT of random weights: the graph against numpy, 8 bits against float, and independence of the batch."""

from __future__ import annotations

from math import erf
from types import ModuleType

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.encoders.int8 import quantize
from recap.encoders.minilm import HEADS, build
from recap.encoders.onnx import OnnxTextEncoder

WIDTH, INNER, WORDS, LAYERS = 48, 96, 40, 2
WORDS_OF_TEXTS = ("a", "red", "dog", "runs", "house", "sea")
Weights = dict[str, npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def weights() -> Weights:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return random.normal(0, 0.2, shape).astype(np.float32)

    found = {f"embeddings.{part}_embeddings.weight": draw(WORDS, WIDTH) for part in ("word", "position", "token_type")}
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        place = f"encoder.layer.{layer}."
        shapes = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (INNER, WIDTH)}
        shapes |= {"output.dense": (WIDTH, INNER)}
        for name, shape in shapes.items():
            found |= {f"{place}{name}.weight": draw(*shape), f"{place}{name}.bias": draw(shape[0])}
        norms += [f"{place}attention.output.LayerNorm", f"{place}output.LayerNorm"]
    for name in norms:
        found |= {f"{name}.weight": 1 + draw(WIDTH), f"{name}.bias": draw(WIDTH)}
    # a channel that is much larger than the others, as trained networks have
    found[f"{norms[0]}.weight"][3] = 20
    return found


@pytest.fixture(scope="module")
def encoder(weights: Weights, tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> OnnxTextEncoder:
    folder = tmp_path_factory.mktemp("minilm")
    onnx.save(quantize(build(weights, LAYERS), _feeds()), folder / "q.onnx")
    tokenizer = tiny.save_tokenizer(folder / "tokenizer.json")
    return OnnxTextEncoder(folder / "q.onnx", tokenizer, name="q", max_length=12, batch_size=5)


def test_the_graph_is_a_bert(weights: Weights) -> None:
    ids = np.array([[1, 4, 5, 2], [1, 9, 9, 2]])
    tokens = _run(build(weights, LAYERS), ids)
    assert np.allclose(tokens, [_bert(row, weights) for row in ids], atol=1e-4)


def test_eight_bits_are_close_to_float_and_closer_than_without_smoothing(weights: Weights) -> None:
    ids = np.random.default_rng(1).integers(0, WORDS, (20, 7))
    model = build(weights, LAYERS)
    exact = _run(model, ids)
    unmeasured = [{"input_ids": np.array([[0]])}]
    assert _error(_run(quantize(model, _feeds()), ids), exact) < 0.03
    assert _error(_run(quantize(model, _feeds()), ids), exact) < _error(_run(quantize(model, unmeasured), ids), exact)


def test_matrices_are_stored_in_bytes(weights: Weights) -> None:
    model = build(weights, LAYERS)
    graph = quantize(model, _feeds()).graph
    stored = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(stored) == 6 * LAYERS
    assert not any(node.op_type == "MatMul" for node in graph.node)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS_OF_TEXTS), max_size=9), min_size=1, max_size=20))
def test_a_vector_is_the_same_in_any_batch_and_order(encoder: OnnxTextEncoder, texts: list[list[str]]) -> None:
    lines = [" ".join(words) for words in texts]
    together = encoder.encode_texts(lines)
    assert np.array_equal(encoder.encode_texts(lines[::-1])[::-1], together)
    for line, row in zip(lines, together, strict=True):
        assert np.array_equal(encoder.encode_texts([line])[0], row)


def _feeds() -> list[dict[str, npt.NDArray[np.int64]]]:
    return [{"input_ids": np.random.default_rng(seed).integers(0, WORDS, (1, 6))} for seed in range(20)]


def _run(model: onnx.ModelProto, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    tokens: npt.NDArray[np.float32] = session.run(None, {"input_ids": ids})[0]
    return tokens


def _error(found: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def _bert(ids: npt.NDArray[np.int64], weights: Weights) -> npt.NDArray[np.float32]:
    def norm(x: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
        x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    words, places, types = (
        weights[f"embeddings.{part}_embeddings.weight"] for part in ("word", "position", "token_type")
    )
    x = norm(words[ids] + places[: len(ids)] + types[0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        place = f"encoder.layer.{layer}."
        query, key, value = (
            linear(x, f"{place}attention.self.{part}").reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(x + linear(seen, f"{place}attention.output.dense"), f"{place}attention.output.LayerNorm")
        wide = linear(x, f"{place}intermediate.dense")
        bent = wide * (1 + np.vectorize(erf)(wide / np.sqrt(2))) / 2
        x = norm(x + linear(bent, f"{place}output.dense"), f"{place}output.LayerNorm")
    return x
