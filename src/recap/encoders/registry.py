"""Encoders by name: ``IMAGE[+IMAGE...][,TEXT]``.

| name                         | image | text |
|------------------------------|-------|------|
| ``eyes``                     | yes   | yes  |
| ``tinyvit``, ``dinov2``      | yes   |      |
| ``minilm``                   |       | yes  |
| ``open_clip:MODEL/WEIGHTS``  | yes   | yes  |
| ``onnx:FOLDER``              | yes   | yes  |

``@views`` after the name of an image encoder, as in ``tinyvit@views,minilm``, makes it look at four views of a picture
(as it wants it, the whole of it, and both mirrored) and take their mean: four times the work, better at judging.
``@bare`` after the name of a text encoder makes it read texts without their closing full stop. ``builtin`` is short for
``eyes``, ``builtin-large`` for ``eyes+dinov2,eyes`` and ``builtin-judge`` for ``eyes@views,eyes@bare``. When no text
encoder is named, the image encoder's own is taken. A path in such a name cannot hold a plus sign or a comma.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from recap.encoders.base import BARE, VIEWS, Encoder, TextEncoder
from recap.errors import InputError

if TYPE_CHECKING:
    from recap.encoders.cache import VectorCache
    from recap.encoders.network import SingleImageEncoder
    from recap.encoders.openclip import OpenClipModel

ALIASES = {
    "builtin": "eyes",
    "builtin-large": "eyes+dinov2,eyes",
    "builtin-judge": "eyes@views,eyes@bare",
}
_IMAGE_ONLY = ("tinyvit", "dinov2")
_TEXT_ONLY = ("minilm",)
_OWN_PAIRS = ("eyes",)
_PAIRS = ("open_clip:", "onnx:")
_KNOWN = "builtin, builtin-large, builtin-judge, eyes, tinyvit, dinov2, minilm, open_clip:MODEL/PRETRAINED, onnx:FOLDER"


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What ``recap info`` says about an encoder."""

    name: str
    description: str
    image_dimension: int | None
    text_dimension: int | None
    licence: str
    missing_extra: str | None = None
    """The extra to install before it can be used; none when all is there."""


def load_encoder(spec: str, *, device: str = "cpu", cache: VectorCache | str | Path | None = None) -> Encoder:
    """Load the encoder with a name such as ``builtin``, ``tinyvit+dinov2,minilm`` or ``open_clip:ViT-B-32/openai``.

    Args:
        spec: ``IMAGE[+IMAGE...][,TEXT]``; see the module's text.
        device: ``cpu``, ``cuda`` or ``mps``.
        cache: a vector cache or the path of its file; ``None`` keeps no vectors.
    """
    image_names, text_name = parse(spec)
    return _Loader(device, _opened(cache)).load(image_names, text_name)


def parse(spec: str) -> tuple[tuple[str, ...], str]:
    """Split a spec into the names of its image encoders and of its text encoder."""
    images, _, text = ALIASES.get(spec, spec).partition(",")
    image_names = tuple(ALIASES.get(name, name) for name in images.split("+"))
    for name in image_names:
        if name in _TEXT_ONLY:
            raise InputError(f"encoder {spec!r}: {name} encodes texts only; write IMAGE,{name}")
        single = name.removesuffix(VIEWS)
        if single not in _IMAGE_ONLY and not _is_pair(single):
            raise InputError(f"encoder {spec!r}: {name!r} is not known; known are {_KNOWN}")
    if text:
        if text in _IMAGE_ONLY:
            raise InputError(f"encoder {spec!r}: {text} encodes images only; text encoders are minilm and the pairs")
        single = text.removesuffix(BARE)
        if single not in _TEXT_ONLY and not _is_pair(single):
            raise InputError(f"encoder {spec!r}: {text!r} is not known; known are {_KNOWN}")
        return image_names, text
    singles = dict.fromkeys(name.removesuffix(VIEWS) for name in image_names)
    pairs = [name for name in singles if _is_pair(name)]
    if len(pairs) != 1:
        reason = "no text encoder is named" if not pairs else "it is not clear whose text encoder to take"
        raise InputError(f"encoder {spec!r}: {reason}; write {spec},minilm or another after the comma")
    return image_names, pairs[0]


def list_encoders() -> tuple[EncoderInfo, ...]:
    """Return the encoders one can name here, without loading any of them."""
    clip = None if find_spec("open_clip") and find_spec("torch") else "clip"
    siglip = None if clip is None and find_spec("transformers") else "clip,hf"
    return (
        EncoderInfo("builtin", "eyes, our own small vision-language model", 512, 512, _OWN_LICENCE),
        EncoderInfo("builtin-large", "eyes with DINOv2 beside them", 896, 512, _OWN_LICENCE),
        EncoderInfo("builtin-judge", "eyes with four views a picture, to judge captions", 512, 512, _OWN_LICENCE),
        EncoderInfo("eyes", "TinyViT-5M and all-MiniLM-L6-v2, trained to share a space", 512, 512, _OWN_LICENCE),
        EncoderInfo("tinyvit", "TinyViT-5M, ImageNet-22k", 320, None, "MIT"),
        EncoderInfo("dinov2", "DINOv2 ViT-S/14, mean of the patches", 384, None, "Apache-2.0"),
        EncoderInfo("minilm", "all-MiniLM-L6-v2, int8", None, 384, "Apache-2.0"),
        *(_clip_info(model, size, "OpenAI CLIP", "openai", "MIT", clip) for model, size in OPENAI_CLIP.items()),
        *(_clip_info(model, size, "SigLIP", "webli", "Apache-2.0", siglip) for model, size in SIGLIP.items()),
        EncoderInfo("onnx:FOLDER", "an exported pair", None, None, "as the model's"),
    )


_OWN_LICENCE = "Apache-2.0, MIT"

OPENAI_CLIP = {
    "RN50": 1024,
    "RN101": 512,
    "RN50x4": 640,
    "RN50x16": 768,
    "RN50x64": 1024,
    "ViT-B-32": 512,
    "ViT-B-16": 512,
    "ViT-L-14": 768,
    "ViT-L-14-336": 768,
}
"""OpenAI's nine backbones by open_clip's names, with their dimensions."""

SIGLIP = {
    "ViT-B-16-SigLIP": 768,
    "ViT-B-16-SigLIP-256": 768,
    "ViT-B-16-SigLIP-384": 768,
    "ViT-L-16-SigLIP-256": 1024,
    "ViT-L-16-SigLIP-384": 1024,
}
"""SigLIP B/16 and L/16 by open_clip's names, with their dimensions."""


class _Loader:
    """Loads the parts of one spec; a model that serves on both sides is loaded once."""

    def __init__(self, device: str, cache: VectorCache | None) -> None:
        self._device = device
        self._cache = cache
        self._clips: dict[str, OpenClipModel] = {}

    def load(self, image_names: tuple[str, ...], text_name: str) -> Encoder:
        from recap.encoders.variants import JoinedImageEncoder

        parts = [self._image(name) for name in image_names]
        image = parts[0] if len(parts) == 1 else JoinedImageEncoder(parts, cache=self._cache)
        text = self._text(text_name)
        own = text_name in image_names
        return Encoder(image.name if own and len(parts) == 1 else f"{image.name},{text.name}", image, text)

    def _image(self, name: str) -> SingleImageEncoder:
        from recap.encoders import builtin, onnx, openclip
        from recap.encoders.variants import ViewsImageEncoder

        if name.endswith(VIEWS):
            return ViewsImageEncoder(self._image(name.removesuffix(VIEWS)), cache=self._cache)
        kind, _, rest = name.partition(":")
        if kind == "open_clip":
            return openclip.OpenClipImageEncoder(self._clip(rest), cache=self._cache)
        if kind == "onnx":
            return onnx.load_image_side(Path(rest).resolve(), device=self._device, cache=self._cache)
        make = {"eyes": builtin.eyes_image, "tinyvit": builtin.tinyvit, "dinov2": builtin.dinov2}[kind]
        return make(device=self._device, cache=self._cache)

    def _text(self, name: str) -> TextEncoder:
        from recap.encoders import builtin, onnx, openclip
        from recap.encoders.variants import BareTextEncoder

        if name.endswith(BARE):
            return BareTextEncoder(self._text(name.removesuffix(BARE)))
        kind, _, rest = name.partition(":")
        if kind == "open_clip":
            return openclip.OpenClipTextEncoder(self._clip(rest), cache=self._cache)
        if kind == "onnx":
            return onnx.load_text_side(Path(rest).resolve(), device=self._device, cache=self._cache)
        make = {"eyes": builtin.eyes_text, "minilm": builtin.minilm}[kind]
        return make(device=self._device, cache=self._cache)

    def _clip(self, name: str) -> OpenClipModel:
        from recap.encoders.openclip import load_model

        if name not in self._clips:
            self._clips[name] = load_model(name, device=self._device)
        return self._clips[name]


def _opened(cache: VectorCache | str | Path | None) -> VectorCache | None:
    from recap.encoders.cache import VectorCache

    return VectorCache(cache) if isinstance(cache, str | Path) else cache


def _is_pair(name: str) -> bool:
    return name in _OWN_PAIRS or (name.startswith(_PAIRS) and not name.endswith(":"))


def _clip_info(
    model: str, dimension: int, family: str, pretrained: str, licence: str, missing: str | None
) -> EncoderInfo:
    return EncoderInfo(
        f"open_clip:{model}/{pretrained}", f"{family} {model}", dimension, dimension, licence, missing_extra=missing
    )
