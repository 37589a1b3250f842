"""A small BERT of random weights: the graph against numpy, 8 bits against float, and independence of the batch."""

from __future__ import annotations

from math import erf
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from recap.encoders.minilm import HEADS, build, fold_constants, halve, quantize
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


def test_halves_give_the_same_integers_on_any_processor() -> None:
    rng = np.random.default_rng(0)
    # the largest there can be: on a processor without VNNI two such products do not fit into 16 bits
    matrix = np.where(rng.random((64, 24)) < 0.9, 127, -127).astype(np.float32)
    x = np.sign(rng.random((5, 64), np.float32) - 0.1)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "matrix"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 24])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    halved = halve(quantize(model, [{"x": x}]))
    stored = [numpy_helper.to_array(tensor) for tensor in halved.graph.initializer]
    assert max(np.abs(values.astype(int)).max() for values in stored if values.dtype == np.int8) <= 64
    session = onnxruntime.InferenceSession(halved.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ matrix, rtol=1e-5)


def test_an_affine_map_becomes_a_product_in_eight_bits() -> None:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", None]) for name in ("x", "y")]
    random = np.random.default_rng(0)
    arrays = {"w": random.normal(size=(5, 8)).astype(np.float32), "b": np.arange(5, dtype=np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)], "g", values[:1], values[1:], weights
    )
    x = random.normal(size=(30, 8)).astype(np.float32)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    small = quantize(model, [{"x": x}])
    session = onnxruntime.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})[0]
    assert _error(found, x @ arrays["w"].T + arrays["b"]) < 0.02
    assert np.array_equal(session.run(None, {"x": x[:1]})[0], found[:1])


def test_the_mean_of_one_text_is_that_of_several() -> None:
    x = np.random.default_rng(0).normal(size=(6, 11, 37)).astype(np.float32)
    source = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "words", 37])
    target = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 37])
    mean = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)
    graph = helper.make_graph([mean], "g", [source], [target])
    model = quantize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), [])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})[0]
    assert np.allclose(found, x.mean(axis=1), atol=1e-6)
    assert all(np.array_equal(session.run(None, {"x": x[i : i + 1]})[0][0], found[i]) for i in range(6))


def test_constants_are_folded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["small"], ["wide"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    small = numpy_helper.from_array(np.array([[1, 2], [3, 4]], np.int8), "small")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [small])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    folded = fold_constants(tmp_path / "m.onnx").graph
    assert [node.op_type for node in folded.node] == ["MatMul"]
    assert numpy_helper.to_array(folded.initializer[0]).tolist() == [[1, 2], [3, 4]]


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
