"""The weights of an exported writer, to begin another training with: words are known by their spelling."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx_files import stored_values
from torch import Tensor

from writer.model import Writer


def begin_with(model: Writer, folder: Path, vocabulary: list[str]) -> None:
    """Give a model what an exported one of the same width knows; what is new in it stays as it is."""
    found = {**_weights(folder / "read.onnx", "memory"), **_weights(folder / "step.onnx", "past")}
    known = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocabulary"]
    state = model.state_dict()
    row = {word: place for place, word in enumerate(known)}
    pairs = [(place, row[word]) for place, word in enumerate(vocabulary) if word in row]
    ours, theirs = (torch.tensor(part) for part in zip(*pairs, strict=True))
    state["words.weight"][ours] = found.pop("words.weight")[theirs]
    state["bias"][ours] = found.pop("bias")[theirs]
    detail = found.get("detail.weight")
    if detail is not None and detail.shape != state["detail.weight"].shape:
        # further directions of a place are new, and mean nothing yet
        state["detail.weight"].zero_()
        state["detail.weight"][:, : detail.shape[1]] = detail
        state["detail.bias"].copy_(found["detail.bias"])
        print("details widened")
    taken = {name: value for name, value in found.items() if name in state and state[name].shape == value.shape}
    model.load_state_dict({**state, **taken})
    print(f"{len(pairs):,} of {len(vocabulary):,} words and {len(taken)} of {len(state)} tensors are from {folder}")


def _weights(path: Path, side: str) -> dict[str, Tensor]:
    """Return tensors by their names in the model; ``side`` is whose keys and values the graph computes."""
    graph = onnx.load(path).graph
    values = {name: value.astype(np.float32) for name, value in stored_values(graph).items()}
    found = {name.removeprefix("writer."): value for name, value in values.items() if name.startswith("writer.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in values:
            found[_name(node.name, side) + ".weight"] = values[node.input[1]].T
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


def _name(node: str, side: str) -> str:
    """Return the name of the layer a product belongs to: ``/past/query_1/MatMul`` is ``layers.1.past.query``."""
    path, number = re.fullmatch(r"/(.+?)(?:_(\d))?/MatMul", node).groups()  # type: ignore[union-attr]
    parts = path.split("/")
    if parts in (["detail"], ["patch"]):
        return parts[0]
    if parts[0] in ("share", "encoder"):
        parts = ["encoder", "attention", *parts[1:]] if parts == ["encoder", "key_value"] else parts
        return ".".join([*parts[:-1], parts[-1].removeprefix(f"{parts[-2]}.")])
    parts = [side, *parts] if parts == ["key_value"] else parts
    parts[-1] = parts[-1].removeprefix(f"{parts[0]}.")
    return ".".join(["layers", number or "0", *parts])
