"""Pairs of pictures and captions from a folder, a table, json, or an archive of shards.

What is wrong with one record does not spoil the others: with ``on_broken`` it is reported and passed over, without it
the first one raises.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from recap.datasets.archives import find_shards, parquet_pairs, shard_pairs
from recap.datasets.images import find_images
from recap.datasets.records import (
    MissingCaptionError,
    OnBroken,
    as_captions,
    parse_json,
    printable,
    read_lines,
    read_table,
    read_text,
)
from recap.errors import InputError, RecapWarning
from recap.types import Pair

KARPATHY_TRAIN = ("train", "restval")
"""The splits of a Karpathy file that are for fitting."""

Record: TypeAlias = tuple[str, str] | InputError
"""The name of a picture and one caption, or what is wrong with this place of the file."""


class PairFiles:
    """Pairs on disk, read when they are gone through, once; what is wrong with some of them ends up in ``broken``.

    Those that name their pictures are read at once, so that a wrong path is noticed before any work is done.
    """

    def __init__(
        self, path: str | Path, *, images: str | Path | None = None, splits: Collection[str] | None = None
    ) -> None:
        self.broken: list[InputError] = []
        self._pairs = stream_pairs(path, images=images, splits=splits, on_broken=self.broken.append)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        if not isinstance(self._pairs, list):
            raise TypeError("how many pairs an archive holds is known at its end")
        return len(self._pairs)


def read_pairs(
    path: str | Path,
    *,
    images: str | Path | None = None,
    splits: Collection[str] | None = None,
    on_broken: OnBroken | None = None,
) -> list[Pair]:
    """Return the pairs of a folder, file or archive as a list; see ``stream_pairs``."""
    return list(stream_pairs(path, images=images, splits=splits, on_broken=on_broken))


def stream_pairs(
    path: str | Path,
    *,
    images: str | Path | None = None,
    splits: Collection[str] | None = None,
    on_broken: OnBroken | None = None,
) -> Iterable[Pair]:
    """Return the pairs of a folder, file or archive; those of archives come one by one, with the picture's bytes.

    Args:
        path: a folder of pictures, each with a ``.txt`` file of the same name that holds one caption a line;
            a ``.jsonl`` file of objects with ``image`` and ``caption`` or ``captions``;
            a ``.csv``, ``.tsv`` or ``.parquet`` file with the columns ``image`` and ``caption``;
            a ``.json`` file of COCO captions or of Karpathy's splits;
            or webdataset shards: a ``.tar`` file, a pattern such as ``shards/*.tar``, or a folder of them.
        images: the folder that picture names are relative to; by default the folder of the file.
        splits: which splits of a Karpathy file to take; by default those for fitting.
        on_broken: called for each record that cannot be used; without it the first one raises.

    Raises:
        InputError: nothing usable is there; the message says what was looked for.
    """
    path = Path(path)
    shards = find_shards(path)
    if not shards and not path.exists():
        raise InputError(f"{path}: no such file or folder")
    root = Path(images) if images is not None else path.parent
    if shards or path.suffix.lower() == ".parquet":
        pairs = shard_pairs(shards) if shards else parquet_pairs(path, root)
        return _at_least_one(_checked(pairs, path, on_broken), path)
    if path.is_dir():
        root = path
    return list(_at_least_one(_grouped(_records(path, splits), root, path, on_broken), path))


def _records(path: Path, splits: Collection[str] | None) -> Iterator[Record]:
    """Return the records of a folder or file that names its pictures."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return _sidecars(path)
    if suffix == ".json":
        return _json(path, splits)
    if suffix in _READERS:
        return _READERS[suffix](path)
    known = ", ".join(sorted({*_READERS, ".json", ".parquet", ".tar"}))
    raise InputError(f"{path}: pairs are read from a folder, or from {known} files")


def _at_least_one(pairs: Iterable[Pair], path: Path) -> Iterator[Pair]:
    found = False
    for pair in pairs:
        found = True
        yield pair
    if not found:
        raise InputError(f"{path}: no pair of a picture and a caption found{_hint(path)}")


def _grouped(records: Iterable[Record], root: Path, path: Path, on_broken: OnBroken | None) -> list[Pair]:
    captions: dict[str, list[str]] = {}
    for image, caption in _checked(records, path, on_broken):
        folded = " ".join(caption.split())
        if folded:
            captions.setdefault(image, []).append(folded)
    return [Pair(image=root / name, captions=tuple(texts), id=printable(name)) for name, texts in captions.items()]


def _checked(records: Iterable[Any], path: Path, on_broken: OnBroken | None) -> Iterator[Any]:
    """Yield the usable records; the others are reported, or raise, or (for want of a caption) are counted."""
    without = 0
    for record in records:
        if not isinstance(record, InputError):
            yield record
        elif on_broken is not None:
            on_broken(record)
        elif isinstance(record, MissingCaptionError):
            without += 1
        else:
            raise record
    if without:
        message = f"{without} pictures of {path} have no caption, and were left out"
        warnings.warn(message, RecapWarning, stacklevel=2)


def _hint(path: Path) -> str:
    if path.is_dir():
        return " (each picture needs a .txt file of the same name beside it, one caption a line)"
    return ""


def _sidecars(folder: Path) -> Iterator[Record]:
    for image in find_images([folder]):
        sidecar = image.with_suffix(".txt")
        if not sidecar.is_file():
            yield MissingCaptionError(f"{image}: no {sidecar.name} beside it")
            continue
        try:
            lines = [line for _, line in read_lines(sidecar)]
        except InputError as error:
            yield error
            continue
        if not lines:
            yield MissingCaptionError(f"{sidecar}: no caption in it")
        for line in lines:
            yield str(image.relative_to(folder)), line


def _jsonl(path: Path) -> Iterator[Record]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            record = parse_json(line, where)
        except InputError as error:
            yield error
            continue
        if not isinstance(record, dict) or not isinstance(record.get("image"), str):
            yield InputError(f'{where}: expected an object with "image" and "caption"')
            continue
        captions = as_captions(record.get("captions", record.get("caption")), where)
        if isinstance(captions, InputError):
            yield captions
            continue
        for caption in captions:
            yield record["image"], caption


def _table(path: Path) -> Iterator[Record]:
    rows = read_table(path)
    try:
        missing = sorted({"image", "caption"} - set(rows.fieldnames or ()))
        if missing:
            raise InputError(
                f"{path}: the first line must name the columns image and caption, separated by "
                f"{'tabs' if path.suffix.lower() == '.tsv' else 'commas'}; missing: {', '.join(missing)}"
            )
        for row in rows:
            if row["image"] and (row["caption"] or "").strip():
                yield row["image"], row["caption"]
            else:
                what = "caption" if row["image"] else "picture"
                yield MissingCaptionError(f"{path}:{rows.line_num}: no {what}")
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num}: not a readable table ({error})") from error


def _json(path: Path, splits: Collection[str] | None) -> Iterator[Record]:
    content = parse_json(read_text(path), str(path))
    images = content.get("images") if isinstance(content, dict) else None
    if isinstance(images, list) and images and isinstance(images[0], dict) and "sentences" in images[0]:
        return _karpathy(path, images, splits)
    return _coco(path, content)


def _karpathy(path: Path, images: list[Any], splits: Collection[str] | None) -> Iterator[Record]:
    there = {image.get("split") for image in images if isinstance(image, dict)}
    wanted = set(splits) if splits is not None else ({*KARPATHY_TRAIN} if there & {*KARPATHY_TRAIN} else there)
    if not wanted & there:
        known = ", ".join(sorted(map(str, there)))
        raise InputError(f"{path}: no split {', '.join(sorted(map(str, wanted)))}; there are {known}")
    for number, image in enumerate(images):
        where = f"{path}: image {number}"
        try:
            if image.get("split") not in wanted:
                continue
            name = str(Path(image.get("filepath", "")) / image["filename"])
            captions = as_captions([sentence["raw"] for sentence in image["sentences"]], where)
        except (KeyError, TypeError, AttributeError) as error:
            yield InputError(f"{where}: expected filename, split and sentences ({type(error).__name__}: {error})")
            continue
        if isinstance(captions, InputError):
            yield captions
            continue
        for caption in captions:
            yield name, caption


def _coco(path: Path, content: Any) -> Iterator[Record]:
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        annotations = list(content["annotations"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{path}: not a COCO captions file: expected "images" with id and file_name, and "annotations" with '
            f"image_id and caption ({type(error).__name__}: {error})"
        ) from error
    for number, annotation in enumerate(annotations):
        where = f"{path}: annotation {number}"
        try:
            name, text = names[annotation["image_id"]], annotation["caption"]
        except (KeyError, TypeError, AttributeError) as error:
            yield InputError(
                f"{where}: expected a caption and the id of one of the images ({type(error).__name__}: {error})"
            )
            continue
        captions = as_captions(text, where)
        if isinstance(captions, InputError):
            yield captions
        else:
            yield name, captions[0]


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {".csv": _table, ".jsonl": _jsonl, ".tsv": _table}
