"""What the maps find with few pairs: recall on Flickr8k test of maps fitted on the first pictures of train.

    python benchmarks/few_pairs.py FLICKR8K [--encoder builtin] [--pictures 30,100,300,1000,3000,6000]

FLICKR8K is the folder of ``recap.datasets.read_flickr8k``. Vectors are taken from the cache that the commands keep.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from recap.alignment import LinearAlignment
from recap.assets import vector_file
from recap.datasets import read_flickr8k
from recap.encoders import Encoder, load_encoder
from recap.errors import RecapWarning
from recap.types import Pair, Vectors

Encoded: TypeAlias = tuple[Vectors, Vectors, npt.NDArray[np.intp]]

METHODS = ("identity", "procrustes", "ridge", "whitened")


def main() -> None:
    """Print a table in markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--pictures", default="30,100,300,1000,3000,6000")
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.encoder, cache=vector_file())
    train, test = (encode(encoder, read_flickr8k(arguments.folder, split)) for split in ("train", "test"))
    print("| pictures | " + " | ".join(METHODS) + " |\n|---" + "|---" * len(METHODS) + "|")
    for count in map(int, arguments.pictures.split(",")):
        cells = [recall(fit(method, train, count), test) for method in METHODS]
        print(f"| {count:,} | " + " | ".join(f"{there:.1f}, {back:.1f}" for there, back in cells) + " |", flush=True)


def encode(encoder: Encoder, pairs: Sequence[Pair]) -> Encoded:
    """Return vectors of pictures, of their captions, and the picture of each caption."""
    images = encoder.encode_images([pair.image for pair in pairs])
    texts = encoder.encode_texts([text for pair in pairs for text in pair.captions])
    return images, texts, np.repeat(np.arange(len(pairs)), [len(pair.captions) for pair in pairs])


def fit(method: str, train: Encoded, count: int) -> LinearAlignment:
    """Return a map of the first ``count`` pictures and their captions."""
    images, texts, owners = train
    kept = owners < count
    with warnings.catch_warnings(action="ignore", category=RecapWarning):
        return LinearAlignment(method).fit(images[:count], texts[kept], groups=owners[kept])


def recall(alignment: LinearAlignment, test: Encoded) -> tuple[float, float]:
    """Return how often the nearest caption is the picture's own, and the nearest picture the caption's, in percent."""
    images, texts, owners = test
    similarity = alignment.transform(images) @ alignment.transform_texts(texts).T
    there = owners[similarity.argmax(1)] == np.arange(len(images))
    return 100 * float(there.mean()), 100 * float((similarity.argmax(0) == owners).mean())


if __name__ == "__main__":
    main()
