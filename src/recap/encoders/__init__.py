"""Images and texts to vectors of unit length; see :mod:`recap.encoders.registry` for the names."""

from __future__ import annotations

from recap.encoders.base import Encoder, ImageEncoder, LoadOptions, TextEncoder
from recap.encoders.registry import ENCODERS, EncoderInfo, list_encoders, load_encoder

__all__ = [
    "ENCODERS",
    "Encoder",
    "EncoderInfo",
    "ImageEncoder",
    "LoadOptions",
    "TextEncoder",
    "list_encoders",
    "load_encoder",
]
