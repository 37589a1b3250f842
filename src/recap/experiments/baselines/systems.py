"""Baselines on the splits of an experiment: built to be trained here, or published and loaded from a file.

A published ClipCap reads the vectors of the encoder that it was made for. A published SmallCap looks at the patches of
a picture, so that the CLIP in its folder sees the pictures themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from recap.captioner import ReCap
from recap.errors import InputError
from recap.experiments.base import Setup
from recap.experiments.baselines.clipcap import ClipCap
from recap.experiments.baselines.decoders import Baseline, load_decoder, load_tokenizer
from recap.experiments.baselines.patches import Patches
from recap.experiments.baselines.smallcap import RETRIEVED, SmallCap, prompt
from recap.experiments.baselines.training import Examples, write_captions
from recap.experiments.data import Split
from recap.types import Vectors

LABELS = {"clipcap": "ClipCap", "smallcap": "SmallCap"}
PROMPTED = "smallcap"
"""Reads captions that ReCap's map retrieves."""

BLOCK = 500
"""So many pictures are looked at and captioned at a time: fifty patches each take room."""


@dataclass(frozen=True)
class System:
    """A baseline, with what it needs to caption pictures of a split."""

    name: str
    kind: str
    """What of its language model is trained (``frozen``, ``tuned``, ``scratch``), or ``published``."""
    model: Baseline
    recap: ReCap
    """Retrieves for prompts."""
    patches: Patches | None = None
    """Sees the pictures, where vectors are not enough."""

    @property
    def label(self) -> str:
        """Its name in a table."""
        kind = "" if self.kind == "scratch" else f" ({self.kind})"
        return f"{LABELS[self.name]}, {self.model.decoder.name}{kind}"

    def examples(self, split: Split, *, training: bool = False) -> Examples:
        """Return a split of vectors as this baseline reads it; in training no picture finds its own captions."""
        prompts = self._prompts(split.images, split.ids if training else None)
        return Examples(split.images, split.captions, prompts)

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
    make: dict[str, Callable[..., Baseline]] = {"clipcap": ClipCap, "smallcap": SmallCap}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        model = make[name](train.images.shape[1], decoder, tuned=kind != "frozen")
    return System(name, kind, model, recap)


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
