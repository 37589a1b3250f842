"""What the trained eyes say of every picture and sentence of the work folder, in float16."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from eyes.data import Pictures, Texts, open_records
from eyes.export import DETAIL_WIDTH, Picture
from eyes.model import GRID, SPACE, Eyes
from eyes.training import embed_texts

BLOCK = 2048
CAPTIONS = 2
"""Captions of each picture whose vectors are written."""


@torch.no_grad()
def write(model: Eyes, picture: Picture, folder: Path, stored: Iterable[str] = (), *, bfloat16: bool = False) -> None:
    """Write a row for each record, and for sentences about those that have a map; zeros for all others.

    ``vectors.npy`` and ``details.npy`` are those of pictures, ``text_vectors.npy`` those of sentences. ``stored`` are
    captions that will be retrieved, whose vectors are needed whatever picture they are about.
    """
    model.eval()
    texts, pictures, records = Texts(folder), Pictures(folder / "maps"), open_records(folder)
    count = len(records)
    width = SPACE + GRID * GRID * DETAIL_WIDTH
    rows = np.zeros((count, SPACE), np.float16)
    details = np.lib.format.open_memmap(folder / "details.npy", "w+", np.float16, (count, width - SPACE))
    there = pictures.there()
    for start in range(0, len(there), BLOCK):
        block = there[start : start + BLOCK]
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            parts = [picture(pictures.maps(block[first : first + 256])).float() for first in range(0, len(block), 256)]
        seen = torch.cat(parts).numpy()
        rows[block], details[block] = seen[:, :SPACE], seen[:, SPACE:]
        print(f"{start + len(block):,} of {len(there):,} pictures", flush=True)
    details.flush()
    np.save(folder / "vectors.npy", rows)
    said = np.zeros((len(texts.sentences), SPACE), np.float16)
    wanted = {texts.number[text] for row in there.tolist() for text in records[row].captions[:CAPTIONS]}
    wanted |= {texts.number[text] for text in stored if text in texts.number}
    done = np.array(sorted(number for number in wanted if texts.done[number]), np.int64)
    for start in range(0, len(done), BLOCK):
        block = done[start : start + BLOCK]
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            said[block] = embed_texts(model, texts, block.tolist()).float().numpy()
    np.save(folder / "text_vectors.npy", said)
    flags = np.zeros(len(said), bool)
    flags[done] = True
    np.save(folder / "text_vectors_flag.npy", flags)
    print(f"{len(done):,} sentences", flush=True)


def load_model(folder: Path, name: str, tinyvit: Path, minilm: Path) -> Eyes:
    """Return the averaged weights of a run."""
    model = Eyes(tinyvit, minilm)
    model.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True)["average"])
    return model.eval()
