"""Fit the map of the built-in pack, and write it into the package.

    python tools/fit_builtin.py --coco-vectors DIR --flickr8k DIR

``--coco-vectors`` holds ``ids.npy`` (COCO image ids) and ``tinyvit.npy``, the vectors of the pictures; those of
train2014 are used. ``--flickr8k`` holds ``images/``, ``captions.token.txt`` and
``train.txt``. Captions of COCO come from the asset ``coco-captions-train``. Only statistics and the map are written: no
caption and no picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import recap
from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir
from recap.datasets import read_flickr8k
from recap.datasets.coco import coco_train_captions
from recap.datasets.vectors import PictureVectors
from recap.encoders import Encoder, load_encoder
from recap.fitting import empty_statistics, encode_pairs

BLOCK = 4096


def main() -> None:
    """Fit one pack and write its two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coco-vectors", type=Path, required=True)
    parser.add_argument("--flickr8k", type=Path, required=True)
    parser.add_argument("--method", default="procrustes")
    parser.add_argument("--out", type=Path, default=Path(recap.__file__).parent / "data")
    arguments = parser.parse_args()
    encoder = load_encoder("builtin", cache=cache_dir() / "vectors.sqlite")
    statistics = encode_pairs(read_flickr8k(arguments.flickr8k, "train"), encoder, progress=True).statistics
    print(f"Flickr8k: {statistics.pairs:,.0f} pairs")
    coco = coco_statistics(arguments.coco_vectors, encoder)
    print(f"COCO: {coco.pairs:,.0f} pairs")
    statistics.merge(coco)
    folder = arguments.out / pack.BUILTIN
    folder.mkdir(parents=True, exist_ok=True)
    # the map is solved from what is written, so that the two files agree to the last bit
    statistics.save(folder / pack.STATISTICS, dtype=np.float32)
    alignment = LinearAlignment.from_statistics(PairStatistics.load(folder / pack.STATISTICS), arguments.method)
    alignment.save(folder / pack.ALIGNMENT)
    for file in sorted(folder.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def coco_statistics(folder: Path, encoder: Encoder) -> PairStatistics:
    """Return the statistics of the COCO train2014 pictures that have a vector."""
    known, captions = PictureVectors.read(folder, encoder.image), coco_train_captions()
    # Karpathy's test pictures are all of val2014, so that train2014 has none of them
    ids = [image for image in known.ids if int(image) in captions]
    statistics = empty_statistics(encoder)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        texts = [text for image in block for text in captions[int(image)]]
        counts = [len(captions[int(image)]) for image in block]
        statistics.update(known.take(block), encoder.encode_texts(texts, progress=True), counts=counts)
        print(f"{start + len(block):,} of {len(ids):,} pictures")
    return statistics


if __name__ == "__main__":
    main()
