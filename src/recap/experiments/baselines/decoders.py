"""The causal language models behind the baselines, and what both baselines do with them.

====================  ==================================================================================================
``smollm2``           SmolLM2-135M-Instruct, fetched as GGUF and kept in the cache as transformers would save it
``scratch``           a small GPT-2 with random weights, whose words are those of the training captions
a folder, a hub name  any causal model of transformers
====================  ==================================================================================================
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recap.errors import AssetError, InputError, MissingExtraError

CAPTION_TOKENS = 40
"""Limit of a caption, read or written."""

PROMPT_TOKENS = 160
"""Limit of a prompt; of a longer one the last tokens are read."""

WRITE_BATCH = 50
"""Batch size of writing."""

IGNORED = -100
"""The label of a token that is not to be predicted."""


@dataclass(frozen=True)
class Decoder:
    """A causal language model with its tokenizer."""

    model: Any
    tokenizer: Any
    end: int
    """The token that ends a caption."""
    name: str
    pretrained: bool = True

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text without any that begin or end it."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids


class Baseline(nn.Module):
    """A captioner whose language model continues something that an image was turned into."""

    def __init__(self, decoder: Decoder, *, tuned: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.gpt: Any = decoder.model
        self.gpt.requires_grad_(tuned)

    @abstractmethod
    def condition(self, images: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the embeddings that come before the caption, and a mask of those that are no padding."""

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def loss(self, images: Tensor, prompts: Sequence[str], captions: Sequence[str]) -> Tensor:
        """Return the mean cross-entropy of the captions' tokens."""
        before, mask = self.condition(images, prompts)
        tokens, labels = self._targets(captions, before.device)
        embedded = torch.cat([before, self.gpt.get_input_embeddings()(tokens)], dim=1)
        # padding after a caption needs no mask: nothing before it looks ahead
        mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
        logits = self.gpt(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=_positions(mask),
            logits_to_keep=tokens.shape[1] + 1,
            use_cache=False,
        ).logits[:, :-1]
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    def write(self, images: Tensor, prompts: Sequence[str], *, limit: int = CAPTION_TOKENS) -> list[str]:
        """Return the most likely caption of each image, chosen token by token, with at most ``limit`` tokens."""
        was_training = self.training
        self.eval()
        captions: list[str] = []
        with torch.inference_mode():
            for start in range(0, len(images), WRITE_BATCH):
                part = slice(start, start + WRITE_BATCH)
                captions += self._write(*self.condition(images[part], prompts[part]), limit)
        self.train(was_training)
        return captions

    def _write(self, embedded: Tensor, mask: Tensor, limit: int) -> list[str]:
        out = self.gpt(inputs_embeds=embedded, attention_mask=mask, position_ids=_positions(mask), use_cache=True)
        rows: list[list[int]] = [[] for _ in embedded]
        ended = torch.zeros(len(rows), dtype=torch.bool, device=embedded.device)
        for _ in range(limit):
            tokens = out.logits[:, -1].argmax(dim=1)
            ended |= tokens == self.decoder.end
            for row, token, over in zip(rows, tokens.tolist(), ended.tolist(), strict=True):
                if not over:
                    row.append(token)
            if bool(ended.all()):
                break
            mask = nn.functional.pad(mask, (0, 1), value=1)
            out = self.gpt(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=_positions(mask)[:, -1:],
                past_key_values=out.past_key_values,
                use_cache=True,
            )
        return [self.decoder.tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows]

    def _targets(self, captions: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return tokens, padded at the end, and labels that leave the padding out."""
        rows = [[*self.decoder.encode(text)[: CAPTION_TOKENS - 1], self.decoder.end] for text in captions]
        labels = torch.full((len(rows), max(map(len, rows))), IGNORED)
        for place, row in enumerate(rows):
            labels[place, : len(row)] = torch.tensor(row)
        labels = labels.to(device)
        return labels.clamp(min=0), labels


def load_decoder(name: str, captions: Sequence[str] = (), *, seed: int = 0) -> Decoder:
    """Return a language model by name; ``captions`` give the words of ``scratch``."""
    if name == "scratch":
        return scratch_decoder(captions, seed=seed)
    library = transformers()
    source = _converted_smollm2() if name == "smollm2" else name
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(source)
        model = library.AutoModelForCausalLM.from_pretrained(source).float()
    except (OSError, ValueError, KeyError) as error:
        raise AssetError(
            f"{name} could not be loaded as a causal language model: {error}. Give smollm2, scratch, the folder of a "
            "saved model, or a name of the Hugging Face hub when it can be reached"
        ) from error
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else model.config.eos_token_id
    if not isinstance(end, int):
        raise InputError(f"{name}: the tokenizer names no token that ends a text")
    return Decoder(model, tokenizer, end, Path(name).name)


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer from a folder, or by its name on the hub."""
    try:
        return transformers().AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise AssetError(
            f"the tokenizer {name} could not be loaded: {error}. Give the folder of a saved one, or a name of the "
            "Hugging Face hub when it can be reached"
        ) from error


def scratch_decoder(
    captions: Sequence[str], *, layers: int = 3, width: int = 192, heads: int = 6, least: int = 3, seed: int = 0
) -> Decoder:
    """Return a small GPT-2 with random weights; its vocabulary is the words said at least so often."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    if not captions:
        raise InputError("a language model from scratch takes its words from captions, and there are none")
    library = transformers()
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[END]", "[UNK]"], min_frequency=least, show_progress=False)
    words.train_from_iterator(captions, trainer)
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[END]", unk_token="[UNK]")
    config = library.GPT2Config(
        vocab_size=words.get_vocab_size(),
        n_positions=PROMPT_TOKENS + 2 * CAPTION_TOKENS,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.GPT2LMHeadModel(config)
    return Decoder(model, tokenizer, 0, "a small GPT-2 from scratch", pretrained=False)


def transformers() -> Any:
    """Return the library, which takes seconds to import and has types in some versions only."""
    import transformers

    return transformers


def padded_prompts(decoder: Decoder, prompts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tokens of prompts, padded in front, and a mask of those that are no padding."""
    rows = [decoder.encode(text)[-PROMPT_TOKENS:] for text in prompts]
    tokens = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, tokens.shape[1] - len(row) :] = torch.tensor(row)
        mask[place, tokens.shape[1] - len(row) :] = 1
    return tokens.to(device), mask.to(device)


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _converted_smollm2() -> str:
    """Return the folder of SmolLM2 for transformers; the GGUF file is converted once, which takes minutes."""
    from recap.assets import cache_dir, fetch
    from recap.files import atomic_folder, exclusive

    folder = cache_dir() / "baselines" / "smollm2"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_suffix(".lock")):
        if not folder.exists():
            file = fetch("smollm2")
            with atomic_folder(folder) as empty:
                _convert_gguf(file, empty)
    return str(folder)


def _convert_gguf(file: Path, folder: Path) -> None:
    library = transformers()
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = library.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    except (ImportError, ValueError) as error:
        # transformers raises ValueError, too, where accelerate is not installed
        raise MissingExtraError(f"reading {file.name} ({error})", "baselines") from error
    # the weights are no longer quantised, but the config says so, and then transformers refuses to save them
    config = library.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    plain = library.AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
