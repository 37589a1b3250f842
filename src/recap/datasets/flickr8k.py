"""Flickr8k: its token file and its lists of picture names."""

from __future__ import annotations

from pathlib import Path

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
    for line in (folder / "captions.token.txt").read_text(encoding="utf-8").split("\n"):
        key, _, caption = line.partition("\t")
        name = key.rpartition("#")[0]
        if name in captions and caption.strip():
            captions[name].append(" ".join(caption.split()))
    return [Pair(folder / "images" / name, tuple(texts), name) for name, texts in captions.items() if texts]
