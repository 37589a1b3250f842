"""The trained writer as two small ONNX files: one reads a prompt, the other takes one step of all its sentences.

Matrices are stored as int8 with a scale for each row or column and become float32 again when a session loads them: the
files are a quarter of the size, and what a prompt gives does not depend on what else is computed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import recap
from recap.encoders import load_encoder
from writer.batches import Corpus
from writer.model import LONGEST, Shape, Writer

SMALLEST = 4096
"""Tensors with fewer values stay as they are."""


class Read(nn.Module):
    """From what is read to all that the steps need."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def forward(
        self, tokens: Tensor, shares: Tensor, places: Tensor, ranks: Tensor, vector: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of memory (layers, 2, heads, entries, width of a head), and keys for copying."""
        writer = self.writer
        memory = writer.remember(tokens[None], shares[None], places[None], ranks[None], vector[None], known[None], None)
        stored = [torch.cat(layer.memory.keys_values(memory)) for layer in writer.decoder]
        return torch.stack(stored), writer.copy_key(memory[0, writer.shape.vector_tokens :])


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
    write_config(writer, corpus.words[: corpus.vocabulary], load_encoder("builtin").text.fingerprint, out)
    for file in sorted(out.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def write_config(writer: Writer, words: list[str], text_encoder: str, out: Path) -> None:
    """Write all that the package needs to know beside the two graphs."""
    shape = writer.shape
    sizes = {"layers": shape.layers, "heads": shape.heads, "width": shape.width, "vector": shape.vector}
    content = {"text_encoder": text_encoder, "longest": LONGEST, **sizes, "vocabulary": words}
    (out / "config.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_onnx(writer: Writer, out: Path) -> None:
    """Write ``read.onnx`` and ``step.onnx``."""
    shape = writer.shape
    entries, sentences = 9, 3
    tokens, places, ranks = (torch.zeros(entries, dtype=torch.long) for _ in range(3))
    reading = (tokens, torch.ones(entries), places, ranks, torch.zeros(shape.vector), torch.tensor(1.0))
    stored, copy_keys = Read(writer)(*reading)
    past = torch.zeros(shape.layers, 2, sentences, shape.heads, 2, shape.width // shape.heads)
    words = torch.ones(sentences, dtype=torch.long)
    _export(
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
        },
        outputs={"stored": {3: "m"}, "copy_keys": {0: "n"}},
    )
    _export(
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


def _export(
    module: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
) -> None:
    torch.onnx.export(
        module.eval(),
        example,
        str(path),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**inputs, **outputs},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(str(path))
    shrink(model)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def shrink(model: onnx.ModelProto) -> None:
    """Store large matrices as int8; a cast and a product, both computed when the session loads, bring them back."""
    graph = model.graph
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < SMALLEST or values.ndim < 2:
            continue
        small, scale = _as_int8(values)
        names = [f"{tensor.name}_{part}" for part in ("int8", "scale", "float")]
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(small, names[0]))
        graph.initializer.append(numpy_helper.from_array(scale, names[1]))
        graph.node.insert(0, helper.make_node("Mul", [names[2], names[1]], [tensor.name]))
        graph.node.insert(0, helper.make_node("Cast", [names[0]], [names[2]], to=TensorProto.FLOAT))


def _as_int8(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return values as int8 and their scales, along the axis that loses least."""
    best: tuple[float, npt.NDArray[np.int8], npt.NDArray[np.float32]] | None = None
    for axis in range(values.ndim):
        others = tuple(other for other in range(values.ndim) if other != axis)
        scale = np.maximum(np.abs(values).max(axis=others, keepdims=True), 1e-12) / 127
        small = np.round(values / scale).astype(np.int8)
        lost = float(np.square(small * scale - values).sum())
        if best is None or lost < best[0]:
            best = lost, small, scale.astype(np.float32)
    assert best is not None
    return best[1], best[2]
