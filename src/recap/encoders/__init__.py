"""Images and texts to vectors of unit length; see :mod:`recap.encoders.registry` for the names."""

from __future__ import annotations

from recap.encoders.base import Encoder, ImageEncoder, TextEncoder
from recap.encoders.registry import EncoderInfo, list_encoders, load_encoder

__all__ = ["Encoder", "EncoderInfo", "ImageEncoder", "TextEncoder", "list_encoders", "load_encoder"]
