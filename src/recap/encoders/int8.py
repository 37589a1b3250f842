"""Graphs in 8 bits whose result does not depend on the batch.

Published int8 graphs take one scale for all activations of a batch, so that a vector depends on its neighbours. Here
every row (a token) has a scale of its own: the products are sums of integers, exact in any order and for any batch.
Before that, channels with large activations hand some of their size over to the weights (SmoothQuant, alpha 0.5),
which is measured once on a few inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Feed: TypeAlias = Mapping[str, npt.NDArray[Any]]

WEIGHT_LIMIT = ACTIVATION_LIMIT = 127
MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""
_OPSET = 17
"""Of ONNX, that of our own exported graphs."""


class Graph:
    """Nodes, and the constants that they name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._made: dict[str, npt.NDArray[Any]] = {}

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add a constant, and return its name."""
        self._made[name] = values
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, which is returned."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weights(self) -> list[onnx.TensorProto]:
        """Return the constants."""
        return [numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in self._made.items()]


def quantize(model: onnx.ModelProto, feeds: Iterable[Feed], kept: Collection[str] = ()) -> onnx.ModelProto:
    """Return a float graph whose products with constant matrices are made in 8 bits; channels are measured on feeds.

    Products whose names begin with one of ``kept`` stay in float.
    """
    model = _make_independent(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [
        node
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in constants and not node.name.startswith(tuple(kept))
    ]
    matrices = {node.input[1]: numpy_helper.to_array(constants[node.input[1]]) for node in products}
    largest = _largest(model, sorted({node.input[0] for node in products}), feeds)
    scales = {
        x: _smoothing(top, [matrices[node.input[1]] for node in products if node.input[0] == x])
        for x, top in largest.items()
    }
    graph = Graph()
    for name, value in (("one", 1), ("limit", ACTIVATION_LIMIT), ("least", 1e-9)):
        graph.constant(f"rows.{name}", np.array(value, np.float32))
    graph.constant("rows.zero", np.array(128, np.uint8))
    for node in model.graph.node:
        if node in products:
            _quantize_product(graph, node, matrices[node.input[1]], scales[node.input[0]])
        else:
            graph.nodes.append(node)
    used = {name for node in graph.nodes for name in node.input}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in used] + graph.weights()
    inputs, outputs = list(model.graph.input), list(model.graph.output)
    made = make_model(helper.make_graph(graph.nodes, model.graph.name, inputs, outputs, weights))
    return halve(made) if saturates() else made


@cache
def saturates() -> bool:
    """Tell whether this processor, or what onnxruntime makes of it, cuts sums of two products at 16 bits.

    Without VNNI it does: one output in thirty of our own sentences would be wrong.
    """
    import onnxruntime

    graph = Graph()
    graph.node("MatMulInteger", ["x", graph.constant("matrix", np.full((64, 32), 127, np.int8))], "sums")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [None, 64])
    sums = helper.make_tensor_value_info("sums", onnx.TensorProto.INT32, [None, 32])
    model = make_model(helper.make_graph(graph.nodes, "largest", [x], [sums], graph.weights()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((4, 64), 255, np.uint8)})
    return bool((found != 64 * 255 * 127).any())


def halve(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph in 8 bits with each matrix as the sum of two in 7: twice the work, the same integers anywhere."""
    matrices = {tensor.name: tensor for tensor in model.graph.initializer}
    graph = Graph()
    for node in model.graph.node:
        if node.op_type != "MatMulIntegerToFloat":
            graph.nodes.append(node)
            continue
        (x, name, _, steps, zero), output = node.input, node.output[0]
        whole = numpy_helper.to_array(matrices.pop(name)).astype(np.int16)
        sums = []
        for part, half in enumerate((whole // 2, whole - whole // 2)):
            matrix = graph.constant(f"{name}.{part}", half.astype(np.int8))
            sums.append(graph.node("MatMulInteger", [x, matrix, zero], f"{output}.{part}"))
        graph.node("Add", sums, f"{output}.sum")
        graph.node("Cast", [f"{output}.sum"], f"{output}.float", to=onnx.TensorProto.FLOAT)
        graph.node("Mul", [f"{output}.float", steps], output)
    weights = [*matrices.values(), *graph.weights()]
    inputs, outputs = list(model.graph.input), list(model.graph.output)
    return make_model(helper.make_graph(graph.nodes, model.graph.name, inputs, outputs, weights))


def fold_constants(model: Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph, or that of a file, with all that does not depend on its inputs computed."""
    import tempfile

    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _make_independent(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph in which one text is summed in the same order as several.

    A float product of one row and a mean over the words of one text are computed in ways of their own: a ``Gemm`` with
    a constant matrix becomes a product, to be made in 8 bits, and a sum; a mean over words becomes a product with ones.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        first, output = node.input[0] if node.input else "", node.output[0]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gemm" and node.input[1] in constants:
            matrix = numpy_helper.to_array(constants[node.input[1]])
            matrix = np.ascontiguousarray(matrix.T if attributes.get("transB") else matrix)
            made.graph.initializer.append(numpy_helper.from_array(matrix, f"{output}.affine"))
            product = helper.make_node("MatMul", [first, f"{output}.affine"], [f"{output}.product"])
            made.graph.node.extend([product, helper.make_node("Add", [f"{output}.product", node.input[2]], [output])])
        elif node.op_type == "ReduceMean" and attributes.get("axes") == [1] and not attributes.get("keepdims", 1):
            made.graph.node.extend(_mean_as_product(first, output))
            made.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), f"{output}.axis"))
        else:
            made.graph.node.append(node)
    return made


def _mean_as_product(x: str, output: str) -> list[onnx.NodeProto]:
    one = helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0])
    shape, ones, row, total, sums, words, count = (f"{output}.{part}" for part in range(7))
    return [
        helper.make_node("Shape", [x], [shape], end=2),
        helper.make_node("ConstantOfShape", [shape], [ones], value=one),
        helper.make_node("Unsqueeze", [ones, f"{output}.axis"], [row]),
        helper.make_node("MatMul", [row, x], [total]),
        helper.make_node("Squeeze", [total, f"{output}.axis"], [sums]),
        helper.make_node("Shape", [x], [words], start=1, end=2),
        helper.make_node("Cast", [words], [count], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", [sums, count], [output]),
    ]


def _quantize_product(
    graph: Graph, node: onnx.NodeProto, matrix: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]
) -> None:
    x, output = node.input[0], node.output[0]
    if not any(f"{x}.rows" in other.output for other in graph.nodes):
        smooth = graph.node("Mul", [x, graph.constant(f"{x}.channels", 1 / scale)], f"{x}.smooth")
        size = graph.node("Abs", [smooth], f"{x}.size")
        top = graph.node("ReduceMax", [size], f"{x}.top", axes=[-1])
        top = graph.node("Max", [top, "rows.least"], f"{x}.safe")
        factor = graph.node("Div", ["rows.limit", top], f"{x}.factor")
        wide = graph.node("Mul", [smooth, factor], f"{x}.wide")
        graph.node("QuantizeLinear", [wide, "rows.one", "rows.zero"], f"{x}.rows")
        graph.node("Div", [top, "rows.limit"], f"{x}.step")
    smoothed = matrix * scale[:, None]
    step = (np.maximum(np.abs(smoothed).max(axis=0), 1e-12) / WEIGHT_LIMIT).astype(np.float32)
    matrix_name = graph.constant(f"{output}.matrix", np.round(smoothed / step).astype(np.int8))
    inputs = [f"{x}.rows", matrix_name, "rows.one", graph.constant(f"{output}.steps", step), "rows.zero"]
    graph.node("MatMulIntegerToFloat", inputs, f"{output}.unscaled", domain=MICROSOFT)
    graph.node("Mul", [f"{output}.unscaled", f"{x}.step"], output)


def _largest(model: onnx.ModelProto, names: list[str], feeds: Iterable[Feed]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the largest size of each channel of some tensors."""
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    runs = [
        [np.abs(values).reshape(-1, values.shape[-1]).max(axis=0) for values in session.run(names, dict(feed))]
        for feed in feeds
    ]
    return {name: np.max(tops, axis=0) for name, tops in zip(names, zip(*runs, strict=True), strict=True)}


def _smoothing(top: npt.NDArray[np.float32], matrices: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return by what the channels of an activation are divided, and the rows of its matrices multiplied."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    scale = np.sqrt(np.maximum(top, 1e-5) / np.maximum(rows, 1e-5))
    return np.asarray(scale / np.exp(np.log(scale).mean()), np.float32)


def make_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """Return a graph as a model of the versions that we write."""
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)], ir_version=9
    )
