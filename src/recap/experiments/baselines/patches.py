"""What a published SmallCap sees: the last hidden states of the CLIP that lies in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recap.encoders.images import decode
from recap.encoders.preprocess import Preprocess
from recap.errors import InputError
from recap.experiments.baselines.clipcap import load_strictly
from recap.experiments.baselines.decoders import transformers
from recap.experiments.baselines.smallcap import published_weights
from recap.types import ImageLike, Vectors

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the pictures that CLIP was trained on."""

BATCH = 50

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("image_size", "patch_size", "hidden_act", "layer_norm_eps"),
)
_POSITIONS = "embeddings.position_ids"
"""Just 0, 1, 2, ...: older versions of transformers saved them among the weights."""


class Patches:
    """CLIP's vision transformer from the folder of a published SmallCap."""

    def __init__(self, folder: str | Path, *, device: str = "cpu") -> None:
        path, library = Path(folder), transformers()
        config = library.CLIPVisionConfig(**_sizes(path))
        file, weights = published_weights(path, "encoder.")
        weights.pop(_POSITIONS, None)
        model = library.CLIPVisionModel(config)
        # the transformer itself was an attribute up to version 4
        load_strictly(getattr(model, "vision_model", model), weights, file)
        self._model, self._device = model.eval().to(device), device
        self._prepared = Preprocess(config.image_size, MEAN, STD)

    def __call__(self, pictures: Sequence[ImageLike]) -> Vectors:
        """Return for each picture a row of vectors: one for the whole, and one for each patch."""
        return np.concatenate([self._seen(pictures[i : i + BATCH]) for i in range(0, len(pictures), BATCH)])

    def _seen(self, pictures: Sequence[ImageLike]) -> Vectors:
        side = self._prepared.size
        pixels = np.stack([self._prepared(decode(picture, shorter_side=side)) for picture in pictures])
        with torch.inference_mode():
            states = self._model(pixel_values=torch.from_numpy(pixels).to(self._device)).last_hidden_state
        seen: Vectors = states.float().cpu().numpy()
        return seen


def _sizes(folder: Path) -> dict[str, Any]:
    """Return the shape of the image encoder, which the file keeps as a whole CLIP, or by itself."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["encoder"]
        config = config.get("vision_config") or config
        return {name: config[name] for name in _SIZES if name in config}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / 'config.json'} describes no SmallCap: it must name an encoder ({error})"
        ) from error
