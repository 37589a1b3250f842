"""Fit the map of the built-in pack, and write it into the package.

    python tools/fit_builtin.py --work DIR --tested FILE [--pack builtin-fast]

DIR is the folder that ``tools/train_eyes.py`` worked in, with the vectors of its last step; FILE holds the numbers of
COCO's test pictures (``.npy``), which are left out. Only statistics and the map are written: no caption and no picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from eyes import data

import recap
from recap.alignment import LinearAlignment, PairStatistics
from recap.encoders import load_encoder
from recap.fitting.fit import empty_statistics
from recap.packs import folder as pack
from recap.types import unit_rows

BLOCK = 4096
NAMED_CAPTIONS = 1
"""Of pictures that have a name, the wordings of it are no captions of people: only so many count."""


def main() -> None:
    """Fit one pack and write its two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tested", type=Path, required=True)
    # the towers were trained to share a space: rotating it by pictures they have seen makes it worse for others
    parser.add_argument("--pack", choices=(pack.BUILTIN, pack.FAST), default=pack.BUILTIN)
    parser.add_argument("--method", default="identity")
    parser.add_argument("--out", type=Path, default=Path(recap.__file__).parent / "data")
    arguments = parser.parse_args()
    statistics = world_statistics(arguments.work, {int(number) for number in np.load(arguments.tested)}, arguments.pack)
    print(f"{statistics.pairs:,.0f} pairs")
    folder = arguments.out / arguments.pack
    folder.mkdir(parents=True, exist_ok=True)
    # the map is solved from what is written, so that the two files agree to the last bit
    statistics.save(folder / pack.STATISTICS, dtype=np.float32)
    alignment = LinearAlignment.from_statistics(PairStatistics.load(folder / pack.STATISTICS), arguments.method)
    alignment.save(folder / pack.ALIGNMENT)
    for file in sorted(folder.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


def world_statistics(work: Path, tested: set[int], name: str) -> PairStatistics:
    """Return the statistics of the pictures the eyes learned from."""
    records, texts = data.open_records(work), data.Texts(work)
    split = data.split(records, data.Pictures(work / "maps").there(), tested)
    pictures = np.load(work / ("vectors.npy" if name == pack.FAST else "large_vectors.npy"), mmap_mode="r")
    sentences = np.load(work / "text_vectors.npy", mmap_mode="r")
    done = np.load(work / "text_vectors_flag.npy")
    statistics = empty_statistics(load_encoder(name))
    for start in range(0, len(split.train), BLOCK):
        rows, numbers, counts = [], [], []
        for row in split.train[start : start + BLOCK].tolist():
            record = records[row]
            captions = record.captions if record.source in data.CAPTIONED else record.captions[:NAMED_CAPTIONS]
            known = [number for text in captions if done[number := texts.number[text]]]
            if known:
                rows.append(row)
                numbers += known
                counts.append(len(known))
        statistics.update(unit_rows(pictures[rows]), unit_rows(sentences[numbers]), counts=counts)
    return statistics


if __name__ == "__main__":
    main()
