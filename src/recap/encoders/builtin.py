"""The encoders that come without a hub and without torch: TinyViT-5M and DINOv2 for images, MiniLM for texts."""

from __future__ import annotations

from recap.assets import ASSETS, fetch
from recap.encoders.cache import VectorCache
from recap.encoders.onnx import OnnxImageEncoder, OnnxTextEncoder
from recap.encoders.preprocess import Preprocess


def tinyvit(*, device: str = "cpu", cache: VectorCache | None = None) -> OnnxImageEncoder:
    """Return TinyViT-5M: 320 dimensions."""
    return _image_encoder("tinyvit", "none", device, cache)


def dinov2(*, device: str = "cpu", cache: VectorCache | None = None) -> OnnxImageEncoder:
    """Return DINOv2 ViT-S/14, the mean of its 8x8 patch outputs: 384 dimensions."""
    return _image_encoder("dinov2", "mean", device, cache)


def minilm(*, device: str = "cpu", cache: VectorCache | None = None) -> OnnxTextEncoder:
    """Return all-MiniLM-L6-v2 in int8, the mean of its token outputs: 384 dimensions, a window of 256 tokens."""
    return OnnxTextEncoder(
        fetch("minilm"),
        fetch("minilm-tokenizer"),
        name="minilm",
        max_length=256,
        pooling="mean",
        sha256=ASSETS["minilm"].sha256,
        device=device,
        cache=cache,
    )


def _image_encoder(name: str, pooling: str, device: str, cache: VectorCache | None) -> OnnxImageEncoder:
    return OnnxImageEncoder(
        fetch(name),
        Preprocess(),
        name=name,
        pooling=pooling,
        sha256=ASSETS[name].sha256,
        device=device,
        cache=cache,
    )
