"""Pairs of pictures and captions from a folder, a table, json, or an archive of shards.

What is wrong with one record does not spoil the others: with ``on_broken`` it is reported and passed over, without it
the first one raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from recap.datasets.archives import find_shards, parquet_pairs, shard_pairs
from recap.datasets.images import find_images
from recap.datasets.records import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    SUFFIXES,
    MissingCaptionError,
    OnBroken,
    Record,
    as_captions,
    printable,
    read_lines,
    scan_records,
)
from recap.errors import InputError, RecapWarning
from recap.types import Pair

NamedCaptions: TypeAlias = tuple[str, list[str]]
"""The name of a picture and some of its captions."""


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
            a ``.json`` or ``.jsonl`` file of objects with ``image`` and ``caption`` or ``captions``;
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
    return list(_at_least_one(_grouped(_scan(path, splits), root, path, on_broken), path))


def _scan(path: Path, splits: Collection[str] | None) -> Iterator[NamedCaptions | InputError]:
    """Return the pictures of a folder or file that names them, with their captions."""
    if path.is_dir():
        return _scan_sidecars(path)
    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(sorted({*SUFFIXES, ".tar"}))
        raise InputError(f"{path}: pairs are read from a folder, or from {known} files")
    return map(_named_captions, scan_records(path, splits=splits, named=True))


def _at_least_one(pairs: Iterable[Pair], path: Path) -> Iterator[Pair]:
    found = False
    for pair in pairs:
        found = True
        yield pair
    if not found:
        hint = " (each picture needs a .txt file of the same name beside it, one caption a line)"
        raise InputError(f"{path}: no pair of a picture and a caption found{hint if path.is_dir() else ''}")


def _grouped(
    scanned: Iterable[NamedCaptions | InputError], root: Path, path: Path, on_broken: OnBroken | None
) -> list[Pair]:
    captions: dict[str, list[str]] = {}
    for image, texts in _checked(scanned, path, on_broken):
        captions.setdefault(image, []).extend(texts)
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


def find_sidecar(image: Path) -> Path:
    """Return the place of the captions of a picture: ``photo.txt``, or ``photo.jpg.txt`` where that is there."""
    full = image.with_name(f"{image.name}.txt")
    return full if full.is_file() else image.with_suffix(".txt")


def _scan_sidecars(folder: Path) -> Iterator[NamedCaptions | InputError]:
    for image in find_images([folder]):
        if image.is_dir():
            yield InputError(f"{image}: a folder that cannot be read")
            continue
        sidecar = find_sidecar(image)
        if not sidecar.is_file():
            yield MissingCaptionError(f"{image}: no {sidecar.name} beside it")
            continue
        try:
            captions = as_captions([line for _, line in read_lines(sidecar)], str(sidecar))
        except InputError as error:
            captions = error
        yield captions if isinstance(captions, InputError) else (str(image.relative_to(folder)), captions)


def _named_captions(record: Record | InputError) -> NamedCaptions | InputError:
    """Return the name of a picture and its captions, or what is wrong with a record."""
    if isinstance(record, InputError):
        return record
    image = record.find(*IMAGE_FIELDS)
    if image == "":
        return MissingCaptionError(f"{record.where}: no picture")
    if not isinstance(image, str):
        return InputError(f'{record.where}: expected an object with "image" and "caption"')
    captions = as_captions(record.find(*CAPTION_FIELDS), record.where)
    return captions if isinstance(captions, InputError) else (image, captions)
