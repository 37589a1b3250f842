"""MiniLM as an ONNX graph of its float32 weights, to be made in 8 bits (see ``int8``).

Its channels are smoothed by our own sentences: the cosine with the float32 model is 0.999 then, and 0.997 without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from recap.encoders.int8 import MICROSOFT, Graph, make_model

Weights: TypeAlias = Mapping[str, npt.NDArray[Any]]

HEADS = 12


def build(weights: Weights, layers: int) -> onnx.ModelProto:
    """Return the first layers of a BERT as a float graph from ``input_ids`` of texts of one length to ``tokens``."""
    graph = _Bert(weights)
    graph.node("Gather", ["embeddings.word_embeddings.weight", "input_ids"], "words")
    graph.node("Shape", ["input_ids"], "length", start=1)
    graph.constant("start", np.zeros(1, np.int64))
    graph.node("Slice", ["embeddings.position_embeddings.weight", "start", "length"], "places")
    graph.constant("type", weights["embeddings.token_type_embeddings.weight"][0].astype(np.float32))
    graph.node("Add", ["words", "places"], "placed")
    graph.node("Add", ["placed", "type"], "embedded")
    norm = [f"embeddings.LayerNorm.{part}" for part in ("weight", "bias")]
    graph.node("LayerNormalization", ["embedded", *norm], "0", epsilon=1e-12)
    for layer in range(layers):
        graph.layer(f"encoder.layer.{layer}.", str(layer), str(layer + 1))
    graph.node("Identity", [str(layers)], "tokens")
    width = len(weights["embeddings.LayerNorm.weight"])
    ids = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["texts", "words"])
    tokens = helper.make_tensor_value_info("tokens", onnx.TensorProto.FLOAT, ["texts", "words", width])
    return make_model(helper.make_graph(graph.nodes, "minilm", [ids], [tokens], graph.weights()))


class _Bert(Graph):
    """A graph that also knows the weights of a BERT by their names."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._weights = weights

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, which is returned; weights among its inputs become constants."""
        for name in inputs:
            if name in self._weights:
                self.constant(name, self._weights[name].astype(np.float32))
        return super().node(kind, inputs, output, **attributes)

    def product(self, place: str, x: str) -> str:
        """Multiply by the matrix of a place, without its bias."""
        matrix = self.constant(f"{place}.matrix", self._weights[f"{place}.weight"].T.astype(np.float32))
        return self.node("MatMul", [x, matrix], f"{place}.product")

    def layer(self, place: str, x: str, output: str) -> None:
        """Add one layer from x to the output."""
        names = [f"{place}attention.self.{part}" for part in ("query", "key", "value")]
        bias = self.constant(f"{place}bias", np.concatenate([self._weights[f"{name}.bias"] for name in names]))
        heads = [*(self.product(name, x) for name in names), bias]
        seen = self.node("MultiHeadAttention", heads, f"{place}seen", domain=MICROSOFT, num_heads=HEADS)
        middle = self._add_and_norm(f"{place}attention.output", seen, x, f"{place}middle")
        wide = self.product(f"{place}intermediate.dense", middle)
        bent = self.node("BiasGelu", [wide, f"{place}intermediate.dense.bias"], f"{place}bent", domain=MICROSOFT)
        self._add_and_norm(f"{place}output", bent, middle, output)

    def _add_and_norm(self, place: str, x: str, skip: str, output: str) -> str:
        parts = [f"{place}.LayerNorm.weight", f"{place}.LayerNorm.bias", f"{place}.dense.bias"]
        inputs = [self.product(f"{place}.dense", x), skip, *parts]
        return self.node("SkipLayerNormalization", inputs, output, domain=MICROSOFT, epsilon=1e-12)
