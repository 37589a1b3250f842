"""The trained writer as two small ONNX files: one reads a prompt, the other takes one step of all its sentences.

Beside them lie its vocabulary, and the phrases people write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from onnx_files import export_module
from torch import Tensor, nn

import recap
from recap.encoders import load_encoder
from recap.language.words import Phrases, often_written
from recap.language.writer import BEGIN, END
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
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of memory (layers, 2, heads, entries, width of a head), and keys for copying."""
        writer = self.writer
        captions = (tokens[None], shares[None], places[None], ranks[None])
        memory = writer.remember(*captions, vector[None], known[None], details[None], seen[None], None)
        stored = [torch.cat(layer.memory.keys_values(memory)) for layer in writer.decoder]
        return torch.stack(stored), writer.copy_key(memory[0, writer.shape.front :])


class Step(nn.Module):
    """One more word for every sentence of a prompt."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def forward(
        self, words: Tensor, place: Tensor, past: Tensor, stored: Tensor, copy_keys: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the probability of every word for each sentence, and the past (layers, 2, sentences, ...) with it."""
        writer = self.writer
        x = writer.embed(words[None], place)
        grown = []
        for number, layer in enumerate(writer.decoder):
            memory = (stored[number, 0][None], stored[number, 1][None])
            x, both = layer.step(x, memory, None, (past[number, 0], past[number, 1]))
            grown.append(torch.stack(both))
        p = writer.probabilities(writer.last_norm(x)[0], copy_keys, tokens[None])
        return p, torch.stack(grown)


def export(folder: Path, name: str) -> None:
    """Write the averaged weights of a run into the package, with its vocabulary."""
    saved = torch.load(folder / f"{name}.pt", weights_only=True)
    writer = Writer(Shape(**saved["shape"])).eval()
    writer.load_state_dict(saved["average"])
    corpus = Corpus(folder)
    out = Path(recap.__file__).parent / "data" / "writer"
    out.mkdir(parents=True, exist_ok=True)
    write_onnx(writer, out)
    encoder = load_encoder("builtin")
    write_config(writer, corpus.words[: corpus.vocabulary], encoder.text.fingerprint, encoder.sight, out)
    write_phrases((corpus[number] for number in range(len(corpus))), corpus.vocabulary, out)
    for file in sorted(out.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def write_phrases(sentences: Iterable[Sequence[int]], vocabulary: int, out: Path) -> None:
    """Write ``phrases.bin``: what people wrote several times, as far as the vocabulary goes."""
    known = [triple for triple in often_written(sentences, BEGIN, END) if max(triple) < vocabulary]
    Phrases.of(known).save(out / "phrases.bin")
    print(f"{len(known):,} phrases")


def write_config(writer: Writer, words: list[str], text_encoder: str, sight: str, out: Path) -> None:
    """Write all that the package needs to know beside the two graphs."""
    shape = writer.shape
    sizes = {"layers": shape.layers, "heads": shape.heads, "width": shape.width, "vector": shape.vector}
    details = {"sight": sight, "details": shape.places * shape.detail}
    content = {"text_encoder": text_encoder, **details, "longest": LONGEST, **sizes, "vocabulary": words}
    (out / "config.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_onnx(writer: Writer, out: Path) -> None:
    """Write ``read.onnx`` and ``step.onnx``."""
    shape = writer.shape
    entries, sentences = 9, 3
    tokens, places, ranks = (torch.zeros(entries, dtype=torch.long) for _ in range(3))
    one = torch.tensor(1.0)
    picture = (torch.zeros(shape.vector), one, torch.zeros(shape.places * shape.detail), one)
    reading = (tokens, torch.ones(entries), places, ranks, *picture)
    stored, copy_keys = Read(writer)(*reading)
    past = torch.zeros(shape.layers, 2, sentences, shape.heads, 2, shape.width // shape.heads)
    words = torch.ones(sentences, dtype=torch.long)
    export_module(
        Read(writer),
        reading,
        out / "read.onnx",
        inputs={
            "tokens": {0: "n"},
            "shares": {0: "n"},
            "places": {0: "n"},
            "ranks": {0: "n"},
            "vector": {},
            "known": {},
            "details": {},
            "seen": {},
        },
        outputs={"stored": {3: "m"}, "copy_keys": {0: "n"}},
    )
    export_module(
        Step(writer),
        (words, torch.tensor(2), past, stored, copy_keys, tokens),
        out / "step.onnx",
        inputs={
            "words": {0: "s"},
            "place": {},
            "past": {2: "s", 4: "t"},
            "stored": {3: "m"},
            "copy_keys": {0: "n"},
            "tokens": {0: "n"},
        },
        outputs={"probabilities": {0: "s"}, "grown": {2: "s", 4: "t1"}},
    )
