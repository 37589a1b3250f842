"""Texts a CPU second: MiniLM in 8 bits, in batches and alone, against its float32 weights on onnxruntime; and the eyes.

    OMP_NUM_THREADS=1 python benchmarks/texts.py CAPTIONS [--texts 1000]

CAPTIONS is a file with one caption a line (of ``captions.token.txt`` of Flickr8k, what stands behind the tab). Runs
take turns, the best of each counts. Cosines are with the float32 model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import load_file

from recap.assets import fetch
from recap.encoders import load_encoder
from recap.encoders.base import TextEncoder
from recap.encoders.builtin import MINILM_LAYERS, MINILM_WINDOW, TEXT_BATCH
from recap.encoders.minilm import build
from recap.encoders.onnx import OnnxTextEncoder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = options.captions.read_text(encoding="utf-8").splitlines()[: options.texts]
    texts = [line.rpartition("\t")[2] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        onnx.save(build(load_file(fetch("minilm")), MINILM_LAYERS), path)
        ours = load_encoder("tinyvit,minilm").text
        ways: dict[str, tuple[TextEncoder, int]] = {
            "float32, alone": (_float(path, 1), 1),
            f"float32, batches of {TEXT_BATCH}": (_float(path, TEXT_BATCH), len(texts)),
            "minilm, alone": (ours, 1),
            f"minilm, batches of {TEXT_BATCH}": (ours, len(texts)),
            f"eyes, batches of {TEXT_BATCH}": (load_encoder("builtin").text, len(texts)),
        }
        best = dict.fromkeys(ways, np.inf)
        for _ in range(options.rounds):
            for name, (encoder, size) in ways.items():
                best[name] = min(best[name], _seconds(encoder, texts, size))
        cosines = np.sum(ours.encode_texts(texts) * ways["float32, alone"][0].encode_texts(texts), axis=1)
    for name, seconds in best.items():
        print(f"{name:<28}{1000 * seconds / len(texts):8.2f} CPU ms a text")
    print(f"cosine of minilm with float32: mean {cosines.mean():.5f}, least {cosines.min():.5f}")


def _float(path: Path, batch_size: int) -> OnnxTextEncoder:
    return OnnxTextEncoder(
        path, fetch("minilm-tokenizer"), name="float32", max_length=MINILM_WINDOW, batch_size=batch_size
    )


def _seconds(encoder: TextEncoder, texts: Sequence[str], size: int) -> float:
    start = time.process_time()
    for first in range(0, len(texts), size):
        encoder.encode_texts(texts[first : first + size])
    return time.process_time() - start


if __name__ == "__main__":
    main()
