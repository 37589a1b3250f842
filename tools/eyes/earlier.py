"""The weights of exported eyes, to begin another training with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx_files import stored_values
from torch import Tensor, nn

from eyes.large import Large
from eyes.model import Eyes


def begin_with(model: Eyes, folder: Path) -> None:
    """Give a model what the exported eyes in ``folder`` know."""
    load_tower(model.image, folder / "image.onnx")
    load_tower(model.text, folder / "text.onnx")


def exported_large(folder: Path) -> Large:
    """Return what joins the eyes and DINOv2 as exported in ``folder``; its scale, which is not, begins anew."""
    model, weights = Large(), _weights(folder / "large.onnx")
    for layer in ("look", "value"):  # called by a method of their own, without the name of the pool they belong to
        weights[f"pool.{layer}.weight"] = weights.pop(f"{layer}.weight")
    # three biases whose sum alone counts; those that learned alike are exported once
    weights.setdefault("pool.found.bias", weights["pool.straight.bias"])
    model.load_state_dict({name: weights.get(name, value) for name, value in model.state_dict().items()})
    return model


def load_tower(tower: nn.Module, path: Path) -> None:
    """Give a tower the weights of an exported one."""
    weights, state = _weights(path), tower.state_dict()
    # equal buffers of two blocks are exported once, and are the same in every model
    missing = {name for name in state.keys() - weights.keys() if not name.endswith(".offsets")}
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    known = {name: weights[name].reshape(value.shape) for name, value in state.items() if name in weights}
    tower.load_state_dict({**state, **known})


def _weights(path: Path) -> dict[str, Tensor]:
    """Return tensors by their names in the tower."""
    graph = onnx.load(str(path)).graph
    values = stored_values(graph)
    found = {name.removeprefix("tower."): value for name, value in values.items()}
    for node in graph.node:
        # a product outside of all layers is with a tensor that has its own name
        if node.op_type == "MatMul" and node.input[1] in values and node.name.count("/") > 1:
            found[f"{_layer(node.name)}.weight"] = values[node.input[1]].T
    return {name: torch.from_numpy(np.array(value, order="C")) for name, value in found.items()}


def _layer(node: str) -> str:
    """Return the layer a product belongs to: ``/stage/blocks/blocks.0/qkv/MatMul`` is ``stage.blocks.0.qkv``."""
    parts = node.strip("/").split("/")[:-1]
    following = [*parts[1:], ""]
    return ".".join(part for part, after in zip(parts, following, strict=True) if not after.startswith(f"{part}."))
