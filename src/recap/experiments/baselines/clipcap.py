"""ClipCap (Mokady et al. 2021): a multilayer perceptron turns an image vector into ten embeddings before the caption.

The language model is frozen, or tuned together with the perceptron. Names of weights are those of the published
checkpoints. Not here: the variant whose prefix comes from a transformer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from recap.errors import InputError
from recap.experiments.baselines.decoders import Baseline, Decoder, transformers

PREFIX = 10
"""Length of the prefix: embeddings that stand for an image."""

MASKS = re.compile(r"\.(attn|crossattention)\.(bias|masked_bias)$")
"""Causal masks, which older versions of transformers saved among the weights of GPT-2."""

HEAD_WIDTH = 64
"""Of GPT-2 in every size, so that the number of heads follows from the width."""


class PrefixMapper(nn.Module):
    """One hidden layer, half as wide as the prefix."""

    def __init__(self, image: int, width: int, length: int) -> None:
        super().__init__()
        whole = width * length
        self.model = nn.Sequential(nn.Linear(image, whole // 2), nn.Tanh(), nn.Linear(whole // 2, whole))
        self.image, self.length = image, length

    def forward(self, images: Tensor) -> Tensor:
        """Return ``length`` embeddings for each image."""
        prefix: Tensor = self.model(images)
        return prefix.view(len(images), self.length, -1)


class ClipCap(Baseline):
    """A prefix into a causal language model.

    Args:
        image: how many dimensions an image vector has.
        decoder: the language model.
        tuned: whether it is trained, too.
        length: how many embeddings stand for an image.
        scale: what vectors are multiplied with. The published checkpoints were trained on CLIP's vectors as they come,
            whose length is about 10, and vectors here have length 1.
    """

    def __init__(
        self, image: int, decoder: Decoder, *, tuned: bool = False, length: int = PREFIX, scale: float = 1.0
    ) -> None:
        super().__init__(decoder, tuned=tuned)
        self.clip_project = PrefixMapper(image, self.gpt.get_input_embeddings().embedding_dim, length)
        self.scale = scale

    def condition(self, images: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the prefix of each image; prompts are not read."""
        prefix = self.clip_project(self.scale * images)
        return prefix, torch.ones(prefix.shape[:2], dtype=torch.long, device=prefix.device)

    @classmethod
    def from_published(cls, path: str | Path, tokenizer: Any, *, heads: int | None = None, scale: float = 10.0) -> Self:
        """Load a published checkpoint with a perceptron: a state dict of ``clip_project.*`` and ``gpt.*``.

        Args:
            path: a ``.pt`` file such as ``coco_weights.pt``.
            tokenizer: GPT-2's.
            heads: of GPT-2's attention, where a head is not 64 wide.
            scale: see the class.
        """
        state = read_weights(Path(path))
        if "clip_project.model.0.weight" not in state or "gpt.transformer.wte.weight" not in state:
            raise InputError(
                f"{path} is no ClipCap checkpoint with a perceptron: it lacks clip_project.model.0.weight or "
                "gpt.transformer.wte.weight. Checkpoints whose prefix comes from a transformer cannot be loaded"
            )
        decoder = Decoder(_empty_gpt2(state, heads), tokenizer, final_stop(tokenizer), Path(path).name)
        width = state["gpt.transformer.wte.weight"].shape[1]
        image = state["clip_project.model.0.weight"].shape[1]
        length = state["clip_project.model.2.weight"].shape[0] // width
        model = cls(image, decoder, tuned=True, length=length, scale=scale)
        load_strictly(model, state, path)
        return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.pt``, ``.bin`` or ``.safetensors`` file, without causal masks."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: dict[str, Tensor] = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file of weights") from error
    except Exception as error:  # torch and safetensors each raise their own kinds for a broken file
        raise InputError(f"{path} could not be read as weights: {error}") from error
    return {name: tensor for name, tensor in state.items() if not MASKS.search(name)}


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Take all weights of a file, and say which are missing or too many."""
    try:
        missing, surplus = model.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:  # shapes
        raise InputError(f"{path} does not fit: {error}") from error
    # the output layer shares its weights with the embeddings, and not every version saves both
    lost = [name for name in missing if not name.endswith("lm_head.weight")]
    if lost or surplus:
        raise InputError(f"{path} does not fit: missing {lost[:5]}, not known {list(surplus)[:5]}")


def final_stop(tokenizer: Any) -> int:
    """Return the token of a full stop, which ends a caption of the published checkpoints."""
    ids: list[int] = tokenizer(".", add_special_tokens=False).input_ids
    return ids[-1]


def _empty_gpt2(state: Mapping[str, Tensor], heads: int | None) -> Any:
    library = transformers()
    vocabulary, width = state["gpt.transformer.wte.weight"].shape
    config = library.GPT2Config(
        vocab_size=vocabulary,
        n_positions=state["gpt.transformer.wpe.weight"].shape[0],
        n_embd=width,
        n_layer=sum(name.endswith(".ln_1.weight") for name in state),
        n_head=heads or max(1, width // HEAD_WIDTH),
    )
    return library.GPT2LMHeadModel(config)
