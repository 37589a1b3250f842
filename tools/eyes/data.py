"""Pictures and captions as training reads them: maps of pictures in shards, tokens of captions in one flat file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eyes.maps import SHARD
from eyes.sources import DESCRIBED, Record, load

Rows = npt.NDArray[np.int64]

CAPTIONED = ("coco", "conceptual", "travels", DESCRIBED)
"""Sets whose pictures have captions; the others have names."""
HELD_OUT_COCO = 2000
"""So many pictures of COCO outside Karpathy's test are kept for choosing."""
HELD_OUT_SHARE = 0.04
"""Of the other sets this share is kept."""


@dataclass(frozen=True)
class Texts:
    """What MiniLM's fifth layer says of each word of each sentence."""

    folder: Path

    @cached_property
    def sentences(self) -> list[str]:
        """All sentences, each once."""
        sentences: list[str] = json.loads((self.folder / "texts.json").read_text(encoding="utf-8"))
        return sentences

    @cached_property
    def number(self) -> dict[str, int]:
        """The place of each sentence."""
        return {text: place for place, text in enumerate(self.sentences)}

    @cached_property
    def done(self) -> npt.NDArray[np.bool_]:
        """Which sentences have their tokens yet."""
        done: npt.NDArray[np.bool_] = np.load(self.folder / "text_flag.npy")
        return done

    @cached_property
    def lengths(self) -> Rows:
        """How many tokens each sentence has."""
        return np.diff(self._ends)

    @cached_property
    def _ends(self) -> Rows:
        return np.asarray(np.load(self.folder / "text_offsets.npy"), np.int64)

    @cached_property
    def _tokens(self) -> npt.NDArray[np.float16]:
        tokens: npt.NDArray[np.float16] = np.load(self.folder / "text_tokens.npy", mmap_mode="r")
        return tokens

    def batch(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return tokens, filled up to the longest sentence, and a mask of which are real."""
        spans = [(self._ends[number], self._ends[number + 1]) for number in numbers]
        longest = max(end - start for start, end in spans)
        tokens = np.zeros((len(spans), longest, self._tokens.shape[1]), np.float32)
        mask = np.zeros((len(spans), longest), np.float32)
        for row, (start, end) in enumerate(spans):
            tokens[row, : end - start] = self._tokens[start:end]
            mask[row, : end - start] = 1
        return torch.from_numpy(tokens), torch.from_numpy(mask)


class Pictures:
    """The maps that ``maps.extract`` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[int, npt.NDArray[np.float16]] = {}

    def there(self) -> Rows:
        """Return the numbers of the records that have a map."""
        rows = []
        for path in sorted(self.folder.glob("?????.npy")):
            good = np.load(path.with_suffix(".good.npy"))
            rows.append(int(path.stem) * SHARD + np.flatnonzero(good))
        return np.concatenate(rows)

    def maps(self, rows: Rows) -> Tensor:
        """Return the maps of records."""
        return torch.from_numpy(np.stack([self._shard(row // SHARD)[row % SHARD] for row in rows.tolist()])).float()

    def _shard(self, number: int) -> npt.NDArray[np.float16]:
        if number not in self._open:
            self._open[number] = np.load(self.folder / f"{number:05}.npy", mmap_mode="r")
        return self._open[number]


@dataclass(frozen=True)
class Split:
    """Which records are trained on, which choose, and which are never looked at."""

    records: list[Record]
    train: Rows
    dev: dict[str, Rows]
    test: Rows


def split(records: list[Record], there: Rows, tested: set[int]) -> Split:
    """Keep Karpathy's test apart, and a part of every set for choosing."""
    train: list[int] = []
    test: list[int] = []
    dev: dict[str, list[int]] = {"coco": [], "world": []}
    for row in there.tolist():
        record = records[row]
        draw = zlib.crc32(f"{record.source} {record.id}".encode()) / 2**32
        if record.source == "coco":
            if int(record.id) in tested:
                test.append(row)
            elif draw < HELD_OUT_COCO / 113_000:
                dev["coco"].append(row)
            else:
                train.append(row)
        elif draw < HELD_OUT_SHARE:
            dev["world"].append(row)
        else:
            train.append(row)
    kept = {name: np.array(rows, np.int64) for name, rows in dev.items()}
    return Split(records, np.array(train, np.int64), kept, np.array(test, np.int64))


def meaning_of(record: Record) -> str:
    """Return what two pictures share when the captions of one are no mistake for the other."""
    return record.id if record.source in CAPTIONED else f"{record.source}: {record.captions[0]}"


def open_records(folder: Path) -> list[Record]:
    """Return the records of the work folder."""
    return load(folder / "records.jsonl")
