"""Baselines on the splits of an experiment: built to be trained here, or published and loaded from a file.

A published ClipCap reads the vectors of the encoder that it was made for. A published SmallCap looks at the patches of
a picture, so that the CLIP in its folder sees the pictures themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recap.captioner import ReCap
from recap.encoders import Encoder
from recap.encoders.builtin import PLACES
from recap.encoders.images import decode
from recap.encoders.preprocess import Preprocess
from recap.errors import ImageError, InputError, check_name
from recap.experiments.base import Setup
from recap.experiments.baselines.clipcap import ClipCap, load_strictly
from recap.experiments.baselines.decoders import Baseline, load_decoder, load_tokenizer, transformers
from recap.experiments.baselines.smallcap import RETRIEVED, SmallCap, prompt, published_weights
from recap.experiments.baselines.training import Examples, Plan, write_captions
from recap.experiments.data import Split
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


class Places:
    """What an encoder says of each place of a picture beside its vector; stands in for CLIP's patches."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def width(self) -> int:
        """How many numbers there are for a place; 0 where the encoder has none."""
        return getattr(self._encoder.image, "details", 0) // PLACES if self._encoder.sight else 0

    def __call__(self, pictures: Sequence[ImageLike]) -> Vectors:
        """Return for each picture a row of vectors, one for each place."""
        rows: list[Vectors] = []
        for row in self._encoder.encode_each(pictures, details=True):
            if isinstance(row, ImageError):
                raise row
            rows.append(row)
        return np.stack(rows)[:, self._encoder.image.dimension :].reshape(len(rows), PLACES, self.width)


RECIPES = {"clipcap": Plan(10, 40, 2e-5, 5000, 10), "smallcap": Plan(10, 64, 1e-4, 0, 10)}
"""How the authors trained: ClipCap with 5,000 steps of warm-up, SmallCap without; both for all of ten epochs."""

LABELS = {"clipcap": "ClipCap", "smallcap": "SmallCap"}
PROMPTED = "smallcap"
"""Reads captions that ReCap's map retrieves."""

BLOCK = 500
"""Batch size of captioning: fifty patches a picture take room."""


@dataclass(frozen=True)
class System:
    """A baseline, with what it needs to caption pictures of a split."""

    name: str
    kind: str
    """What of its language model is trained (``frozen``, ``tuned``, ``scratch``), or ``published``."""
    model: Baseline
    recap: ReCap
    """Retrieves for prompts."""
    patches: Patches | Places | None = None
    """Sees the pictures, where vectors are not enough."""

    @property
    def label(self) -> str:
        """Its name in a table."""
        kind = "" if self.kind == "scratch" else f" ({self.kind})"
        return f"{LABELS[self.name]}, {self.model.decoder.name}{kind}"

    def examples(self, split: Split, *, training: bool = False) -> Examples:
        """Return a split of vectors as this baseline reads it; in training no picture finds its own captions."""
        prompts = self._prompts(split.images, split.ids if training else None)
        return Examples(self.seen(split, 0, len(split.ids)), split.captions, prompts)

    def seen(self, split: Split, start: int, stop: int) -> Vectors:
        """Return some pictures of a split as this baseline sees them."""
        return self.patches(split.pictures[start:stop]) if self.patches else split.images[start:stop]

    def write(self, seen: Vectors, vectors: Vectors, **limit: int) -> list[str]:
        """Return captions of pictures from what is seen of them; what a prompt holds is found by their ``vectors``."""
        return write_captions(self.model, seen, self._prompts(vectors), **limit)

    def captions(self, split: Split) -> list[str]:
        """Return a caption for each picture of a split."""
        written: list[str] = []
        for start in range(0, len(split.ids), BLOCK):
            stop = min(start + BLOCK, len(split.ids))
            written += self.write(self.seen(split, start, stop), split.images[start:stop])
        return written

    def mean_tokens(self, split: Split) -> int:
        """Return how many tokens the captions of a split have on average, with the one that ends them."""
        captions = [text for texts in split.captions for text in texts]
        return 1 + round(sum(len(self.model.decoder.encode(text)) for text in captions) / len(captions))

    def _prompts(self, vectors: Vectors, own: tuple[str, ...] | None = None) -> list[str]:
        """Return prompts with the captions that ReCap's map finds; ``own`` pictures' captions are left out."""
        if self.name != PROMPTED:
            return [""] * len(vectors)
        store = self.recap.datastore
        found = store.search(self.recap.alignment.transform(vectors), RETRIEVED, exclude_image_ids=own)
        rows = zip(found.ids, found.similarities, strict=True)
        return [prompt([item.text for item in store.evidence(*row)]) for row in rows]


def load_system(name: str, setup: Setup, recap: ReCap, train: Split) -> System:
    """Return a baseline by its name: the published one where an option of that name gives its file, or a new one."""
    if name not in LABELS:
        raise InputError(f"there is no baseline {name!r}; there are {', '.join(LABELS)}")
    device, path = setup.option("device", "cpu"), setup.option(name, "")
    system = _published(name, Path(path), setup, recap) if path else _built(name, setup, recap, train)
    system.model.to(device)
    return system


def _built(name: str, setup: Setup, recap: ReCap, train: Split) -> System:
    wanted = setup.option("tuned", "no")
    if wanted not in ("yes", "no"):
        raise InputError(f"the option tuned is yes or no, not {wanted!r}")
    captions = [text for texts in train.captions for text in texts]
    decoder = load_decoder(setup.option("decoder", "smollm2"), captions, seed=setup.seed)
    kind = "scratch" if not decoder.pretrained else "tuned" if wanted == "yes" else "frozen"
    clipcap = partial(ClipCap, mapper=setup.option("mapper", "transformer"))
    make: dict[str, Callable[..., Baseline]] = {"clipcap": clipcap, "smallcap": SmallCap}
    places = Places(recap.encoder)
    looks = name == PROMPTED and is_published_recipe(setup) and places.width > 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        model = make[name](places.width if looks else train.images.shape[1], decoder, tuned=kind != "frozen")
    return System(name, kind, model, recap, places if looks else None)


def is_published_recipe(setup: Setup) -> bool:
    """Tell whether baselines are trained as their authors did: ``recipe=published``."""
    recipe = setup.option("recipe", "own")
    check_name("recipe", recipe, ("own", "published"))
    return recipe == "published"


def recipe_note(setup: Setup, encoder: Encoder, systems: Sequence[str]) -> str:
    """Return what still differs from the published recipes, for a table."""
    differ = [f"the language model is {setup.option('decoder', 'smollm2')}, not GPT-2", f"the encoder {encoder.name}"]
    width = Places(encoder).width
    if PROMPTED in systems:
        seen = f"{PLACES} places of {width} numbers" if width else "one vector a picture"
        differ.append(f"SmallCap looks at {seen}, not at 50 patches of ViT-B/32")
    changed = [f"{name}={setup.options[name]}" for name in ("batch", "rate", "epochs") if name in setup.options]
    return f"Trained by the published recipes (docs/experiments.md), but: {'; '.join([*differ, *changed])}."


def _published(name: str, path: Path, setup: Setup, recap: ReCap) -> System:
    tokenizer = load_tokenizer(setup.option("tokenizer", "gpt2"))
    if name == "smallcap":
        patches = Patches(path, device=setup.option("device", "cpu"))
        return System(name, "published", SmallCap.from_published(path, tokenizer), recap, patches)
    model = ClipCap.from_published(path, tokenizer)
    wanted, given = model.clip_project.image, recap.encoder.image
    if wanted != given.dimension:
        raise InputError(
            f"{path} reads image vectors of {wanted} dimensions, and those of {given.name} have {given.dimension}: "
            "name the encoder that it was trained with, such as --encoder open_clip:ViT-B-32/openai"
        )
    return System(name, "published", model, recap)
