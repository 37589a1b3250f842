"""Torch modules as small ONNX files.

Matrices are stored as int8 with a scale for each row or column and become float32 again when a session loads them: the
files are a quarter of the size, and what a row gives does not depend on what else is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

SMALLEST = 4096
"""Tensors with fewer values stay as they are."""


def export_module(
    module: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
    *,
    half: bool = False,
) -> None:
    """Write a module; ``inputs`` and ``outputs`` name its tensors and their axes of free length.

    ``half`` stores matrices as float16, where int8 would lose too much.
    """
    torch.onnx.export(
        module.eval(),
        example,
        str(path),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**inputs, **outputs},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(str(path))
    shrink(model, half=half)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def shrink(model: onnx.ModelProto, *, half: bool = False) -> None:
    """Store large matrices in a smaller type; what brings them back is computed once, when the session loads."""
    graph = model.graph
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < SMALLEST or values.ndim < 2:
            continue
        graph.initializer.remove(tensor)
        (_store_half if half else _store_int8)(graph, tensor.name, values)


def _store_half(graph: onnx.GraphProto, name: str, values: npt.NDArray[np.float32]) -> None:
    graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
    graph.node.insert(0, helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))


def _store_int8(graph: onnx.GraphProto, name: str, values: npt.NDArray[np.float32]) -> None:
    small, scale = _as_int8(values)
    names = [f"{name}_{part}" for part in ("int8", "scale", "float")]
    graph.initializer.append(numpy_helper.from_array(small, names[0]))
    graph.initializer.append(numpy_helper.from_array(scale, names[1]))
    graph.node.insert(0, helper.make_node("Mul", [names[2], names[1]], [name]))
    graph.node.insert(0, helper.make_node("Cast", [names[0]], [names[2]], to=TensorProto.FLOAT))


def _as_int8(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return values as int8 and their scales, along the axis that loses least."""
    best: tuple[float, npt.NDArray[np.int8], npt.NDArray[np.float32]] | None = None
    for axis in range(values.ndim):
        others = tuple(other for other in range(values.ndim) if other != axis)
        scale = np.maximum(np.abs(values).max(axis=others, keepdims=True), 1e-12) / 127
        small = np.round(values / scale).astype(np.int8)
        lost = float(np.square(small * scale - values).sum())
        if best is None or lost < best[0]:
            best = lost, small, scale.astype(np.float32)
    assert best is not None
    return best[1], best[2]


def stored_values(graph: onnx.GraphProto) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a graph by name, as they were before ``shrink``."""
    stored: dict[str, npt.NDArray[Any]] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values = {name: array for name, array in stored.items() if not name.endswith(("_half", "_int8", "_scale"))}
    for name, array in stored.items():
        whole = name.rpartition("_")[0]
        if name.endswith("_half"):
            values[whole] = array.astype(np.float32)
        elif name.endswith("_int8"):
            values[whole] = array * stored[f"{whole}_scale"]
    return values
