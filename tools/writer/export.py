"""The trained writer as two small ONNX files: one reads a prompt, the other takes one step of all its sentences.

Beside them lie its vocabulary, and the phrases people write.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from onnx_files import export_module
from torch import Tensor, nn
from torch.nn import functional as F

import recap
from recap.encoders import load_encoder
from recap.language.prompt import BEGIN, END
from recap.language.words import Phrases, often_written
from writer.batches import Corpus
from writer.model import LONGEST, Shape, Writer


class Read(nn.Module):
    """From what is read to all that the steps need."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def forward(
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys (layers, heads, width of a head, entries) and values of memory, and keys for copying.

        Keys are scaled already, and stand in columns, as products with them are fastest.
        """
        writer = self.writer
        captions = (tokens[None], shares[None], places[None], ranks[None])
        point, looked, nearer = (vector[None], known[None]), (details[None], seen[None]), (patches[None], closer[None])
        memory = writer.remember(*captions, *point, *looked, *nearer, None)
        stored = [layer.memory.keys_values(memory) for layer in writer.decoder]
        keys, values = (torch.cat(both) for both in zip(*stored, strict=True))
        copy_keys = writer.copy_key(memory[0, writer.shape.front :])
        scaled = keys.transpose(-1, -2) * (writer.shape.width // writer.shape.heads) ** -0.5
        return scaled, values, copy_keys.transpose(0, 1) * writer.shape.width**-0.5


class Step(nn.Module):
    """One more word for every sentence of several prompts.

    Products with weights are over the rows of all prompts, one for each sentence. Those with a prompt's memory are over
    as many cells as a prompt may have sentences, for every prompt alike: what a row gives depends on its prompt alone.
    """

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = copy.deepcopy(writer)
        # slots have rows among the words, and are copied only: no second table without them
        never = torch.full((len(writer.words.weight) - len(writer.bias),), -1e9)
        self.writer.bias = nn.Parameter(torch.cat([writer.bias, never]))

    def forward(
        self,
        words: Tensor,
        place: Tensor,
        parents: Tensor,
        cells: Tensor,
        spread: Tensor,
        mask: Tensor,
        copy_keys: Tensor,
        tokens: Tensor,
        *kept: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the probability of every word for each row, and keys and values of the past with it.

        Args:
            words: the last word of each row.
            place: where in its sentence.
            parents: which row of the past each row goes on from.
            cells: where each row stands among the cells of all prompts.
            spread: the row of each cell (prompts, cells); any row where there is none.
            mask: added to logits over memory (prompts, entries).
            copy_keys: the prompts' keys for copying (prompts, width, entries).
            tokens: the words read, for each row.
            kept: for each layer keys and values of memory, then keys and values of the past.
        """
        writer, front = self.writer, self.writer.shape.front
        x = writer.embed(words, place)
        grown: list[Tensor] = []
        for number, layer in enumerate(writer.decoder):
            keys, values, *past = kept[4 * number : 4 * number + 4]
            normed = layer.norms[0](x)
            new = (layer.past.split(part[:, None]) for part in layer.past.key_value(normed).chunk(2, -1))
            past = [torch.cat([old.index_select(0, parents), one], -2) for old, one in zip(past, new, strict=True)]
            scale = past[0].shape[-1] ** -0.5
            query = layer.past.split(layer.past.query(normed)[:, None]) * scale
            x = x + layer.past.out(_attend(query, past[0].transpose(-1, -2), past[1])[:, 0])
            query = layer.memory.split(layer.memory.query(layer.norms[1](x))[spread])
            gathered = _attend(query, keys, values, mask[:, None, None])
            x = x + layer.memory.out(gathered.flatten(0, 1)[cells])
            x = x + layer.feed(layer.norms[2](x))
            grown += past
        state = writer.last_norm(x)
        copies = (writer.copy_query(state)[spread] @ copy_keys + mask[:, None, front:]).softmax(-1)
        write = writer.gate(state).sigmoid()
        written = F.linear(state, writer.words.weight, writer.bias).softmax(-1) * write
        return written.scatter_add(-1, tokens, copies.flatten(0, 1)[cells] * (1 - write)), *grown


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return what queries (..., heads, places, width of a head) gather, heads side by side."""
    logits = query @ keys
    weights = (logits if mask is None else logits + mask).softmax(-1)
    return (weights @ values).transpose(-3, -2).flatten(-2)


def export(folder: Path, name: str) -> None:
    """Write the averaged weights of a run into the package, with its vocabulary."""
    saved = torch.load(folder / f"{name}.pt", weights_only=True)
    writer = Writer(Shape(**saved["shape"])).eval()
    writer.load_state_dict(saved["average"])
    corpus = Corpus(folder)
    out = Path(recap.__file__).parent / "data" / "writer"
    out.mkdir(parents=True, exist_ok=True)
    write_onnx(writer, out)
    small, large = load_encoder("eyes"), load_encoder("eyes-large")
    sights = small.sight, large.sight
    write_config(writer, corpus.words[: corpus.vocabulary], small.text.fingerprint, sights, out)
    write_phrases((corpus[number] for number in range(len(corpus))), corpus.vocabulary, out)
    for file in sorted(out.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def write_phrases(sentences: Iterable[Sequence[int]], vocabulary: int, out: Path) -> None:
    """Write ``phrases.bin``: what people wrote several times, as far as the vocabulary goes."""
    known = [triple for triple in often_written(sentences, BEGIN, END) if max(triple) < vocabulary]
    Phrases.of(known).save(out / "phrases.bin")
    print(f"{len(known):,} phrases")


def write_config(writer: Writer, words: list[str], text_encoder: str, sights: tuple[str, str], out: Path) -> None:
    """Write all that the package needs to know beside the two graphs; ``sights`` are without and with DINOv2."""
    shape = writer.shape
    kept = ("layers", "heads", "width", "vector", "places", "detail", "patch")
    known = {"text_encoder": text_encoder, "sight": sights[0], "closer_sight": sights[1]}
    sizes = {"longest": LONGEST, **{name: getattr(shape, name) for name in kept}}
    content = {**known, **sizes, "vocabulary": words}
    (out / "config.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_onnx(writer: Writer, out: Path) -> None:
    """Write ``read.onnx`` and ``step.onnx``."""
    shape = writer.shape
    entries, prompts, cells, rows, before = 9, 2, 4, 3, 2
    tokens, places, ranks = (torch.zeros(entries, dtype=torch.long) for _ in range(3))
    one = torch.tensor(1.0)
    sizes = (shape.vector, shape.places * shape.detail, shape.places * shape.patch)
    picture = (part for size in sizes for part in (torch.zeros(size), one))
    names = ("tokens", "shares", "places", "ranks", "vector", "known", "details", "seen", "patches", "closer")
    export_module(
        Read(writer),
        (tokens, torch.ones(entries), places, ranks, *picture),
        out / "read.onnx",
        inputs={name: {0: "n"} if name in names[:4] else {} for name in names},
        outputs={"keys": {3: "m"}, "values": {2: "m"}, "copy_keys": {1: "n"}},
    )
    head, memory = shape.width // shape.heads, shape.front + entries
    inputs = {
        "words": ((rows,), {0: "r"}),
        "place": ((), {}),
        "parents": ((rows,), {0: "r"}),
        "cells": ((rows,), {0: "r"}),
        "spread": ((prompts, cells), {0: "p", 1: "c"}),
        "mask": ((prompts, memory), {0: "p", 1: "m"}),
        "copy_keys": ((prompts, shape.width, entries), {0: "p", 2: "n"}),
        "tokens": ((rows, entries), {0: "r", 1: "n"}),
    }
    outputs = {"probabilities": {0: "r"}}
    for layer in range(shape.layers):
        inputs[f"keys_{layer}"] = (prompts, shape.heads, head, memory), {0: "p", 3: "m"}
        inputs[f"values_{layer}"] = (prompts, shape.heads, memory, head), {0: "p", 2: "m"}
        for part in ("past_keys", "past_values"):
            inputs[f"{part}_{layer}"] = (rows, shape.heads, before, head), {0: "b", 2: "t"}
            outputs[f"new_{part}_{layer}"] = {0: "r", 2: "t1"}
    numbers = ("words", "place", "parents", "cells", "spread", "tokens")
    export_module(
        Step(writer),
        tuple(torch.zeros(size, dtype=torch.long if name in numbers else None) for name, (size, _) in inputs.items()),
        out / "step.onnx",
        inputs={name: axes for name, (_, axes) in inputs.items()},
        outputs=outputs,
    )
