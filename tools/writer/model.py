"""The writer: a decoder over the words of retrieved captions, with a way to copy them.

Memory is a few entries made from the picture's vector, one for each place of the picture, and one for each word read,
mixed by one attention layer. The next word comes from the vocabulary or is copied out of memory, which is the only way
to say a word in a slot.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.language.prompt import LENGTH, PAD, SEQUENCES, SLOTS

LONGEST = 24
"""So many words a sentence may have, its end included."""


@dataclass(frozen=True)
class Shape:
    """The size of a writer."""

    vocabulary: int
    vector: int = 512
    width: int = 256
    heads: int = 4
    layers: int = 3
    vector_tokens: int = 4
    places: int = 49
    """In how many places the picture is looked at."""
    detail: int = 128
    """How many numbers the eyes have for each place,"""
    patch: int = 128
    """and how many DINOv2 has."""
    dropout: float = 0.0

    @property
    def front(self) -> int:
        """How many entries of memory come before the words."""
        return self.vector_tokens + self.places

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for json."""
        return asdict(self)


class Attention(nn.Module):
    """Attention of several heads whose keys and values can be made beforehand."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key_value = nn.Linear(shape.width, 2 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def split(self, x: Tensor) -> Tensor:
        """Cut the last axis into heads: (rows, heads, places, width of a head)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values for what is attended to."""
        keys, values = self.key_value(x).chunk(2, -1)
        return self.split(keys), self.split(values)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return what each place of ``x`` gathers; ``mask`` is added to the logits."""
        query = self.split(self.query(x))
        gathered = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        out: Tensor = self.out(gathered.transpose(-3, -2).flatten(-2))
        return out


class FeedForward(nn.Sequential):
    """Two layers with a bend between."""

    def __init__(self, shape: Shape) -> None:
        inner = 4 * shape.width
        super().__init__(nn.Linear(shape.width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, shape.width))


class EncoderLayer(nn.Module):
    """Memory looks at itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.feed = Attention(shape), FeedForward(shape)
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return memory, mixed."""
        normed = self.norms[0](x)
        x = x + self.drop(self.attention(normed, *self.attention.keys_values(normed), mask))
        mixed: Tensor = x + self.drop(self.feed(self.norms[1](x)))
        return mixed


class DecoderLayer(nn.Module):
    """A sentence looks at its past and at memory."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.past, self.memory, self.feed = Attention(shape), Attention(shape), FeedForward(shape)
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(3))
        self.drop = nn.Dropout(shape.dropout)

    def finish(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Return the sentence after it has looked at memory."""
        x = x + self.drop(self.memory(self.norms[1](x), *memory, mask))
        finished: Tensor = x + self.drop(self.feed(self.norms[2](x)))
        return finished

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None, causal: Tensor) -> Tensor:
        """Return whole sentences (pictures, sentences, places, width), which share their picture's memory."""
        normed = self.norms[0](x).flatten(0, 1)
        x = x + self.drop(self.past(normed, *self.past.keys_values(normed), causal)).view_as(x)
        return self.finish(x.flatten(1, 2), memory, mask).view_as(x)

    def step(
        self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return one place of each sentence (pictures, sentences, width), and keys and values of its past."""
        normed = self.norms[0](x).flatten(0, 1)[:, None]
        keys, values = self.past.keys_values(normed)
        keys, values = torch.cat([past[0], keys], -2), torch.cat([past[1], values], -2)
        x = x + self.past(normed, keys, values, None).view_as(x)
        return self.finish(x, memory, mask), (keys, values)


class Writer(nn.Module):
    """Retrieved captions and a vector in, probabilities of the next word out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary + SLOTS, shape.width)
        self.in_caption = nn.Embedding(LENGTH + 1, shape.width)
        self.of_caption = nn.Embedding(SEQUENCES + 1, shape.width)
        self.in_sentence = nn.Embedding(LONGEST, shape.width)
        self.share = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, shape.width))
        self.neighbours = nn.Conv1d(shape.width, shape.width, 3, padding=1, groups=8)
        self.vector = nn.Linear(shape.vector, shape.vector_tokens * shape.width)
        self.no_vector = nn.Parameter(torch.zeros(shape.vector_tokens * shape.width))
        self.detail, self.no_detail = nn.Linear(shape.detail, shape.width), nn.Parameter(torch.zeros(shape.width))
        self.patch = nn.Linear(shape.patch, shape.width)
        self.in_picture = nn.Embedding(shape.places, shape.width)
        self.encoder = EncoderLayer(shape)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.memory_norm, self.last_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.copy_query = nn.Linear(shape.width, shape.width)
        self.copy_key = nn.Linear(shape.width, shape.width)
        self.gate = nn.Linear(shape.width, 1)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.drop = nn.Dropout(shape.dropout)
        for table in (self.words, self.in_caption, self.of_caption, self.in_sentence, self.in_picture):
            nn.init.normal_(table.weight, std=shape.width**-0.5)
        for weights in self.patch.parameters():
            nn.init.zeros_(weights)  # a writer that never saw any goes on as it was

    @property
    def decoder(self) -> list[DecoderLayer]:
        """The layers that grow sentences."""
        return cast("list[DecoderLayer]", list(self.layers))

    def remember(
        self,
        tokens: Tensor,
        shares: Tensor,
        places: Tensor,
        ranks: Tensor,
        vector: Tensor,
        known: Tensor,
        details: Tensor,
        seen: Tensor,
        patches: Tensor,
        closer: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Return memory: the entries of the vector first, then one for each place, then one for each word read.

        ``known`` is 1 where the vector means something and 0 where there is none; so is ``seen`` for ``details``, what
        the eyes say of each place, and ``closer`` for ``patches``, what DINOv2 adds. ``mask`` is added to logits.
        """
        votes = torch.stack([shares, torch.log(shares + 1e-3)], -1)
        x = (
            self.words(tokens) * self.shape.width**0.5
            + self.in_caption(places)
            + self.of_caption(ranks)
            + self.share(votes)
        )
        if mask is not None:  # filled-up places must not reach their neighbours
            x = x * (mask[:, 0, 0, self.shape.front :, None] == 0)
        x = x + self.neighbours(x.transpose(1, 2)).transpose(1, 2)
        point = known[:, None] * self.vector(vector * self.shape.vector**0.5) + (1 - known[:, None]) * self.no_vector
        there, nearer = seen[:, None, None], closer[:, None, None]
        placed, patched = (
            part.unflatten(-1, (self.shape.places, -1))  # type: ignore[no-untyped-call]
            for part in (details, patches)
        )
        looked = there * self.detail(placed) + (1 - there) * self.no_detail + nearer * self.patch(patched)
        looked = looked + self.in_picture.weight
        x = torch.cat([point.unflatten(-1, (self.shape.vector_tokens, -1)), looked, x], 1)
        memory: Tensor = self.memory_norm(self.encoder(self.drop(x), mask))
        return memory

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return the words of a sentence as vectors."""
        x: Tensor = self.drop(self.words(tokens) * self.shape.width**0.5 + self.in_sentence(places))
        return x

    def decode(self, sentences: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Return the state at each place of whole sentences (pictures, sentences, places)."""
        length = sentences.shape[-1]
        x = self.embed(sentences, torch.arange(length))
        causal = torch.full((length, length), -torch.inf).triu(1)
        for layer in self.decoder:
            x = layer(x, layer.memory.keys_values(memory), mask, causal)
        state: Tensor = self.last_norm(x)
        return state

    def logits(self, state: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        return F.linear(state, self.words.weight[: self.shape.vocabulary], self.bias)

    def copies(self, state: Tensor, copy_keys: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits over the words in memory."""
        logits: Tensor = self.copy_query(state) @ copy_keys.transpose(-1, -2) * self.shape.width**-0.5
        return logits if mask is None else logits + mask

    def likelihood(self, state: Tensor, targets: Tensor, memory: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the log-probability of each target (pictures, places) at its state."""
        first = self.shape.front
        in_vocabulary = (targets < self.shape.vocabulary) & (targets != PAD)
        # only places with a word of the vocabulary need its logits, which are most of the work
        loss = F.cross_entropy(self.logits(state[in_vocabulary]).float(), targets[in_vocabulary], reduction="none")
        written = torch.full_like(targets, -30.0, dtype=loss.dtype).masked_scatter(in_vocabulary, -loss)
        copies = self.copies(state, self.copy_key(memory[:, first:]), mask[:, 0, :, first:]).float()
        gate = self.gate(state).float()
        same = tokens[:, None, :] == targets[..., None]
        copied = (copies.softmax(-1) * same).sum(-1).clamp_min(1e-9).log()
        gate = gate[..., 0]
        return torch.logaddexp(F.logsigmoid(gate) + written, F.logsigmoid(-gate) + copied)

    def probabilities(self, state: Tensor, copy_keys: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return for each row of states the probability of every word and slot."""
        copies, write = self.copies(state, copy_keys, mask), self.gate(state).sigmoid()
        written = F.pad(self.logits(state).softmax(-1) * write, (0, SLOTS))
        index = tokens.expand_as(copies)
        return written.scatter_add(-1, index, copies.softmax(-1) * (1 - write))
