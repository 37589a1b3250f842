"""Products in 8 bits against float, whatever the processor and the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from recap.encoders.int8 import fold_constants, halve, quantize


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
    exact = x @ arrays["w"].T + arrays["b"]
    assert np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
    assert np.array_equal(session.run(None, {"x": x[:1]})[0], found[:1])


def test_products_that_are_kept_stay_in_float() -> None:
    random = np.random.default_rng(0)
    matrices = {name: random.normal(size=(6, 6)).astype(np.float32) for name in ("first", "second")}
    names = ("x", "middle", "y")
    nodes = [
        helper.make_node("MatMul", [before, matrix], [after], name=f"/{matrix}/MatMul")
        for before, matrix, after in zip(names, matrices, names[1:], strict=False)
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 6]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(matrix, name) for name, matrix in matrices.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = random.normal(size=(4, 6)).astype(np.float32)

    def floats(kept: tuple[str, ...]) -> set[str]:
        return {node.input[1] for node in quantize(model, [{"x": x}], kept).graph.node if node.op_type == "MatMul"}

    assert floats(("/first/",)) == {"first"}
    assert floats(()) == set()


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
