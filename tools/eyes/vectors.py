"""What the trained eyes say of every picture and sentence of the work folder, in float16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from eyes.data import Pictures, Texts
from eyes.export import DETAIL_WIDTH, Picture
from eyes.model import GRID, SPACE, Eyes
from eyes.training import embed_texts

BLOCK = 2048


@torch.no_grad()
def write(model: Eyes, picture: Picture, folder: Path, count: int) -> None:
    """Write a row for each record and sentence, zeros where there is none.

    ``vectors.npy`` and ``details.npy`` are those of pictures, ``text_vectors.npy`` those of sentences.
    """
    model.eval()
    texts, pictures = Texts(folder), Pictures(folder / "maps")
    width = SPACE + GRID * GRID * DETAIL_WIDTH
    rows = np.zeros((count, SPACE), np.float16)
    details = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        folder / "details.npy", "w+", np.float16, (count, width - SPACE)
    )
    there = pictures.there()
    for start in range(0, len(there), BLOCK):
        block = there[start : start + BLOCK]
        seen = torch.cat(
            [picture(pictures.maps(block[first : first + 256])) for first in range(0, len(block), 256)]
        ).numpy()
        rows[block], details[block] = seen[:, :SPACE], seen[:, SPACE:]
        print(f"{start + len(block):,} of {len(there):,} pictures", flush=True)
    details.flush()
    np.save(folder / "vectors.npy", rows)
    said = np.zeros((len(texts.sentences), SPACE), np.float16)
    done = np.flatnonzero(texts.done)
    for start in range(0, len(done), BLOCK):
        block = done[start : start + BLOCK]
        said[block] = embed_texts(model, texts, block.tolist()).numpy()
    np.save(folder / "text_vectors.npy", said)
    print(f"{len(done):,} sentences", flush=True)


def load_model(folder: Path, name: str, tinyvit: Path, minilm: Path) -> Eyes:
    """Return the averaged weights of a run."""
    model = Eyes(tinyvit, minilm)
    model.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True)["average"])
    return model.eval()
