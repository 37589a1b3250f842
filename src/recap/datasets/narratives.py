"""Localized Narratives: long spoken descriptions of the pictures of COCO, Flickr30k and others."""

from __future__ import annotations

from pathlib import Path

from recap.datasets.records import Record, read_records, require
from recap.errors import InputError
from recap.types import Pair

_DATA = "Localized Narratives"


def read_narratives(path: str | Path, images: str | Path) -> list[Pair]:
    """Return pairs from a ``*_localized_narratives*.jsonl`` file, or from all of them in a folder.

    ``images`` is where the pictures lie: ``000000000042.jpg`` for COCO (2017's names), ``ID.jpg`` for the others. A
    picture that several people described has several captions. An id is the picture's, that of COCO and Flickr30k as a
    plain number.
    """
    path = require(Path(path), _DATA)
    files = sorted(path.glob("*localized_narratives*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no *localized_narratives*.jsonl in it")
    captions: dict[tuple[str, str], list[str]] = {}
    for file in files:
        for record in read_records(file):
            key, text = _narrative(record)
            captions.setdefault(key, []).append(text)
    return [Pair(Path(images) / name, tuple(texts), image) for (image, name), texts in captions.items()]


def _narrative(record: Record) -> tuple[tuple[str, str], str]:
    """Return the picture's id and file name, and what was said."""
    values = record.values
    try:
        data, image, text = str(values["dataset_id"]), str(values["image_id"]), " ".join(values["caption"].split())
    except (KeyError, AttributeError) as error:
        raise InputError(f"{record.where}: expected dataset_id, image_id and caption") from error
    if data.startswith("mscoco") and image.isdecimal():
        return (str(int(image)), f"{int(image):012d}.jpg"), text
    # the published files spell it Flick30k
    if data.lower().startswith(("flickr30k", "flick30k")) and image.isdecimal():
        image = str(int(image))  # padded with zeros here, and not in the names of the pictures
    return (image, f"{image}.jpg"), text
