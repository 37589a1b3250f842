"""TinyViT up to its third stage, once for every picture: 160 x 14 x 14 numbers each, kept in float16.

The maps lie in shards, written whole or not at all, so that several processes can work side by side and a stopped one
goes on. A second file beside each shard says which of its pictures could be read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageOps

from eyes.sources import Mirror, Record, read_blobs
from recap.encoders.preprocess import Preprocess

SHARD = 1024
SHAPE = (160, 14, 14)
TINT = ("#5a3410", "#d8b890")
"""Darkest and lightest shade of a tinted picture."""
RESIZE = "squash"
"""As the encoder in the package does: the whole picture is seen, and COCO's come squashed already."""


def extract(records: Sequence[Record], mirror: Mirror, folder: Path, stem: Path, part: int, parts: int) -> None:
    """Compute the shards of one process out of several."""
    import onnxruntime

    folder.mkdir(parents=True, exist_ok=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(stem), options, providers=["CPUExecutionProvider"])
    preprocess = Preprocess(resize=RESIZE)
    for start in range(part * SHARD, len(records), parts * SHARD):
        path = folder / f"{start // SHARD:05}.npy"
        if path.exists():
            continue
        block = records[start : start + SHARD]
        maps = np.zeros((len(block), *SHAPE), np.float16)
        good = np.zeros(len(block), bool)
        for row, content in enumerate(contents(block, mirror)):
            try:
                pixels = preprocess(repaired(content, block[row]))
            except Exception as error:  # decoders of broken files raise nearly anything
                print(f"{block[row].source} {block[row].id}: {error}", flush=True)
                continue
            maps[row] = session.run(None, {"input": pixels[None]})[0][0]
            good[row] = True
        np.save(path.with_suffix(".good.npy"), good)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        with unfinished.open("wb") as file:
            np.save(file, maps)
        unfinished.replace(path)
        print(f"{path.name}: {int(good.sum())} pictures", flush=True)


def contents(block: Sequence[Record], mirror: Mirror) -> Iterator[bytes]:
    """Yield the bytes of the pictures of a block."""
    found: dict[int, bytes] = {}
    for repository in {record.repository for record in block}:
        rows = [row for row, record in enumerate(block) if record.repository == repository]
        blobs = read_blobs(mirror.directory(repository), [block[row].blob for row in rows])
        found |= dict(zip(rows, blobs, strict=True))
    for row in range(len(block)):
        yield found.pop(row)


def repaired(content: bytes, record: Record) -> Image.Image:
    """Return a picture as it was before its set changed it."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    for fix in record.fix.split():
        picture = FIXES[fix](picture)
    return picture


def tinted(picture: Image.Image) -> Image.Image:
    """Return a picture between two shades of one colour, as old photographs and posters are."""
    return ImageOps.colorize(picture.convert("L"), *TINT).convert("RGB")


def without_border(picture: Image.Image) -> Image.Image:
    """Cut off a white border, as far as it leaves half of the picture."""
    difference = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).convert("L")
    box = difference.point(lambda value: 255 * (value > 12)).getbbox()
    if not box or (box[2] - box[0]) * (box[3] - box[1]) < picture.width * picture.height // 3:
        return picture
    return picture.crop(box)


FIXES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "letterbox": without_border,
    "swapped": lambda picture: Image.merge("RGB", picture.split()[::-1]),
    "grey": lambda picture: picture.convert("L").convert("RGB"),
    "tint": tinted,
}
