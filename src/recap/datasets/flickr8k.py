"""Flickr8k: its token file and its lists of picture names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recap.datasets.records import read_lines, read_text, require, require_split
from recap.errors import InputError
from recap.types import Pair

TOKEN_FILES = ("Flickr8k.token.txt", "captions.token.txt")
PICTURES = ("images", "Flicker8k_Dataset", "Flickr8k_Dataset")
"""Where the pictures may lie; the archive spells its folder in the second way."""

_DATA = "Flickr8k"


def read_flickr8k(folder: str | Path, split: str) -> list[Pair]:
    """Return the pairs of one split (``train``, ``dev``, ``test``) in the order of its list.

    ``folder`` holds what was published: ``Flicker8k_Dataset/``, ``Flickr8k.token.txt`` (``IMAGE#N<tab>caption``) and a
    list of names for each split, ``Flickr_8k.trainImages.txt``; or the same as ``images/``, ``captions.token.txt`` and
    ``train.txt``.
    """
    require_split(split, _DATA)
    folder = Path(folder)
    tokens = _first(folder, TOKEN_FILES)
    names = _first(folder, (f"Flickr_8k.{split}Images.txt", f"{split}.txt"))
    captions: dict[str, list[str]] = {name: [] for name in read_text(names).split()}
    for caption_id, caption in read_flickr8k_captions(tokens).items():
        name = caption_id.rpartition("#")[0]
        if name in captions and caption:
            captions[name].append(caption)
    pictures = next((folder / name for name in PICTURES if (folder / name).is_dir()), folder / PICTURES[0])
    return [Pair(pictures / name, tuple(texts), name) for name, texts in captions.items() if texts]


def read_flickr8k_captions(path: Path) -> dict[str, str]:
    """Return the captions of Flickr8k by their id, ``IMAGE#N``."""
    found: dict[str, str] = {}
    for number, line in read_lines(path):
        caption_id, _, text = line.partition("\t")
        if not text:
            raise InputError(f"{path}:{number}: expected IMAGE#N<tab>caption")
        found[caption_id] = " ".join(text.split())
    return found


def _first(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of some files that is there; the message about a missing one has the published name."""
    there = (folder / name for name in names if (folder / name).is_file())
    return next(there, None) or require(folder / names[0], _DATA)
