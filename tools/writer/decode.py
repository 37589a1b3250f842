"""Sentences from the writer while it is being trained."""

from __future__ import annotations

import torch
from torch import Tensor

from recap.language.prompt import BEGIN, END, PAD, UNKNOWN
from recap.language.words import join_words
from writer.batches import Batch, Corpus
from writer.model import LONGEST, Writer


@torch.no_grad()
def generate(
    model: Writer, batch: Batch, memory: Tensor, samples: int, temperature: float, longest: int = LONGEST
) -> Tensor:
    """Return sentences (pictures, samples, places), ended by ``END`` and filled up with ``PAD``.

    Temperature 0 takes the likeliest word at each place.
    """
    pictures = len(memory)
    first = model.shape.front
    layers = model.decoder
    stored = [layer.memory.keys_values(memory) for layer in layers]
    copy_keys, open_ = model.copy_key(memory[:, first:]), batch.mask[:, 0, :, first:]
    head = model.shape.width // model.shape.heads
    past = [(memory.new_zeros(pictures * samples, model.shape.heads, 0, head),) * 2 for _ in layers]
    words = torch.full((pictures, samples), BEGIN)
    ended = torch.zeros_like(words, dtype=torch.bool)
    written = []
    for place in range(longest):
        x = model.embed(words, torch.tensor(place))
        for number, layer in enumerate(layers):
            x, past[number] = layer.step(x, stored[number], batch.mask, past[number])
        tokens = batch.tokens[:, None, :]
        p = model.probabilities(model.last_norm(x), copy_keys, tokens, open_)
        p[..., [PAD, BEGIN, UNKNOWN]] = 0
        if place == longest - 1:
            words = torch.full_like(words, END)
        elif temperature == 0:
            words = p.argmax(-1)
        else:
            words = _drawn(p if temperature == 1 else p ** (1 / temperature))
        words = words.masked_fill(ended, PAD)
        written.append(words)
        ended = ended | (words == END)
        if bool(ended.all()):
            break
    return torch.stack(written, -1)


def _drawn(weights: Tensor) -> Tensor:
    """Return a place for each row, drawn with the row's weights: a tenth of the time ``torch.multinomial`` takes."""
    cumulated = weights.cumsum(-1)
    points = torch.rand_like(cumulated[..., :1]) * cumulated[..., -1:]
    return torch.searchsorted(cumulated, points, right=True)[..., 0].clamp_max(weights.shape[-1] - 1)


def as_text(sentence: list[int], slots: dict[int, int], corpus: Corpus) -> str:
    """Return a sentence as it is read."""
    beyond = len(corpus.words)
    found = []
    for word in sentence:
        if word in (END, PAD):
            break
        number = slots.get(word, word)
        found.append(corpus.words[number - beyond if number >= beyond else number])
    return join_words(found)
