"""The encoders that come without a hub and without torch.

``eyes`` is a small vision-language model of our own: TinyViT-5M for images and MiniLM for texts up to before their last
stage, which come from packages of the Python index, and from there on our own weights, trained by
``tools/train_eyes.py`` so that both sides share a space. ``eyes-large`` also looks with DINOv2 and gives vectors of the
same space. TinyViT-5M, DINOv2 and MiniLM are there as they are, too.

The first part of a network: some of ours continue a published one from the middle.

The part is cut out of the published file once, and kept in the cache folder; so are the graphs of MiniLM, which are
made of its float32 weights (see ``minilm``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.assets import ASSETS, Asset, cache_dir, fetch
from recap.assets.registry import LocalFile
from recap.encoders.base import LoadOptions
from recap.encoders.network import fingerprint_of
from recap.encoders.onnx import OnnxImageEncoder, OnnxTextEncoder
from recap.encoders.preprocess import Preprocess
from recap.errors import AssetError, ChecksumError, InputError
from recap.files import atomic_write, file_sha256

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

PLACES = 7 * 7
"""Of a picture, which the eyes say something of beside its vector;"""
DETAILS = PLACES * 128
"""so many numbers in all,"""
LARGE_DETAILS = PLACES * (128 + 128)
"""and those of ``eyes-large``, to which DINOv2 adds as many for each place."""
EYES_FOLDER = Path(__file__).parent.parent / "data" / "eyes"
TINYVIT_CUT = "/stages/stages.2/Transpose_1_output_0"
"""What TinyViT's last stage reads: 160 x 14 x 14."""
DINOV2_GRID = 14
"""Patches a side that DINOv2 sees for ``eyes-large``; four of them are a place of the eyes."""
_DINOV2_RECIPE = "grid-14, rows-2"
"""Changes whenever ``dinov2_part`` makes another graph of the same weights."""
_DINOV2_FLOATS = ("/blocks.0/mlp/",)
"""What of DINOv2 stays in float: with a twelfth more time it brings half of the lost captions back."""
_CLOUDS = 8
"""So many pictures of clouds measure the channels of DINOv2."""
MINILM_LAYERS = 6
MINILM_WINDOW = 256
"""How many tokens MiniLM reads."""
_MINILM_RECIPE = "rows-1"
"""Changes whenever ``minilm`` makes another graph of the same weights."""
TEXT_BATCH = 32
"""Batch size of texts."""
_CALIBRATION = 8
"""Every so many of our own sentences measures the channels of MiniLM."""


def load_eyes_image(options: LoadOptions) -> OnnxImageEncoder:
    """Return the image side of ``eyes``: 512 dimensions. It sees the whole picture, squashed into a square."""
    return OnnxImageEncoder(
        (first_part("tinyvit", TINYVIT_CUT), _packaged("image.onnx")),
        Preprocess(resize="squash"),
        name="eyes",
        details=DETAILS,
        sha256=_eyes_sha256(),
        options=options,
    )


def load_large_image(options: LoadOptions) -> OnnxImageEncoder:
    """Return the image side of ``eyes-large``: the eyes and DINOv2, in the space of ``eyes`` and with more details."""
    ours = _packaged("large.onnx")
    return OnnxImageEncoder(
        (first_part("tinyvit", TINYVIT_CUT), _packaged("image.onnx"), ours),
        Preprocess(resize="squash"),
        name="eyes-large",
        beside=dinov2_part(),
        details=LARGE_DETAILS,
        sha256=fingerprint_of(_eyes_sha256(), _DINOV2_RECIPE, ASSETS["dinov2"].sha256, file_sha256(ours)),
        options=options,
    )


def _eyes_sha256() -> str:
    return fingerprint_of(part_sha256("tinyvit", TINYVIT_CUT), file_sha256(_packaged("image.onnx")))


def _eyes_text(name: str, options: LoadOptions) -> OnnxTextEncoder:
    """Return the text side of ``eyes`` and ``eyes-large``: 512 dimensions."""
    sha256 = fingerprint_of(minilm_sha256(MINILM_LAYERS - 1), file_sha256(_packaged("text.onnx")))
    return _text_encoder(name, (minilm_part(MINILM_LAYERS - 1), _own_text_part(sha256)), "none", sha256, options)


load_eyes_text = partial(_eyes_text, "eyes")
load_large_text = partial(_eyes_text, "eyes-large")


def load_minilm(options: LoadOptions) -> OnnxTextEncoder:
    """Return all-MiniLM-L6-v2 in 8 bits, the mean of its token outputs: 384 dimensions."""
    return _text_encoder("minilm", minilm_part(MINILM_LAYERS), "mean", minilm_sha256(MINILM_LAYERS), options)


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
        path,
        tokenizer,
        name=name,
        max_length=MINILM_WINDOW,
        pooling=pooling,
        batch_size=TEXT_BATCH,
        sha256=sha256,
        options=options,
    )


def _packaged(name: str) -> Path:
    path = EYES_FOLDER / name
    if not path.is_file():
        raise AssetError(f"this installation of recap has no eyes: {path} is missing; install it again")
    return path


def minilm_part(layers: int) -> Path:
    """Return the graph of MiniLM's first layers in 8 bits, made on first use."""

    def make() -> onnx.ModelProto:
        from safetensors.numpy import load_file

        from recap.encoders.int8 import quantize
        from recap.encoders.minilm import build

        return quantize(build(load_file(fetch("minilm")), layers), _calibration())

    return _kept(f"minilm-{minilm_sha256(layers)[:16]}.onnx", make)


def minilm_sha256(layers: int) -> str:
    """Return a checksum of what ``minilm_part`` returns: that of the weights and how the graph is made."""
    return fingerprint_of(_MINILM_RECIPE, ASSETS["minilm"].sha256, str(layers))


def _own_text_part(sha256: str) -> Path:
    """Return our own last layer of the texts in 8 bits, made on first use."""

    def make() -> onnx.ModelProto:
        from recap.encoders.int8 import fold_constants, quantize
        from recap.encoders.onnx import Chain

        first = Chain(minilm_part(MINILM_LAYERS - 1))
        return quantize(fold_constants(_packaged("text.onnx")), ({"tokens": first.run(ids)} for ids in _calibration()))

    return _kept(f"eyes-text-{sha256[:16]}.onnx", make)


def _calibration() -> list[dict[str, Any]]:
    """Return the ids of some of our own sentences, each alone."""
    import numpy as np
    from tokenizers import Tokenizer

    lines = (EYES_FOLDER.parent / "concepts" / "en.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer.from_file(str(fetch("minilm-tokenizer")))
    tokenizer.no_padding()
    encodings = tokenizer.encode_batch(lines[1::_CALIBRATION])
    return [{"input_ids": np.array([encoding.ids], np.int64)} for encoding in encodings]


def _kept(name: str, make: Callable[[], onnx.ModelProto]) -> Path:
    """Return a graph from the cache folder, made if it is not there as it was written."""
    path = cache_dir() / "cut" / name
    noted = path.with_suffix(".sha256")
    with suppress(OSError, InputError, ChecksumError, UnicodeError):
        return fetch(Asset(name, LocalFile(path), sha256=noted.read_text("ascii") or "none"))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = make().SerializeToString()
    for file_path, data in ((path, content), (noted, hashlib.sha256(content).hexdigest().encode())):
        with atomic_write(file_path) as file:
            file.write(data)
    return path


def dinov2_part() -> Path:
    """Return the graph of DINOv2 that ``eyes-large`` looks with, in 8 bits: half of the time. Made on first use."""

    def make() -> onnx.ModelProto:
        from recap.encoders.int8 import fold_constants, quantize

        whole = fold_constants(smaller_dinov2(fetch("dinov2")))
        return quantize(whole, map(_clouds, range(_CLOUDS)), _DINOV2_FLOATS)

    sha256 = fingerprint_of(_DINOV2_RECIPE, ASSETS["dinov2"].sha256)
    return _kept(f"dinov2-{sha256[:16]}.onnx", make)


def _clouds(seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return a picture of nothing, as rough as photographs are: which channels are large hardly depends on it."""
    import numpy as np

    side = Preprocess().size
    frequency = np.fft.fftfreq(side)
    falling = np.hypot(frequency[:, None], frequency) ** 1.2
    falling[0, 0] = np.inf  # no mean
    noise = np.random.default_rng(seed).standard_normal((3, side, side))
    channels = np.fft.ifft2(np.fft.fft2(noise) / falling).real
    channels /= channels.std(axis=(1, 2), keepdims=True)
    return {"input": channels[None].astype(np.float32)}


def smaller_dinov2(model: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return DINOv2 with fewer patches of the same picture: three quarters of the work, and the grid of the eyes.

    The published file reads 16 x 16 patches; pictures are made smaller inside the graph, positions between its own.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    whole = onnx.load(model)
    graph = whole.graph
    side = float(DINOV2_GRID)
    constants: dict[str, npt.NDArray[Any]] = {
        "/Constant_11": np.array([1, 1, (side + 0.1) / 37, (side + 0.1) / 37], np.float32),  # scale of the positions
        "/Constant_18": np.array([-1, DINOV2_GRID, DINOV2_GRID, 384], np.int64),  # rows and columns of patches
    }
    for node in graph.node:
        if node.name in constants:
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(constants[node.name]))
        if "input" in node.input:
            node.input[list(node.input).index("input")] = "smaller"
    scale = numpy_helper.from_array(np.array([1, 1, side / 16, side / 16], np.float32), "shrink")
    graph.initializer.append(scale)
    graph.node.insert(0, helper.make_node("Resize", ["input", "", "shrink"], ["smaller"], mode="linear"))
    return whole


def first_part(asset: str, tensor: str) -> Path:
    """Return the graph of an asset up to one of its tensors, cut out on first use."""
    return _kept(f"{asset}-{part_sha256(asset, tensor)[:16]}.onnx", lambda: cut(fetch(asset), tensor))


def part_sha256(asset: str, tensor: str) -> str:
    """Return a checksum of what ``first_part`` returns: that of the whole file and the place of the cut."""
    return fingerprint_of("cut", ASSETS[asset].sha256, tensor)


def cut(model: str | os.PathLike[str], tensor: str) -> onnx.ModelProto:
    """Return the part of an ONNX file that leads from its inputs to a tensor."""
    import onnx
    from onnx.utils import Extractor

    whole = onnx.shape_inference.infer_shapes(onnx.load(model))
    if not any(tensor in node.output for node in whole.graph.node):
        raise AssetError(f"{model}: there is no tensor {tensor} to cut at")
    weights = {weight.name for weight in whole.graph.initializer}
    inputs = [item.name for item in whole.graph.input if item.name not in weights]
    part: onnx.ModelProto = Extractor(whole).extract_model(inputs, [tensor])
    return part
