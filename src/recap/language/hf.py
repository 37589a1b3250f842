"""Models of the Hugging Face ecosystem: sequence-to-sequence (FLAN-T5) and causal (GPT-2, GPT-J, Llama).

One decoding loop of our own serves both kinds. The prompts of a batch are read once; then the cache is repeated for
the samples and one token follows the other. ``generate`` of transformers is not used because it draws the whole batch
from one random state, where a draft here must depend on its own prompt only. Prompts of a batch are padded under a
mask, which leaves differences in the last bits of the logits and no others. Samples of a T5 share the keys and values
of their prompt, which repeated would take longer to read than the weights.

On the CPU the weights are float32, whatever the checkpoint holds; or int8, with a scale for each output and for each
token that is read, so that a token's products depend on itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recap.errors import AssetError, InputError, MissingExtraError
from recap.language.base import Decoding, PromptTooLongError, draw_tokens, files_fingerprint, uniforms
from recap.types import Draft, Prompt

if TYPE_CHECKING:
    from torch import Tensor

BATCH_ROWS = 64
"""Batch size: prompts times samples."""


class HuggingFaceModel:
    """A sequence-to-sequence or a causal model of transformers; the model's config says which."""

    def __init__(self, source: str, *, device: str = "cpu", threads: int | None = None, int8: bool = False) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise MissingExtraError("a model of transformers", "hf") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.int8 = int8
        self.name = f"hf{'-int8' * int8}:{source}"
        self._source = source
        self.device = device
        try:
            config = transformers.AutoConfig.from_pretrained(source)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
            self.seq2seq = bool(config.is_encoder_decoder)
            kind = transformers.AutoModelForSeq2SeqLM if self.seq2seq else transformers.AutoModelForCausalLM
            model: Any = kind.from_pretrained(source)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise AssetError(
                f"{source} could not be loaded as a language model: {error}. Give the folder of a saved model, or a "
                "name of the Hugging Face hub when it can be reached"
            ) from error
        self.completes = not self.seq2seq
        self.model: Any = (model.float() if device == "cpu" or int8 else model).to(device).eval()
        for attention in _cross_attentions(self.model):
            _share_prompts(attention)
        if int8:
            _quantize(self.model)
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        """How many tokens fit; None where positions are relative and any number does (T5)."""
        self._end_tokens = _end_tokens(self.model, self.tokenizer)
        self._holds_newline: dict[int, bool] = {}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the saved files, or of the commit of the hub, and of the precision it runs in."""
        folder = Path(self._source)
        files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        commit = getattr(self.model.config, "_commit_hash", None) or ""
        return files_fingerprint(files, "hf", commit, str(self.model.dtype), *["int8"] * self.int8)

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``."""
        ids = [self.tokenizer(prompt.text).input_ids for prompt in prompts]
        for row in ids:
            self._check_length(len(row), decoding.max_tokens)
        # rounding to int8 would make much of the last bits in which padded prompts differ
        size = 1 if self.int8 else max(1, BATCH_ROWS // decoding.sentences)
        drafts: list[list[Draft]] = [[] for _ in prompts]
        # neighbours of similar length need little padding
        order = sorted(range(len(prompts)), key=lambda i: len(ids[i]))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            texts = [prompts[i].text for i in batch]
            for i, written in zip(batch, self._write_batch(texts, [ids[i] for i in batch], decoding), strict=True):
                drafts[i] = written
        return drafts

    def _check_length(self, tokens: int, max_tokens: int) -> None:
        if not tokens:
            raise InputError(f"the prompt is empty for the tokenizer of {self.name}")
        if self.context is None:
            return
        room = self.context if self.seq2seq else self.context - max_tokens
        if tokens > room:
            raise PromptTooLongError(self.name, tokens, room)

    def _write_batch(self, texts: list[str], ids: list[list[int]], decoding: Decoding) -> list[list[Draft]]:
        """Write all samples of a few prompts, one token of every sentence at a time."""
        import torch

        samples = decoding.sentences
        random = np.concatenate([uniforms(decoding, text) for text in texts], axis=1)
        uniform = torch.from_numpy(random).to(self.device)
        sentences = [_Sentence() for _ in range(uniform.shape[1])]
        with torch.inference_mode():
            reading = _read(self.model, ids, self.seq2seq)
            logits = reading.repeat(samples)
            for step in range(decoding.max_tokens):
                probabilities = logits.float().softmax(-1)
                tokens = draw_tokens(probabilities, uniform[step], decoding)
                logprobs = probabilities.gather(1, tokens[:, None])[:, 0].log()
                for sentence, token, logprob in zip(sentences, tokens.tolist(), logprobs.tolist(), strict=True):
                    self._extend(sentence, token, logprob)
                if all(sentence.ended for sentence in sentences) or step + 1 == decoding.max_tokens:
                    break
                logits = reading.advance(tokens[:, None])
        drafts = [Draft(self._decode(sentence.tokens), sentence.logprob) for sentence in sentences]
        return [drafts[start : start + samples] for start in range(0, len(drafts), samples)]

    def _extend(self, sentence: _Sentence, token: int, logprob: float) -> None:
        """Add a token, or end the sentence with it."""
        sentence.ended = sentence.ended or token in self._end_tokens
        if sentence.ended:
            return
        if token not in self._holds_newline:
            self._holds_newline[token] = "\n" in self.tokenizer.decode([token])
        # some vocabularies have a full stop and a newline in one token: its text before the newline stays
        sentence.tokens.append(token)
        sentence.ended = self._holds_newline[token]
        if not sentence.ended:
            sentence.logprob += logprob

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.split("\n")[0].strip()


@dataclass(slots=True)
class _Sentence:
    """A sentence that is being written."""

    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    ended: bool = False


@dataclass(slots=True)
class _Reading:
    """A batch that the model has read so far: its cache, and what the model is told about the padding."""

    model: Any
    cache: Any
    logits: Tensor
    """The logits of the next token, a row for each sentence."""
    mask: Tensor
    """1 at the tokens of the prompts; a causal model's mask grows as it writes, an encoder's does not."""
    encoded: Tensor | None = None
    """What the encoder made of the prompts; None for a causal model."""

    def repeat(self, samples: int) -> Tensor:
        """Go on with several copies of each row; nothing is read again."""
        if samples > 1:
            shared = self.encoded is not None and bool(_cross_attentions(self.model))
            (self.cache.self_attention_cache if shared else self.cache).batch_repeat_interleave(samples)
            self.mask = self.mask.repeat_interleave(samples, 0)
            self.logits = self.logits.repeat_interleave(samples, 0)
            if self.encoded is not None:
                self.encoded = self.encoded.repeat_interleave(samples, 0)
        return self.logits

    def advance(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row and return the logits of the next."""
        import torch

        arguments: dict[str, Any]
        if self.encoded is None:
            self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
            arguments = {"input_ids": tokens, "position_ids": self.mask.sum(1, keepdim=True) - 1}
        else:
            arguments = {"decoder_input_ids": tokens, "encoder_outputs": (self.encoded,)}
        out = self.model(attention_mask=self.mask, past_key_values=self.cache, use_cache=True, **arguments)
        self.cache, self.logits = out.past_key_values, out.logits[:, -1]
        return self.logits


def _read(model: Any, ids: list[list[int]], seq2seq: bool) -> _Reading:
    """Let the model read the prompts, padded on the right for an encoder and on the left for a causal model."""
    import torch

    width = max(map(len, ids))
    tokens = torch.zeros((len(ids), width), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(ids):
        place = slice(0, len(prompt)) if seq2seq else slice(width - len(prompt), width)
        tokens[row, place] = torch.tensor(prompt)
        mask[row, place] = 1
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    if seq2seq:
        encoded = model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state
        start = torch.full((len(ids), 1), model.config.decoder_start_token_id, device=model.device)
        out = model(attention_mask=mask, decoder_input_ids=start, encoder_outputs=(encoded,), use_cache=True)
        return _Reading(model, out.past_key_values, out.logits[:, -1], mask, encoded)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True)
    return _Reading(model, out.past_key_values, out.logits[:, -1], mask)


def load_int8(source: str, *, device: str = "cpu", threads: int | None = None) -> HuggingFaceModel:
    """Return a model whose weights are in int8: faster on a CPU."""
    return HuggingFaceModel(source, device=device, threads=threads, int8=True)


def _quantize(model: Any) -> None:
    """Put the matrices of a model into int8."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Linear | Conv1D):
                weight = child.weight.T if isinstance(child, Conv1D) else child.weight
                setattr(module, name, _int8_linear(weight.detach(), child.bias))


def _int8_linear(weight: Tensor, bias: Tensor | None) -> Any:
    """Return a layer of int8 products, exact in 32 bits, whose inputs are scaled token by token."""
    import torch

    class Int8Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = weight.abs().amax(1).clamp(min=1e-12) / 127
            self.weight = (weight / self.scales[:, None]).round().to(torch.int8).contiguous()
            self.bias = bias

        def forward(self, inputs: Tensor) -> Tensor:
            rows = inputs.reshape(-1, inputs.shape[-1])
            sizes = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            products = torch._int_mm((rows / sizes).round().to(torch.int8), self.weight.T)
            outputs = products * sizes * self.scales
            return (outputs if self.bias is None else outputs + self.bias).reshape(*inputs.shape[:-1], -1)

    return Int8Linear()


def _cross_attentions(model: Any) -> list[Any]:
    """Return the attentions of a T5 to its prompt."""
    return [module.EncDecAttention for module in model.modules() if hasattr(module, "EncDecAttention")]


def _share_prompts(attention: Any) -> None:
    """Let samples of a prompt ask for its keys and values together, as one row of several tokens."""
    plain = attention.forward

    def forward(states: Tensor, mask: Tensor | None = None, past_key_values: Any = None, **options: Any) -> Any:
        options["past_key_values"] = past_key_values
        known = past_key_values is not None and past_key_values.is_updated.get(attention.layer_idx)
        prompts = len(past_key_values.cross_attention_cache.layers[attention.layer_idx].keys) if known else len(states)
        if prompts == len(states):
            return plain(states, mask, **options)
        samples = len(states) // prompts
        folded = states.reshape(prompts, samples, -1)
        attended, *others = plain(folded, mask if mask is None else mask[::samples], **options)
        return attended.reshape(states.shape), *others

    attention.forward = forward


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return every token that ends a text: a model may have several."""
    ends = {tokenizer.eos_token_id}
    for config in (model.config, model.generation_config):
        end = getattr(config, "eos_token_id", None)
        ends.update(end if isinstance(end, list) else [end])
    return ends - {None}
