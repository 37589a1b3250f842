"""SmallCap (Ramos et al. 2023): a frozen decoder reads retrieved captions and attends to the image between its layers.

A narrow cross-attention is added to every layer, after its self-attention; only these are trained. An image is a row of
vectors for the published checkpoints (CLIP's patches), or one vector, as encoders give it here. With one vector there
is one place to look at: queries and keys, which are counted, change nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from recap.errors import InputError
from recap.experiments.baselines.clipcap import final_stop, load_strictly, read_weights
from recap.experiments.baselines.decoders import Baseline, Decoder, padded_prompts, transformers

RETRIEVED = 4
"""Captions in a prompt."""

HEAD_WIDTH = 4
"""Of each head of the cross-attention: d = 4 in the paper's tables."""


def prompt(captions: Sequence[str]) -> str:
    """Return the prompt with retrieved captions."""
    listed = "\n\n".join(captions[:RETRIEVED])
    return f"Similar images show\n\n{listed}.\n\nThis image shows "


class CrossAttention(nn.Module):
    """Attention of tokens, ``width`` wide, to what is known about the image, vectors of ``memory`` numbers.

    The more ``layers`` the language model has, the smaller the first weights; ``scale`` is that of the products of
    queries and keys, one over the root of ``head_width`` unless said otherwise.
    """

    def __init__(
        self, width: int, memory: int, heads: int, head_width: int, *, layers: int = 1, scale: float | None = None
    ) -> None:
        super().__init__()
        inner = heads * head_width
        self.heads, self.scale = heads, scale
        self.norm = nn.LayerNorm(width).requires_grad_(False)  # as in the published checkpoints
        self.query, self.key, self.value = nn.Linear(width, inner), nn.Linear(memory, inner), nn.Linear(memory, inner)
        self.out = nn.Linear(inner, width)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.normal_(layer.weight, std=0.02 / (math.sqrt(2 * layers) if layer is self.out else 1))
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Return what is to be added to ``hidden``."""
        query, key, value = (
            rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for rows in (self.query(self.norm(hidden)), self.key(memory), self.value(memory))
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=self.scale)
        added: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return added


class SmallCap(Baseline):
    """Cross-attention in every layer of a causal language model, and a prompt of retrieved captions.

    ``image`` is the dimension of a vector of the image; the language model is trained, too, where it is ``tuned``.
    """

    def __init__(
        self,
        image: int,
        decoder: Decoder,
        *,
        tuned: bool = False,
        head_width: int = HEAD_WIDTH,
        scale: float | None = None,
    ) -> None:
        super().__init__(decoder, tuned=tuned)
        blocks, config = _blocks(self.gpt), self.gpt.config
        width, heads = self.gpt.get_input_embeddings().embedding_dim, config.num_attention_heads
        self.cross = nn.ModuleList(
            CrossAttention(width, image, heads, head_width, layers=len(blocks), scale=scale) for _ in blocks
        )
        self._memory: Tensor | None = None
        for (block, attention), cross in zip(blocks, self.cross, strict=True):
            self._insert(block, attention, cross)

    def condition(self, images: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the embedded prompts, and keep the images for the cross-attention.

        ``images`` holds a vector, or a row of vectors, for each.
        """
        self._memory = images if images.ndim == 3 else images[:, None]
        tokens, mask = padded_prompts(self.decoder, prompts, images.device)
        return self.gpt.get_input_embeddings()(tokens), mask

    def _insert(self, block: nn.Module, attention: nn.Module, cross: nn.Module) -> None:
        """Let a layer attend to the image: h = x + attention(x) becomes h + cross(h).

        A layer adds x itself, so what its attention returns grows by cross(h).
        """
        given: list[Tensor] = []

        def keep(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            given[:] = [arguments[0] if arguments else named["hidden_states"]]

        def add(_: nn.Module, __: tuple[Any, ...], output: tuple[Any, ...]) -> tuple[Any, ...]:
            if self._memory is None:
                raise RuntimeError("the language model of SmallCap reads nothing before condition() names the images")
            attended = output[0]
            return (attended + cross(given.pop() + attended, self._memory), *output[1:])

        block.register_forward_pre_hook(keep, with_kwargs=True)
        attention.register_forward_hook(add)

    @classmethod
    def from_published(cls, folder: str | Path, tokenizer: Any) -> Self:
        """Load a published folder: ``config.json`` with a GPT-2 or OPT decoder, and its weights.

        Images are given as the last hidden states of the image encoder in it, a row of vectors each: see
        ``patches.Patches``.
        """
        path = Path(folder)
        config = _decoder_config(path)
        kind = config["model_type"]
        file, state = published_weights(path, "decoder.")
        own, rest = _split_off_cross(state, kind)
        if not own:
            raise InputError(f"{file} holds no cross-attention: no crossattention.* or encoder_attn.* weights")
        decoder = Decoder(_empty_decoder(config), tokenizer, final_stop(tokenizer), path.name)
        heads = decoder.model.config.num_attention_heads
        inner, image = own["0.key.weight"].shape
        # OPT's scale stayed that of its full heads when they were made narrow
        full = decoder.model.config.hidden_size // heads
        model = cls(image, decoder, head_width=inner // heads, scale=full**-0.5 if kind == "opt" else None)
        load_strictly(model.cross, own, file)
        load_strictly(model.gpt, rest, file)
        if "lm_head.weight" not in rest:
            model.gpt.get_output_embeddings().weight = model.gpt.get_input_embeddings().weight
        return model


def published_weights(folder: Path, prefix: str) -> tuple[Path, dict[str, Tensor]]:
    """Return the file of weights in a published folder, and those whose names start with ``prefix``, without it."""
    files = [folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).exists()]
    if not files:
        raise InputError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")
    state = read_weights(files[0]).items()
    return files[0], {name.removeprefix(prefix): tensor for name, tensor in state if name.startswith(prefix)}


def _blocks(gpt: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Return the layers of a language model, each with its self-attention."""
    for path, attention in (
        ("transformer.h", "attn"),
        ("model.layers", "self_attn"),
        ("model.decoder.layers", "self_attn"),
    ):
        try:
            layers = gpt.get_submodule(path)
        except AttributeError:
            continue
        return [(layer, layer.get_submodule(attention)) for layer in layers]
    raise InputError(f"SmallCap knows the layers of GPT-2, Llama and OPT, not those of {type(gpt).__name__}")


def _decoder_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = dict(json.loads((folder / "config.json").read_text(encoding="utf-8"))["decoder"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'} describes no SmallCap: it must name a decoder ({error})") from error
    kind = str(config.get("model_type", "")).removeprefix("this_")
    if kind not in ("gpt2", "opt"):
        raise InputError(f"{folder / 'config.json'}: the decoder is {kind!r}, and only gpt2 and opt are known")
    return {**config, "model_type": kind}


def _empty_decoder(config: Mapping[str, Any]) -> Any:
    library = transformers()
    kept = {name: value for name, value in config.items() if name not in ("model_type", "architectures", "torch_dtype")}
    known = library.AutoConfig.for_model(
        config["model_type"], **{**kept, "add_cross_attention": False, "is_decoder": False}
    )
    return library.AutoModelForCausalLM.from_config(known)


def _split_off_cross(state: Mapping[str, Tensor], kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the cross-attention under our names, and the rest of the decoder."""
    rename = _from_gpt2 if kind == "gpt2" else _from_opt
    own: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in state.items():
        renamed = rename(name, tensor)
        if renamed is None:
            rest[name] = tensor
        else:
            own.update(renamed)
    return own, rest


def _from_gpt2(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Rename ``transformer.h.N.crossattention.*`` and ``ln_cross_attn``; GPT-2's matrices are the other way round."""
    parts = name.split(".")
    if len(parts) < 5 or parts[3] not in ("crossattention", "ln_cross_attn"):
        return None
    layer, kind = parts[2], parts[-1]
    if parts[3] == "ln_cross_attn":
        return {f"{layer}.norm.{kind}": tensor}
    turned = tensor.T if tensor.ndim == 2 else tensor
    if parts[4] == "c_attn":
        key, value = turned.chunk(2)
        return {f"{layer}.key.{kind}": key, f"{layer}.value.{kind}": value}
    return {f"{layer}.{'query' if parts[4] == 'q_attn' else 'out'}.{kind}": turned}


def _from_opt(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Rename ``model.decoder.layers.N.encoder_attn.*`` and ``encoder_attn_layer_norm``."""
    parts = name.split(".")
    if "encoder_attn_layer_norm" in parts:
        return {f"{parts[3]}.norm.{parts[-1]}": tensor}
    if "encoder_attn" not in parts:
        return None
    part = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}[parts[5]]
    return {f"{parts[3]}.{part}.{parts[-1]}": tensor}
