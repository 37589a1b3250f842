"""Fit the map of the built-in pack, and write it into the package.

    python tools/fit_builtin.py --coco-vectors DIR --flickr8k DIR

``--coco-vectors`` holds ``ids.npy`` (COCO image ids), ``test_ids.npy`` (those of Karpathy's test split, left out) and
``tinyvit.npy``, the vectors of the pictures. ``--flickr8k`` holds ``images/``, ``captions.token.txt`` and
``train.txt``. Captions of COCO come from the asset ``coco-captions-train``. Only statistics and the map are written: no
caption and no picture.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import recap
from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir, fetch
from recap.datasets import read_flickr8k
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
    ids = np.load(folder / "ids.npy").astype(np.int64)
    vectors = np.load(folder / "tinyvit.npy", mmap_mode="r")
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    tested = set(np.load(folder / "test_ids.npy").tolist())
    rows = [row for row, image in enumerate(ids) if image in captions and image not in tested]
    statistics = empty_statistics(encoder)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        texts = [text for row in block for text in captions[ids[row]]]
        counts = [len(captions[ids[row]]) for row in block]
        statistics.update(vectors[block].astype(np.float32), encoder.encode_texts(texts, progress=True), counts=counts)
        print(f"{start + len(block):,} of {len(rows):,} pictures")
    return statistics


if __name__ == "__main__":
    main()
