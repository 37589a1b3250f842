"""Encoders of open_clip: OpenAI's CLIP, SigLIP and everything else that library knows, in float32."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.encoders.base import LoadOptions
from recap.encoders.network import CachedTextEncoder, SingleImageEncoder, fingerprint_of
from recap.encoders.preprocess import Pixels, Preprocess
from recap.errors import AssetError, InputError, MissingExtraError, OfflineError, RecapWarning, check_name
from recap.types import Vectors

_IMAGE_BATCH = 16
_TEXT_BATCH = 64
_loading = threading.Lock()
_PREPROCESS_KEYS = ("mean", "std", "interpolation", "resize_mode")


@dataclass(frozen=True, slots=True)
class OpenClipModel:
    """A loaded model with its tokenizer; the image and the text encoder share it."""

    name: str
    model: Any
    tokenizer: Any
    device: str
    weights: str
    """sha256 over the configuration and all weights."""

    def dimension(self) -> int:
        """Return the dimension of the space that images and texts share."""
        return int(self.run(self.model.encode_text, self.tokenizer([""])).shape[1])

    def run(self, tower: Any, tensor: Any) -> Vectors:
        """Run one of the model's towers."""
        import torch

        with torch.inference_mode():
            rows: Vectors = tower(tensor.to(self.device)).float().cpu().numpy()
        return rows


class OpenClipImageEncoder(SingleImageEncoder):
    """The image tower of an open_clip model."""

    def __init__(self, model: str, options: LoadOptions) -> None:
        """Load the model that ``load_model`` knows by this name."""
        self._clip = clip = _shared_model(model, options)
        preprocessing = preprocessing_of(clip.model)
        super().__init__(
            preprocessing=preprocessing,
            name=clip.name,
            fingerprint=fingerprint_of("image", clip.weights, preprocessing.fingerprint()),
            dimension=clip.dimension(),
            batch_size=_IMAGE_BATCH,
            cache=options.cache,
        )

    def forward(self, batch: Pixels) -> Vectors:
        """Run the network."""
        import torch

        return self._clip.run(self._clip.model.encode_image, torch.from_numpy(batch))


class OpenClipTextEncoder(CachedTextEncoder):
    """The text tower of an open_clip model. Every text is filled up to the window, so batches do not change vectors."""

    def __init__(self, model: str, options: LoadOptions) -> None:
        """Load the model that ``load_model`` knows by this name."""
        self._clip = clip = _shared_model(model, options)
        self.context_length = int(clip.tokenizer.context_length)
        super().__init__(
            name=clip.name,
            fingerprint=fingerprint_of("text", clip.weights, str(self.context_length)),
            dimension=clip.dimension(),
            cache=options.cache,
        )

    def tokenize(self, texts: Sequence[str]) -> tuple[Sequence[Any], int]:
        """Return the tokens of each text, cut so that the end token survives, and how many were cut."""
        cut = sum(self._length(text) > self.context_length for text in texts)
        return list(self._clip.tokenizer(list(texts))), cut

    def forward(self, tokens: Sequence[Any]) -> Vectors:
        """Run the network, a batch at a time."""
        import torch

        batches = [tokens[start : start + _TEXT_BATCH] for start in range(0, len(tokens), _TEXT_BATCH)]
        tower = self._clip.model.encode_text
        return np.concatenate([self._clip.run(tower, torch.stack(list(batch))) for batch in batches])

    def _length(self, text: str) -> int:
        """Return how many tokens a text would have if nothing were cut, start and end included."""
        tokenizer = self._clip.tokenizer
        if hasattr(tokenizer, "encode"):  # open_clip's own byte-pair tokenizer
            return len(tokenizer.encode(text)) + 2
        clean = getattr(tokenizer, "clean_fn", str)
        return len(tokenizer.tokenizer(clean(text), truncation=False).input_ids)


def _shared_model(name: str, options: LoadOptions) -> OpenClipModel:
    key = f"open_clip:{name}"
    with _loading:  # both sides may be loaded at once
        if key not in options.models:
            options.models[key] = load_model(name, device=options.device)
    model: OpenClipModel = options.models[key]
    return model


def load_model(name: str, *, device: str = "cpu") -> OpenClipModel:
    """Load ``MODEL/PRETRAINED``, ``hf-hub:OWNER/NAME`` or ``local-dir:FOLDER``.

    ``MODEL`` is a name of open_clip or of OpenAI (``ViT-B-32`` or ``ViT-B/32``, ``ViT-L/14@336px``); ``PRETRAINED`` a
    tag of open_clip such as ``openai``, or the path of a checkpoint.
    """
    open_clip, torch = _import()
    _check_device(torch, device)
    options: dict[str, Any] = {}
    architecture = name
    if not name.startswith(("hf-hub:", "local-dir:")):
        architecture, pretrained = split_name(name, open_clip.list_models())
        options = _weights_options(open_clip, architecture, pretrained)
    try:
        model = open_clip.create_model(
            architecture, precision="fp32", device=device, require_pretrained=True, **options
        )
        tokenizer = open_clip.get_tokenizer(architecture)
    except ImportError as error:
        raise MissingExtraError(f"open_clip:{name} ({error})", "hf") from error
    except Exception as error:  # open_clip wraps whatever happens in RuntimeError, and not always
        raise _load_error(name, error) from error
    model.eval()
    weights = _weights_sha256(model, open_clip.get_model_config(architecture), bool(options.get("force_quick_gelu")))
    return OpenClipModel(f"open_clip:{name}", model, tokenizer, device, weights)


def split_name(name: str, known: Sequence[str]) -> tuple[str, str]:
    """Split ``MODEL/PRETRAINED``, where either may hold slashes, into open_clip's name of the model and the rest."""
    pieces = name.split("/")
    for end in range(len(pieces) - 1, 0, -1):
        model = canonical("/".join(pieces[:end]))
        if model in known:
            return model, "/".join(pieces[end:])
    if canonical(name) in known:
        raise InputError(f"open_clip:{name}: which weights? Write open_clip:{name}/PRETRAINED, such as {name}/openai")
    raise InputError(f"open_clip:{name}: open_clip knows no such model; it knows {', '.join(known)}")


def canonical(model: str) -> str:
    """Return open_clip's spelling of a model: ``ViT-L-14-336`` for OpenAI's ``ViT-L/14@336px``."""
    return model.replace("/", "-").replace("@", "-").removesuffix("px")


def preprocessing_of(model: Any) -> Preprocess:
    """Return a model's preprocessing as open_clip states it."""
    import open_clip

    config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    if not isinstance(size, int):
        if len(set(size)) != 1:
            raise InputError(f"the model reads pictures of {size}; only square ones are supported")
        size = size[0]
    return Preprocess(
        size=int(size),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        # open_clip takes bicubic for "random", which is meant for training
        interpolation="bilinear" if config.get("interpolation") == "bilinear" else "bicubic",
        resize=config.get("resize_mode") or "shortest",
        fill=config.get("fill_color") or 0,
    )


def _import() -> tuple[Any, Any]:
    try:
        import open_clip
        import torch
    except ImportError as error:
        raise MissingExtraError("an open_clip encoder", "clip") from error
    except RuntimeError as error:  # what torchvision raises when it was built for another torch
        raise InputError(f"open_clip cannot be imported ({error}); install matching torch and torchvision") from error
    return open_clip, torch


def _check_device(torch: Any, device: str) -> None:
    kind = device.partition(":")[0]
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check_name("device", kind, available)
    if not available[kind]:
        raise InputError(f"device {device}: this torch finds none; use device cpu")


def _weights_options(open_clip: Any, model: str, pretrained: str) -> dict[str, Any]:
    """Return what ``create_model`` must be told so that the weights are read as they were trained."""
    config = open_clip.get_pretrained_cfg(model, pretrained)
    if config:
        # OpenAI's weights and some others need QuickGELU, which the plain model names leave out
        return {"pretrained": pretrained, "force_quick_gelu": bool(config.get("quick_gelu"))}
    if not Path(pretrained).is_file():
        tags = open_clip.list_pretrained_tags_by_model(model)
        known = ", ".join(tags) or "none"
        raise InputError(f"{pretrained}: neither a file nor weights that open_clip has for {model}; it has: {known}")
    # a checkpoint does not say how its pictures were prepared; all tags of SigLIP, for one, agree on it
    stated = []
    for tag in open_clip.list_pretrained_tags_by_model(model):
        tag_config = open_clip.get_pretrained_cfg(model, tag)
        stated.append({key: tag_config[key] for key in _PREPROCESS_KEYS if tag_config.get(key) is not None})
    agreed = stated[0] if stated and all(other == stated[0] for other in stated) else None
    return {
        "pretrained": pretrained,
        "force_preprocess_cfg": agreed or None,
        **_activation(open_clip, model, pretrained),
    }


def _activation(open_clip: Any, model: str, file: str) -> dict[str, Any]:
    """Return what ``create_model`` must be told so that OpenAI's weights in a file get QuickGELU.

    OpenAI published TorchScript archives, which nobody else does for CLIP; of other files only a name can tell.
    """
    if is_torchscript(Path(file)):
        # torch opens such an archive by its own reader, and only when it is not told to unpickle weights alone
        return {"force_quick_gelu": True, "weights_only": False}
    named = f"{model}-quickgelu"
    if named in open_clip.list_models():
        if "openai" in file.lower():
            raise InputError(
                f"{file}: OpenAI's weights need QuickGELU, which {model} leaves out; write open_clip:{named}/{file}"
            )
        message = f"{file} is read with GELU; if these are OpenAI's weights, write open_clip:{named}/{file}"
        warnings.warn(message, RecapWarning, stacklevel=2)
    return {}


def is_torchscript(file: Path) -> bool:
    """Tell whether a file is a TorchScript archive."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _load_error(name: str, error: Exception) -> AssetError:
    text = str(error)
    what = f"open_clip:{name}"
    if isinstance(error, OSError) or "Failed to download" in text or "Failed initial" in text:
        return OfflineError(
            f"{what}: the weights or the tokenizer are not on this machine and could not be downloaded ({text}); "
            "check the network and HF_HUB_OFFLINE, or give the path of a checkpoint as PRETRAINED"
        )
    return AssetError(f"{what}: could not be loaded ({text})")


def _weights_sha256(model: Any, config: Any, quick_gelu: bool) -> str:
    """Return a sha256 over names, types, shapes and bytes of all weights, and over the shape of the network."""
    digest = hashlib.sha256(json.dumps([config, quick_gelu], sort_keys=True, default=str).encode())
    for key, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{key} {values.dtype} {values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
