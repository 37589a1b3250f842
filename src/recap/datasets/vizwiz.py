"""VizWiz-Captions: pictures taken by people who are blind, many of them out of focus or of nothing.

Annotators could not always tell what is seen: they chose a ready-made caption that says so (``is_precanned``), and spam
was marked (``is_rejected``). Both are left out, and so are all captions of pictures that most annotators found too
poor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recap.datasets.records import parse_json, read_text, require, require_split
from recap.errors import InputError
from recap.files import write_json
from recap.types import Pair

_DATA = "VizWiz-Captions"
_SPLITS = {"train": "train", "dev": "val", "test": "test"}


def read_vizwiz(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``annotations/{train,val,test}.json`` with the pictures in ``train/``, ``val/`` and ``test/``.

    The captions of the test split are with the evaluation server only: its pairs have none. Pictures of the other
    splits without a usable caption are left out. An id is the number in the file.
    """
    require_split(split, _DATA)
    folder, name = Path(folder), _SPLITS[split]
    path = require(folder / "annotations" / f"{name}.json", _DATA)
    content = parse_json(read_text(path), str(path))
    try:
        pictures = {image["id"]: folder / name / image["file_name"] for image in content["images"]}
        captions = _usable(content.get("annotations", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not an annotation file of {_DATA} ({type(error).__name__}: {error})") from error
    return [
        Pair(picture, tuple(captions.get(number, ())), str(number))
        for number, picture in pictures.items()
        if split == "test" or captions.get(number)
    ]


def write_vizwiz_submission(path: str | Path, captions: Mapping[str, str], folder: str | Path) -> None:
    """Write the file the evaluation server reads: one caption for every picture of the test split."""
    wanted = [pair.id for pair in read_vizwiz(folder, "test")]
    missing = [name for name in wanted if not captions.get(name, "").strip()]
    if missing:
        raise InputError(
            f"the server wants a caption for all {len(wanted):,} pictures of the test split; "
            f"{len(missing):,} have none, such as {', '.join(missing[:3])}"
        )
    write_json(path, [{"image_id": int(name), "caption": captions[name]} for name in wanted])


def _usable(annotations: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Return the captions of each picture, filtered."""
    given: dict[int, list[dict[str, Any]]] = {}
    for annotation in annotations:
        given.setdefault(annotation["image_id"], []).append(annotation)
    usable: dict[int, list[str]] = {}
    for image, group in given.items():
        too_poor = sum(bool(item.get("is_precanned")) for item in group)
        if 2 * too_poor > len(group):
            continue
        kept = [item["caption"] for item in group if not (item.get("is_precanned") or item.get("is_rejected"))]
        usable[image] = [text for caption in kept if (text := " ".join(caption.split()))]
    return usable
