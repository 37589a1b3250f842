"""The first part of a network: some of ours continue a published one from the middle.

The part is cut out of the published file once, and kept in the cache folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from recap.assets import ASSETS, cache_dir, fetch
from recap.encoders.network import fingerprint_of
from recap.errors import AssetError
from recap.files import atomic_write


def first_part(asset: str, tensor: str) -> Path:
    """Return the graph of an asset up to one of its tensors, cut out on first use."""
    path = cache_dir() / "cut" / f"{asset}-{part_sha256(asset, tensor)[:16]}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            cut(fetch(asset), tensor, Path(file.name))
    return path


def part_sha256(asset: str, tensor: str) -> str:
    """Return a checksum of what ``first_part`` returns: that of the whole file and the place of the cut."""
    return fingerprint_of("cut", ASSETS[asset].sha256, tensor)


def cut(model: str | os.PathLike[str], tensor: str, out: Path) -> None:
    """Write the part of an ONNX file that leads from its inputs to a tensor."""
    import onnx
    from onnx.utils import Extractor

    whole = onnx.shape_inference.infer_shapes(onnx.load(model))
    if not any(tensor in node.output for node in whole.graph.node):
        raise AssetError(f"{model}: there is no tensor {tensor} to cut at")
    weights = {weight.name for weight in whole.graph.initializer}
    inputs = [item.name for item in whole.graph.input if item.name not in weights]
    onnx.save(Extractor(whole).extract_model(inputs, [tensor]), out)
