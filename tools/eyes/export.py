"""The trained towers as two ONNX files inside the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from onnx_files import export_module
from torch import Tensor, nn

import recap
from eyes.data import Pictures, Rows
from eyes.maps import SHAPE
from eyes.model import TEXT_WIDTH, Eyes

DETAIL_WIDTH = 128
FOLDER = Path(recap.__file__).parent / "data" / "eyes"


class Picture(nn.Module):
    """From a map to a row: the vector, and behind it the tokens it was pooled from, in their main directions."""

    def __init__(self, model: Eyes, mean: Tensor, directions: Tensor) -> None:
        super().__init__()
        self.tower, self.mean, self.directions = model.image, mean, directions

    def forward(self, maps: Tensor) -> Tensor:
        """Return rows."""
        tokens = self.tower.stage(maps)
        return torch.cat([self.tower.pool(tokens), self.details(tokens)], -1)

    def details(self, tokens: Tensor) -> Tensor:
        """Return tokens along the directions, one place after the other."""
        return ((tokens - self.mean) @ self.directions).flatten(1)


@torch.no_grad()
def main_directions(model: Eyes, pictures: Pictures, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean token and the directions in which tokens vary most, scaled to unit variance."""
    tokens = [
        model.image.stage(pictures.maps(rows[start : start + 256])).flatten(0, 1) for start in range(0, len(rows), 256)
    ]
    return directions_of(torch.cat(tokens))


def directions_of(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of tokens and the directions in which they vary most, scaled to unit variance."""
    mean = tokens.mean(0)
    variances, vectors = torch.linalg.eigh(torch.cov(tokens.T))
    kept = vectors[:, -DETAIL_WIDTH:].flip(-1) / variances[-DETAIL_WIDTH:].flip(-1).sqrt()
    share = variances[-DETAIL_WIDTH:].sum() / variances.sum()
    print(f"{DETAIL_WIDTH} directions hold {share:.2f} of the variance")
    return mean, kept.contiguous()


def as_exported(model: Eyes, folder: Path) -> Picture:
    """Return what ``image.onnx`` computes; the directions are those of some pictures of the work folder, kept there."""
    path = folder / "directions.pt"
    if not path.exists():
        pictures = Pictures(folder / "maps")
        rows = np.random.default_rng(0).choice(pictures.there(), 2000, replace=False)
        torch.save(main_directions(model, pictures, np.sort(rows)), path)
    return Picture(model, *torch.load(path, weights_only=True)).eval()


def export(picture: Picture, model: Eyes, folder: Path = FOLDER) -> None:
    """Write ``image.onnx`` and ``text.onnx``."""
    folder.mkdir(parents=True, exist_ok=True)
    model.eval()
    with torch.no_grad():
        free = {0: "pictures"}
        maps = torch.zeros(2, *SHAPE)
        export_module(picture, (maps,), folder / "image.onnx", {"maps": free}, {"rows": free}, half=True)
        words = torch.zeros(2, 5, TEXT_WIDTH)
        axes = {"tokens": {0: "texts", 1: "words"}}
        export_module(model.text, (words,), folder / "text.onnx", axes, {"vector": {0: "texts"}})
    for file in sorted(folder.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")
