"""Flickr8k: its token file and its lists of picture names."""

from __future__ import annotations

from pathlib import Path

from recap.datasets.text import read_lines
from recap.errors import InputError
from recap.types import Pair


def read_flickr8k(folder: str | Path, split: str) -> list[Pair]:
    """Return the pairs of one split (``train``, ``dev``, ``test``) in the order of its list.

    ``folder`` holds ``images/``, ``captions.token.txt`` (``IMAGE#N<tab>caption``) and one list of names a split.
    """
    folder = Path(folder)
    for path in (folder / "captions.token.txt", folder / f"{split}.txt"):
        if not path.is_file():
            raise InputError(f"{path} is missing: it belongs to Flickr8k")
    captions: dict[str, list[str]] = {name: [] for name in (folder / f"{split}.txt").read_text().split()}
    for caption_id, caption in read_flickr8k_captions(folder / "captions.token.txt").items():
        name = caption_id.rpartition("#")[0]
        if name in captions and caption:
            captions[name].append(caption)
    return [Pair(folder / "images" / name, tuple(texts), name) for name, texts in captions.items() if texts]


def read_flickr8k_captions(path: Path) -> dict[str, str]:
    """Return the captions of Flickr8k by their id, ``IMAGE#N``."""
    found: dict[str, str] = {}
    for number, line in read_lines(path):
        caption_id, _, text = line.partition("\t")
        if not text:
            raise InputError(f"{path}:{number}: expected IMAGE#N<tab>caption")
        found[caption_id] = " ".join(text.split())
    return found
