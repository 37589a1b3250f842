"""Encoders by name: ``IMAGE[+IMAGE...][,TEXT[+TEXT...]]``.

``@views`` after the name of an image encoder, as in ``tinyvit@views,minilm``, makes it look at four views of a picture
(as it wants it, the whole of it, and both mirrored) and take their mean: four times the work, better at judging.
``@bare`` after the name of a text encoder makes it read texts without their closing full stop. When no text encoder is
named, the image encoder's own is taken. A path in such a name cannot hold a plus sign or a comma.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recap.encoders.base import BARE, VIEWS, Encoder, ImageEncoder, LoadOptions, TextEncoder
from recap.errors import InputError
from recap.registry import Entry, Loader, Registry, load

if TYPE_CHECKING:
    from recap.encoders.cache import VectorCache
    from recap.encoders.network import SingleImageEncoder


@dataclass(frozen=True)
class EncoderInfo(Entry):
    """An encoder, or a family of them.

    A loader is called with what stands behind the colon of a name, if anything, and with ``LoadOptions``.
    """

    dimensions: tuple[int | None, int | None] = (None, None)
    """Of the vectors of images and of texts, where they are known."""
    image: Loader | None = None
    """Returns the image encoder; only a ``SingleImageEncoder`` can be joined with others or have ``@views``."""
    text: Loader | None = None
    """Returns the text encoder, a ``TextEncoder``."""
    alias_of: str = ""
    """The name that this one is short for."""
    models: tuple[EncoderInfo, ...] = ()
    """The members of a family that are listed in its place."""


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


_openai = partial(EncoderInfo, licence="MIT", extra="clip", requires=("open_clip", "torch"))
_siglip = partial(EncoderInfo, licence="Apache-2.0", extra="clip,hf", requires=("open_clip", "torch", "transformers"))
_CLIP_MODELS = (
    *(_openai(f"open_clip:{name}/openai", f"OpenAI CLIP {name}", (size, size)) for name, size in OPENAI_CLIP.items()),
    *(_siglip(f"open_clip:{name}/webli", f"SigLIP {name}", (size, size)) for name, size in SIGLIP.items()),
)
_OWN = "Apache-2.0, MIT"

_HUB = {
    "siglip-base-patch16-224": "ViT-B-16-SigLIP",
    "siglip-base-patch16-256": "ViT-B-16-SigLIP-256",
    "siglip-base-patch16-384": "ViT-B-16-SigLIP-384",
    "siglip-large-patch16-256": "ViT-L-16-SigLIP-256",
    "siglip-large-patch16-384": "ViT-L-16-SigLIP-384",
    "clip-vit-base-patch32": "ViT-B-32",
    "clip-vit-base-patch16": "ViT-B-16",
    "clip-vit-large-patch14": "ViT-L-14",
    "clip-vit-large-patch14-336": "ViT-L-14-336",
    "ViT-L-14@336px": "ViT-L-14-336",
    "clip": "ViT-B-32",
    "siglip": "ViT-B-16-SigLIP",
}
"""Names of the same models on the hub, in OpenAI's code and in speech, with open_clip's."""


def _key(name: str) -> str:
    """Return what is left of a name without its owner, case and punctuation."""
    return re.sub(r"^(openai|google)/|[^a-z0-9]", "", name.lower())


def _natural_names() -> dict[str, str]:
    full = {info.name.removeprefix("open_clip:").partition("/")[0]: info.name for info in _CLIP_MODELS}
    return {_key(name): full[model] for name, model in {**{name: name for name in full}, **_HUB}.items()}


NATURAL_NAMES = _natural_names()
"""Full names of CLIP and SigLIP by what people call them, without punctuation: ``ViT-B/32``, ``siglip``."""

ENCODERS = Registry(
    "encoder",
    (
        EncoderInfo(
            "builtin",
            "eyes-large, our own small vision-language model, which also looks with DINOv2",
            (512, 512),
            alias_of="eyes-large",
            licence=_OWN,
        ),
        EncoderInfo("builtin-fast", "eyes, twice as fast without DINOv2", (512, 512), alias_of="eyes", licence=_OWN),
        EncoderInfo("builtin-large", "the same as builtin", (512, 512), alias_of="eyes-large", licence=_OWN),
        EncoderInfo(
            "builtin-judge",
            "eyes-large and DINOv2 side by side, and their texts beside MiniLM's, to judge captions",
            (896, 896),
            alias_of="eyes-large+dinov2,eyes@bare+minilm@bare",
            licence=_OWN,
        ),
        EncoderInfo(
            "eyes",
            "TinyViT-5M and all-MiniLM-L6-v2, trained to share a space",
            (512, 512),
            image="recap.encoders.builtin:load_eyes_image",
            text="recap.encoders.builtin:load_eyes_text",
            licence=_OWN,
        ),
        EncoderInfo(
            "eyes-large",
            "TinyViT-5M, DINOv2 ViT-S/14 and all-MiniLM-L6-v2 in the space of eyes",
            (512, 512),
            image="recap.encoders.builtin:load_large_image",
            text="recap.encoders.builtin:load_large_text",
            licence=_OWN,
        ),
        EncoderInfo(
            "tinyvit", "TinyViT-5M, ImageNet-22k", (320, None), "recap.encoders.builtin:load_tinyvit", licence="MIT"
        ),
        EncoderInfo(
            "dinov2",
            "DINOv2 ViT-S/14, mean of the patches",
            (384, None),
            image="recap.encoders.builtin:load_dinov2",
            licence="Apache-2.0",
        ),
        EncoderInfo(
            "minilm",
            "all-MiniLM-L6-v2, 8 bits",
            (None, 384),
            text="recap.encoders.builtin:load_minilm",
            licence="Apache-2.0",
        ),
        EncoderInfo(
            "open_clip:MODEL/PRETRAINED",
            "all that open_clip knows",
            image="recap.encoders.openclip:OpenClipImageEncoder",
            text="recap.encoders.openclip:OpenClipTextEncoder",
            models=_CLIP_MODELS,
        ),
        EncoderInfo(
            "onnx:FOLDER",
            "an exported pair",
            image="recap.encoders.onnx:load_image_side",
            text="recap.encoders.onnx:load_text_side",
            licence="as the model's",
        ),
    ),
    group="recap.encoders",
)


def list_encoders() -> tuple[EncoderInfo, ...]:
    """Return the encoders one can name here, without loading any of them."""
    return tuple(model for entry in ENCODERS for model in entry.models or (entry,))


def load_encoder(spec: str, *, device: str = "cpu", cache: VectorCache | str | Path | None = None) -> Encoder:
    """Load the encoder with a name such as ``builtin``, ``tinyvit+dinov2,minilm`` or ``open_clip:ViT-B-32/openai``.

    Args:
        spec: ``IMAGE[+IMAGE...][,TEXT[+TEXT...]]``; see the module's text.
        device: ``cpu``, ``cuda`` or ``mps``.
        cache: a vector cache or the path of its file; ``None`` keeps no vectors.
    """
    image_names, text_name = parse(spec)
    if isinstance(cache, str | Path):
        from recap.encoders.cache import VectorCache

        cache = VectorCache(cache)
    options = LoadOptions(device, cache)
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(load_text_side, spec, options)
        image, text = load_image_side(spec, options), other.result()
    return Encoder(image.name if image_names == (text_name,) else f"{image.name},{text.name}", image, text)


def load_image_side(spec: str, options: LoadOptions) -> ImageEncoder:
    """Load only what encodes images."""
    from recap.encoders.variants import JoinedImageEncoder

    parts = [_load_image(name, options) for name in parse(spec)[0]]
    return parts[0] if len(parts) == 1 else JoinedImageEncoder(parts, cache=options.cache)


def load_text_side(spec: str, options: LoadOptions) -> TextEncoder:
    """Load only what encodes texts."""
    from recap.encoders.variants import JoinedTextEncoder

    parts = [_load_text(name, options) for name in parse(spec)[1].split("+")]
    return parts[0] if len(parts) == 1 else JoinedTextEncoder(parts)


def parse(spec: str) -> tuple[tuple[str, ...], str]:
    """Split a spec into the names of its image encoders and the name of its text encoder, or of several with ``+``."""
    images, _, text = _expand(spec).partition(",")
    image_names = tuple(_expand(name) for name in images.split("+"))
    entries = {name.removesuffix(VIEWS): ENCODERS.get(name.removesuffix(VIEWS)) for name in image_names}
    for name, entry in entries.items():
        if entry.image is None:
            raise InputError(f"encoder {spec!r}: {name} encodes texts only; write IMAGE,{name}")
    if text:
        text_names = [_expand(name) for name in text.split("+")]
        for name in text_names:
            if ENCODERS.get(name.removesuffix(BARE)).text is None:
                raise InputError(
                    f"encoder {spec!r}: {name} encodes images only; text encoders are minilm and the pairs"
                )
        return image_names, "+".join(text_names)
    pairs = [name for name, entry in entries.items() if entry.text is not None]
    if len(pairs) != 1:
        reason = "no text encoder is named" if not pairs else "it is not clear whose text encoder to take"
        raise InputError(f"encoder {spec!r}: {reason}; write {spec},minilm or another after the comma")
    return image_names, pairs[0]


def _expand(name: str) -> str:
    """Return the name that an alias is short for, and any other as it is."""
    if set(name) & set("+,:"):
        return name
    stem, at, views = name.rpartition("@")
    for known, rest in ((name, ""), (stem, at + views)):
        if known and known not in ENCODERS and _key(known) in NATURAL_NAMES:
            return NATURAL_NAMES[_key(known)] + rest
    if at:
        return name
    if "/" in name:
        raise InputError(f"unknown encoder {name!r}; a CLIP of the hub is named open_clip:hf-hub:{name}")
    return ENCODERS.get(name).alias_of or name


def _load_image(name: str, options: LoadOptions) -> SingleImageEncoder:
    from recap.encoders.variants import ViewsImageEncoder

    if name.endswith(VIEWS):
        return ViewsImageEncoder(_load_image(name.removesuffix(VIEWS), options), cache=options.cache)
    loader = ENCODERS.get(name).image
    assert loader is not None
    encoder: SingleImageEncoder = load(loader, name, options)
    return encoder


def _load_text(name: str, options: LoadOptions) -> TextEncoder:
    from recap.encoders.variants import BareTextEncoder

    if name.endswith(BARE):
        return BareTextEncoder(_load_text(name.removesuffix(BARE), options))
    loader = ENCODERS.get(name).text
    assert loader is not None
    encoder: TextEncoder = load(loader, name, options)
    return encoder
