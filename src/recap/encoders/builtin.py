"""The encoders that come without a hub and without torch.

``eyes`` is a small vision-language model of our own: TinyViT-5M for images and MiniLM for texts up to before their last
stage, which come from packages of the Python index, and from there on our own weights, trained by
``tools/train_eyes.py`` so that both sides share a space. TinyViT-5M, DINOv2 and MiniLM are there as they are, too.

The first part of a network: some of ours continue a published one from the middle.

The part is cut out of the published file once, and kept in the cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from recap.assets import ASSETS, cache_dir, fetch
from recap.encoders.base import LoadOptions
from recap.encoders.network import fingerprint_of
from recap.encoders.onnx import OnnxImageEncoder, OnnxTextEncoder
from recap.encoders.preprocess import Preprocess
from recap.errors import AssetError
from recap.files import atomic_write, file_sha256

PLACES = 7 * 7
"""Of a picture, which the eyes say something of beside its vector;"""
DETAILS = PLACES * 128
"""so many numbers in all."""
EYES_FOLDER = Path(__file__).parent.parent / "data" / "eyes"
TINYVIT_CUT = "/stages/stages.2/Transpose_1_output_0"
"""What TinyViT's last stage reads: 160 x 14 x 14."""
MINILM_CUT = "/encoder/layer.4/output/LayerNorm/Add_1_output_0"
"""What MiniLM's last layer reads: 384 for each token."""
MINILM_WINDOW = 256
"""How many tokens MiniLM reads."""


def load_eyes_image(options: LoadOptions) -> OnnxImageEncoder:
    """Return the image side of ``eyes``: 512 dimensions. It sees the whole picture, squashed into a square."""
    ours = _packaged("image.onnx")
    return OnnxImageEncoder(
        (first_part("tinyvit", TINYVIT_CUT), ours),
        Preprocess(resize="squash"),
        name="eyes",
        details=DETAILS,
        sha256=fingerprint_of(part_sha256("tinyvit", TINYVIT_CUT), file_sha256(ours)),
        options=options,
    )


def load_eyes_text(options: LoadOptions) -> OnnxTextEncoder:
    """Return the text side of ``eyes``: 512 dimensions."""
    ours = _packaged("text.onnx")
    sha256 = fingerprint_of(part_sha256("minilm", MINILM_CUT), file_sha256(ours))
    return _text_encoder("eyes", (first_part("minilm", MINILM_CUT), ours), "none", sha256, options)


def load_minilm(options: LoadOptions) -> OnnxTextEncoder:
    """Return all-MiniLM-L6-v2 in int8, the mean of its token outputs: 384 dimensions."""
    return _text_encoder("minilm", fetch("minilm"), "mean", ASSETS["minilm"].sha256, options)


def _image_encoder(name: str, pooling: str, options: LoadOptions) -> OnnxImageEncoder:
    sha256 = ASSETS[name].sha256
    return OnnxImageEncoder(fetch(name), Preprocess(), name=name, pooling=pooling, sha256=sha256, options=options)


load_tinyvit = partial(_image_encoder, "tinyvit", "none")
load_dinov2 = partial(_image_encoder, "dinov2", "mean")


def _text_encoder(
    name: str, path: Path | Sequence[Path], pooling: str, sha256: str, options: LoadOptions
) -> OnnxTextEncoder:
    tokenizer = fetch("minilm-tokenizer")
    return OnnxTextEncoder(
        path, tokenizer, name=name, max_length=MINILM_WINDOW, pooling=pooling, sha256=sha256, options=options
    )


def _packaged(name: str) -> Path:
    path = EYES_FOLDER / name
    if not path.is_file():
        raise AssetError(f"this installation of recap has no eyes: {path} is missing; install it again")
    return path


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
