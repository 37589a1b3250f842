"""Fit the maps of the built-in packs, and write them into the package.

    python tools/fit_builtin.py builtin --coco-vectors DIR --flickr8k DIR

``--coco-vectors`` holds ``ids.npy`` (COCO image ids), ``test_ids.npy`` (those of Karpathy's test split, left out) and
one ``.npy`` for each image encoder of the pack: ``tinyvit.npy``, and ``dinov2.npy`` for ``builtin-large``. An image
whose vector is zero in one of them has not been encoded and is left out. ``--flickr8k`` holds ``images/``,
``captions.token.txt`` and ``train.txt``. Captions of COCO come from the asset ``coco-captions-train``. Only statistics
and the map are written: no caption and no picture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import recap
from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir, fetch
from recap.encoders import Encoder, load_encoder
from recap.fitting import encode_pairs
from recap.types import Pair, Vectors

BLOCK = 4096
PARTS = {"builtin": ("tinyvit",), "builtin-large": ("tinyvit", "dinov2")}


def main() -> None:
    """Fit one pack and write its two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--coco-vectors", type=Path, required=True)
    parser.add_argument("--flickr8k", type=Path, required=True)
    parser.add_argument("--method", default="procrustes")
    parser.add_argument("--out", type=Path, default=Path(recap.__file__).parent / "data")
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.name, cache=cache_dir() / "vectors.sqlite")
    statistics = encode_pairs(list(flickr8k_pairs(arguments.flickr8k)), encoder, progress=True).statistics
    print(f"Flickr8k: {statistics.pairs:,.0f} pairs")
    coco = coco_statistics(arguments.coco_vectors, PARTS[arguments.name], encoder)
    print(f"COCO: {coco.pairs:,.0f} pairs")
    statistics.merge(coco)
    folder = arguments.out / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    # the map is solved from what is written, so that the two files agree to the last bit
    statistics.save(folder / pack.STATISTICS, dtype=np.float32)
    alignment = LinearAlignment.from_statistics(PairStatistics.load(folder / pack.STATISTICS), arguments.method)
    alignment.save(folder / pack.ALIGNMENT)
    for file in sorted(folder.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def flickr8k_pairs(folder: Path, split: str = "train") -> Iterator[Pair]:
    """Yield the pairs of one split of Flickr8k."""
    names = (folder / f"{split}.txt").read_text().split()
    captions: dict[str, list[str]] = {name: [] for name in names}
    for line in (folder / "captions.token.txt").read_text(encoding="utf-8").splitlines():
        key, caption = line.split("\t")
        name = key.rpartition("#")[0]
        if name in captions and caption.strip():
            captions[name].append(" ".join(caption.split()))
    for name, texts in captions.items():
        yield Pair(folder / "images" / name, tuple(texts), name)


def coco_statistics(folder: Path, parts: tuple[str, ...], encoder: Encoder) -> PairStatistics:
    """Return the statistics of the COCO train2014 pictures that have a vector of every part."""
    ids = np.load(folder / "ids.npy").astype(np.int64)
    vectors = joined_vectors([np.load(folder / f"{part}.npy", mmap_mode="r") for part in parts])
    usable = np.linalg.norm(vectors, axis=1) > 0.99
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    tested = set(np.load(folder / "test_ids.npy").tolist())
    rows = [row for row in np.flatnonzero(usable) if ids[row] in captions and ids[row] not in tested]
    statistics = PairStatistics.zeros(
        encoder.image.dimension,
        encoder.text.dimension,
        image_encoder=encoder.image.fingerprint,
        text_encoder=encoder.text.fingerprint,
    )
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        texts = [text for row in block for text in captions[ids[row]]]
        counts = [len(captions[ids[row]]) for row in block]
        statistics.update(vectors[block], encoder.encode_texts(texts, progress=True), counts=counts)
        print(f"{start + len(block):,} of {len(rows):,} pictures")
    return statistics


def joined_vectors(parts: list[npt.NDArray[np.float16]]) -> Vectors:
    """Return unit vectors side by side, at unit length together; a row missing in one part is shorter."""
    units = []
    for part in parts:
        rows = part.astype(np.float32)
        units.append(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))
    joined: Vectors = (np.concatenate(units, axis=1) / np.sqrt(len(units))).astype(np.float32)
    return joined


if __name__ == "__main__":
    main()
