"""ClipCap (Mokady et al. 2021): a mapper turns an image vector into ten embeddings before the caption.

The mapper is a transformer of eight layers, as in the paper's tables (42.7 million parameters with RN50x4 and GPT-2),
or a perceptron (32.0 million). The language model is frozen, or tuned together with it. Names of weights are those of
the published checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from recap.errors import InputError, check_name
from recap.experiments.baselines.decoders import Baseline, Decoder, transformers

PREFIX = 10
"""Length of the prefix: embeddings that stand for an image."""

MASKS = re.compile(r"\.(attn|crossattention)\.(bias|masked_bias)$")
"""Causal masks, which older versions of transformers saved among the weights of GPT-2."""

HEAD_WIDTH = 64
"""Of GPT-2 in every size, so that the number of heads follows from the width."""


MAPPER_HEADS = 8
MAPPER_LAYERS = 8


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


class _Attention(nn.Module):
    """Attention of vectors to each other, as the published checkpoints lay it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_queries = nn.Linear(width, width, bias=False)
        self.to_keys_values = nn.Linear(width, 2 * width, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        """Return what each vector takes from the others."""
        parts = (self.to_queries(rows), *self.to_keys_values(rows).chunk(2, dim=-1))
        heads = (part.unflatten(-1, (MAPPER_HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        taken: Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return taken


class _Layer(nn.Module):
    """Attention and a hidden layer twice as wide, each behind a norm and added to what there was."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), _Attention(width), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 2 * width), "fc2": nn.Linear(2 * width, width)})

    def forward(self, rows: Tensor) -> Tensor:
        """Return the vectors for the next layer."""
        rows = rows + self.attn(self.norm1(rows))
        added: Tensor = self.mlp["fc2"](self.mlp["fc1"](self.norm2(rows)).relu())
        return rows + added


class TransformerMapper(nn.Module):
    """Vectors made of the image stand before learned ones, which attend to them and become the prefix.

    ``image`` and ``width`` are the dimensions of image vectors and of the language model's embeddings, a multiple of
    ``MAPPER_HEADS``; ``parts`` vectors are made of the image, as many as the prefix has unless said otherwise.
    """

    def __init__(
        self, image: int, width: int, length: int, *, parts: int | None = None, layers: int = MAPPER_LAYERS
    ) -> None:
        super().__init__()
        if width % MAPPER_HEADS:
            raise InputError(f"embeddings of {width} dimensions cannot be divided among {MAPPER_HEADS} heads")
        self.image, self.length, self.parts = image, length, parts or length
        self.linear = nn.Linear(image, self.parts * width)
        self.prefix_const = nn.Parameter(torch.randn(length, width))
        self.transformer = nn.ModuleDict({"layers": nn.ModuleList(_Layer(width) for _ in range(layers))})

    def forward(self, images: Tensor) -> Tensor:
        """Return ``length`` embeddings for each image."""
        seen = self.linear(images).unflatten(-1, (self.parts, -1))
        rows = torch.cat([seen, self.prefix_const.expand(len(images), -1, -1)], dim=1)
        for layer in self.transformer["layers"].children():
            rows = layer(rows)
        return rows[:, self.parts :]


MAPPERS: dict[str, Callable[..., PrefixMapper | TransformerMapper]] = {
    "transformer": TransformerMapper,
    "mlp": PrefixMapper,
}
"""By the names that the published code gives them; the first is that of the paper's tables."""
SCALES = {"transformer": 1.0, "mlp": 10.0}
"""What vectors of length 1 are multiplied with for published checkpoints: those with a perceptron were trained on
CLIP's vectors as they come, whose length is about 10, those with a transformer on vectors of length 1."""


class ClipCap(Baseline):
    """A prefix into a causal language model, which is trained, too, where it is ``tuned``.

    ``image`` is the dimension of image vectors, which are multiplied with ``scale``; one of ``MAPPERS`` turns each into
    ``length`` embeddings, and ``sizes`` are further arguments of it.
    """

    def __init__(
        self,
        image: int,
        decoder: Decoder,
        *,
        tuned: bool = False,
        mapper: str = "transformer",
        length: int = PREFIX,
        scale: float = 1.0,
        **sizes: int,
    ) -> None:
        super().__init__(decoder, tuned=tuned)
        check_name("mapper", mapper, MAPPERS)
        width = self.gpt.get_input_embeddings().embedding_dim
        self.clip_project = MAPPERS[mapper](image, width, length, **sizes)
        self.scale = scale

    def condition(self, images: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the prefix of each image; prompts are not read."""
        prefix = self.clip_project(self.scale * images)
        return prefix, torch.ones(prefix.shape[:2], dtype=torch.long, device=prefix.device)

    @classmethod
    def from_published(
        cls, path: str | Path, tokenizer: Any, *, heads: int | None = None, scale: float | None = None
    ) -> Self:
        """Load a published checkpoint, a ``.pt`` file of ``clip_project.*`` and ``gpt.*``, with GPT-2's tokenizer.

        ``heads`` is the number of GPT-2's, where one is not 64 wide; ``scale`` is that of ``SCALES`` by default.
        """
        state = read_weights(Path(path))
        mapper = next((name for name, weight in _MARKS.items() if weight in state), None)
        if mapper is None or "gpt.transformer.wte.weight" not in state:
            raise InputError(
                f"{path} is no ClipCap checkpoint: it lacks gpt.transformer.wte.weight, or the mapper "
                f"({' or '.join(_MARKS.values())})"
            )
        decoder = Decoder(_empty_gpt2(state, heads), tokenizer, final_stop(tokenizer), Path(path).name)
        sizes = _mapper_sizes(state, mapper)
        factor = SCALES[mapper] if scale is None else scale
        model = cls(decoder=decoder, tuned=True, mapper=mapper, scale=factor, **sizes)
        load_strictly(model, state, path)
        return model


_MARKS = {"transformer": "clip_project.prefix_const", "mlp": "clip_project.model.0.weight"}
"""A weight that tells which mapper a checkpoint has."""


def _mapper_sizes(state: Mapping[str, Tensor], mapper: str) -> dict[str, int]:
    """Return the arguments of the mapper in a checkpoint."""
    width = state["gpt.transformer.wte.weight"].shape[1]
    try:
        if mapper == "mlp":
            image, whole = state["clip_project.model.0.weight"].shape[1], state["clip_project.model.2.weight"].shape[0]
            return {"image": image, "length": whole // width}
        first = state["clip_project.linear.weight"]
    except KeyError as error:
        raise InputError(f"the mapper of this ClipCap checkpoint lacks {error}") from error
    names = {name.split(".")[3] for name in state if name.startswith("clip_project.transformer.layers.")}
    return {
        "image": first.shape[1],
        "length": len(state["clip_project.prefix_const"]),
        "parts": first.shape[0] // width,
        "layers": len(names),
    }


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
