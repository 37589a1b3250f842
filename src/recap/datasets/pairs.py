"""Read (picture, captions) pairs from a folder with sidecars, jsonl, csv, or a COCO captions file.

Pictures are not opened here: a pair holds the path, and an unreadable picture is reported when it is encoded.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from recap.datasets.images import find_images
from recap.datasets.text import parse_json, read_lines, read_table, read_text
from recap.errors import InputError, RecapWarning
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
    return [Pair(image=root / name, captions=tuple(texts), id=printable(name)) for name, texts in captions.items()]


def printable(name: str) -> str:
    """Return a file's name as text that can be written anywhere; bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def _hint(path: Path) -> str:
    if path.is_dir():
        return " (each picture needs a .txt file of the same name beside it, one caption a line)"
    return ""


def _sidecars(folder: Path) -> Iterator[tuple[str, str]]:
    without = 0
    for image in find_images([folder]):
        sidecar = image.with_suffix(".txt")
        lines = [line for _, line in read_lines(sidecar)] if sidecar.is_file() else []
        without += not lines
        for line in lines:
            yield str(image.relative_to(folder)), line
    _warn(without, f"pictures in {folder} have no caption beside them")


def _warn(count: int, what: str) -> None:
    if count:
        warnings.warn(f"{count} {what}, and were left out", RecapWarning, stacklevel=2)


def _jsonl(path: Path) -> Iterator[tuple[str, str]]:
    without = 0
    for number, line in read_lines(path):
        record = parse_json(line, f"{path}:{number}")
        if not isinstance(record, dict) or not isinstance(record.get("image"), str):
            raise InputError(f'{path}:{number}: expected an object with "image" and "caption"')
        captions = record.get("captions", record.get("caption", []))
        without += not captions
        for caption in captions if isinstance(captions, list) else [captions]:
            if not isinstance(caption, str):
                raise InputError(f"{path}:{number}: a caption must be text, not {caption!r}")
            yield record["image"], caption
    _warn(without, f"lines of {path} have no caption")


def _table(path: Path) -> Iterator[tuple[str, str]]:
    rows = read_table(path)
    try:
        missing = sorted({"image", "caption"} - set(rows.fieldnames or ()))
        if missing:
            raise InputError(
                f"{path}: the first line must name the columns image and caption, separated by "
                f"{'tabs' if path.suffix.lower() == '.tsv' else 'commas'}; missing: {', '.join(missing)}"
            )
        for row in rows:
            if row["image"]:
                yield row["image"], row["caption"] or ""
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num}: not a readable table ({error})") from error


def _coco(path: Path) -> Iterator[tuple[str, str]]:
    content = parse_json(read_text(path), str(path))
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        for annotation in content["annotations"]:
            yield names[annotation["image_id"]], str(annotation["caption"] or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{path}: not a COCO captions file: expected "images" with id and file_name, and "annotations" with '
            f"image_id and caption ({type(error).__name__}: {error})"
        ) from error


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    ".csv": _table,
    ".json": _coco,
    ".jsonl": _jsonl,
    ".tsv": _table,
}
