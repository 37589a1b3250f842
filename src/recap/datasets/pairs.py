"""Read (picture, captions) pairs from a folder with sidecars, jsonl, csv, or a COCO captions file.

Pictures are not opened here: a pair holds the path, and an unreadable picture is reported when it is encoded.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from recap.datasets.images import find_images
from recap.errors import InputError
from recap.types import Pair


def read_pairs(path: str | Path, *, images: str | Path | None = None) -> list[Pair]:
    """Return the pairs that ``path`` holds, several captions of a picture joined into one pair.

    Args:
        path: a folder of pictures, each with a ``.txt`` file of the same name (one caption a line);
            a ``.jsonl`` file of objects with ``image`` and ``caption`` (or a list in ``captions``);
            a ``.csv`` or ``.tsv`` file with the columns ``image`` and ``caption``;
            or a COCO captions ``.json`` file.
        images: the folder that picture names are relative to; by default the folder of the file.

    Raises:
        InputError: nothing usable is there; the message says what was looked for.
    """
    path = Path(path)
    if path.is_dir():
        records: Iterable[tuple[str, str]] = _sidecars(path)
        root = path
    elif not path.exists():
        raise InputError(f"{path}: no such file or folder")
    elif (reader := _READERS.get(path.suffix.lower())) is None:
        raise InputError(f"{path}: pairs are read from a folder, or from {', '.join(sorted(_READERS))} files")
    else:
        records = reader(path)
        root = Path(images) if images is not None else path.parent
    pairs = _grouped(records, root)
    if not pairs:
        raise InputError(f"{path}: no pair of a picture and a caption found{_hint(path)}")
    return pairs


def _grouped(records: Iterable[tuple[str, str]], root: Path) -> list[Pair]:
    captions: dict[str, list[str]] = {}
    for image, caption in records:
        folded = " ".join(caption.split())
        if folded:
            captions.setdefault(image, []).append(folded)
    return [Pair(image=root / name, captions=tuple(texts), id=name) for name, texts in captions.items()]


def _hint(path: Path) -> str:
    if path.is_dir():
        return " (each picture needs a .txt file of the same name beside it, one caption a line)"
    return ""


def _sidecars(folder: Path) -> Iterator[tuple[str, str]]:
    for image in find_images([folder]):
        sidecar = image.with_suffix(".txt")
        if sidecar.is_file():
            for line in _read_text(sidecar).splitlines():
                yield str(image.relative_to(folder)), line


def _jsonl(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        record = _parse_json(line, f"{path}:{number}")
        if not isinstance(record, dict) or not isinstance(record.get("image"), str):
            raise InputError(f'{path}:{number}: expected an object with "image" and "caption"')
        captions = record.get("captions", record.get("caption", []))
        for caption in captions if isinstance(captions, list) else [captions]:
            if not isinstance(caption, str):
                raise InputError(f"{path}:{number}: a caption must be text, not {caption!r}")
            yield record["image"], caption


def _table(path: Path) -> Iterator[tuple[str, str]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = csv.DictReader(_read_text(path).splitlines(keepends=True), delimiter=delimiter)
    missing = {"image", "caption"} - set(rows.fieldnames or ())
    if missing:
        raise InputError(f"{path}: the first line must name the columns image and caption; missing: {sorted(missing)}")
    for row in rows:
        if row["image"]:
            yield row["image"], row["caption"] or ""


def _coco(path: Path) -> Iterator[tuple[str, str]]:
    content = _parse_json(_read_text(path), str(path))
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        for annotation in content["annotations"]:
            yield names[annotation["image_id"]], annotation["caption"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f'{path}: not a COCO captions file: expected "images" with id and file_name, and "annotations" with '
            f"image_id and caption ({type(error).__name__}: {error})"
        ) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid json ({error.msg} at column {error.colno})") from error


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    ".csv": _table,
    ".json": _coco,
    ".jsonl": _jsonl,
    ".tsv": _table,
}
