"""Pairs of pictures and captions from a folder, a table, json, or an archive of shards.

What is wrong with one record does not spoil the others: with ``on_broken`` it is reported and passed over, without it
the first one raises.

Webdataset shards are tar files in which a picture and its captions follow each other under one name: ``000001.jpg``
and ``000001.txt`` (one caption a line) or ``000001.json`` (with "caption" or "captions"). A shard is read once from
front to back and nothing is unpacked, so any number of any size will do. Parquet tables have their pictures beside the
file or inside it.
"""

from __future__ import annotations

import glob
import json
import tarfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from recap.datasets.images import IMAGE_SUFFIXES, find_images
from recap.datasets.records import (
    CAPTION_FIELDS,
    ID_FIELDS,
    IMAGE_FIELDS,
    SUFFIXES,
    TOKEN_SUFFIXES,
    MissingCaptionError,
    OnBroken,
    Record,
    as_captions,
    printable,
    read_lines,
    read_rows,
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
    if path.suffix.lower() not in (*SUFFIXES, *TOKEN_SUFFIXES):
        known = ", ".join(sorted({*SUFFIXES, ".tar"}))
        raise InputError(f"{path}: pairs are read from a folder, or from {known} or token files (.txt)")
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


TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
CAPTION_SUFFIXES = (".txt", ".caption", ".json")
MAX_BYTES = 1 << 30
"""Of one member."""
MAX_TEXT_BYTES = 16 << 20
"""Of one with captions, each line of which takes some room."""
MAX_HEADER_BYTES = 1 << 20
"""Of a long name and of other attributes of a member."""

_Member: TypeAlias = tuple[str, str, bytes]
"""Key, suffix and content."""


def find_shards(path: Path) -> list[Path]:
    """Return the shards that a file, a folder or a pattern names; none when it names something else.

    A folder with pictures beside the shards raises ``InputError``: half of it would be passed over in silence.
    """
    if path.is_dir():
        found = [child for child in path.iterdir() if child.name.lower().endswith(TAR_SUFFIXES)]
        if found and next(find_images([path]), None) is not None:
            raise two_kinds(str(path), found[0].name)
    elif path.name.lower().endswith(TAR_SUFFIXES):
        found = [path] if path.exists() else list(map(Path, glob.glob(str(path))))  # noqa: PTH207 - absolute patterns
    else:
        found = []
    return sorted(child for child in found if child.is_file())


def two_kinds(folder: str, archive: str) -> InputError:
    """Return the error for a folder of which nobody can say whether its pictures or its archives are meant."""
    return InputError(
        f"{folder}: has pictures and archives ({archive}); name the archives themselves, or move them elsewhere"
    )


def shard_pairs(shards: Sequence[Path], *, captions_required: bool = True) -> Iterator[Pair | InputError]:
    """Yield the pairs of shards in their order, or what is wrong with a sample or the rest of a shard.

    Where captions are not required, a picture without any is a pair, too.
    """
    for shard in shards:
        broken: list[InputError] = []
        for key, members in groupby(_until_broken(shard, broken), key=lambda member: member[0]):
            yield _pair(shard, key, {suffix: content for _, suffix, content in members}, captions_required)
        yield from broken


def _until_broken(shard: Path, broken: list[InputError]) -> Iterator[_Member]:
    """Yield the members as far as the shard can be read; what ends it goes to ``broken``."""
    try:
        yield from _members(shard)
    except InputError as error:
        broken.append(error)
    except Exception as error:  # tarfile raises nearly anything at broken headers
        broken.append(InputError(f"{shard}: cannot be read to its end ({error or type(error).__name__})"))


class _Header(tarfile.TarInfo):
    """The header of a member, which may claim any size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        # names and attributes are read into memory before anybody sees the member
        if self.type not in tarfile.REGULAR_TYPES and self.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes, over the limit of {MAX_HEADER_BYTES}")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found


def _members(shard: Path) -> Iterator[_Member]:
    with tarfile.open(shard, "r|*", tarinfo=_Header) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            stem, _, suffix = path.name.partition(".")
            suffix = f".{suffix.lower()}"
            most = MAX_TEXT_BYTES if suffix in CAPTION_SUFFIXES else MAX_BYTES
            if not 0 <= member.size <= most or member.issparse():
                # passing over it would take as long as reading what it claims to hold
                name = printable(member.name[:100])
                limit = f"over the limit of {most >> 20} MiB, or has holes"
                raise InputError(f"{shard}: {name} ({member.size} bytes) is {limit}; the rest is not read")
            wanted = suffix in IMAGE_SUFFIXES or suffix in CAPTION_SUFFIXES
            if member.isfile() and wanted and not path.name.startswith("."):
                file = archive.extractfile(member)
                if file is not None:
                    yield str(path.with_name(stem)), suffix, file.read()


def _pair(shard: Path, key: str, members: dict[str, bytes], captions_required: bool) -> Pair | InputError:
    where = f"{shard}/{printable(key)}"
    image = next((content for suffix, content in members.items() if suffix in IMAGE_SUFFIXES), None)
    if image is None:
        return InputError(f"{where}: captions without a picture")
    texts = next((_texts(suffix, members[suffix]) for suffix in CAPTION_SUFFIXES if suffix in members), None)
    captions = as_captions(texts, where, required=captions_required)
    if isinstance(captions, InputError):
        return captions
    return Pair(image, tuple(captions), printable(f"{shard.name}/{key}"))


def _texts(suffix: str, content: bytes) -> object:
    """Return what a member says; what cannot be read is returned as it is, for the check of captions to refuse."""
    try:
        text = content.decode("utf-8-sig")
        if suffix != ".json":
            return text.split("\n")
        return Record("", json.loads(text)).find(*CAPTION_FIELDS)
    except (ValueError, AttributeError, RecursionError):
        return content


def parquet_pairs(path: Path, root: Path, *, captions_required: bool = True) -> Iterator[Pair | InputError]:
    """Yield the pairs of a table; names of pictures are relative to ``root``.

    The column ``image`` holds names, bytes, or structs of ``bytes`` and ``path`` as the Hugging Face data sets do.
    Rows that name the same picture are joined; a picture inside the table is a pair of its own. Where captions are not
    required, a picture without any is a pair, too.
    """
    named: dict[str, Pair] = {}
    for row in read_rows(path, lambda names: _columns(path, names, captions_required)):
        item = _row_pair(row, root, captions_required)
        if isinstance(item, InputError) or isinstance(item.image, bytes):
            yield item
        else:
            known = named.get(str(item.image))
            named[str(item.image)] = item if known is None else replace(known, captions=known.captions + item.captions)
    yield from named.values()


def _columns(path: Path, names: list[str], captions_required: bool) -> list[str]:
    """Return the columns to read: the picture, what may name it, and the captions if there are any."""
    images, captions = ([name for name in known if name in names] for known in (IMAGE_FIELDS, CAPTION_FIELDS))
    if not images or (captions_required and not captions):
        wanted = "columns image and caption" if captions_required else "column image"
        raise InputError(f"{path}: expected the {wanted}; there are {', '.join(names)}")
    return [images[0], *captions[:1], *(name for name in ID_FIELDS if name in names)]


def _row_pair(row: Record, root: Path, captions_required: bool) -> Pair | InputError:
    image, name = row.find(*IMAGE_FIELDS), str(row.find(*ID_FIELDS) or "")
    if isinstance(image, dict):
        name = name or image.get("path") or ""
        image = image.get("bytes") or image.get("path")
    if not isinstance(image, str | bytes) or not image:
        return InputError(f"{row.where}: no picture")
    captions = as_captions(row.find(*CAPTION_FIELDS), row.where, required=captions_required)
    if isinstance(captions, InputError):
        return captions
    if isinstance(image, str):
        return Pair(root / image, tuple(captions), printable(name or image))
    return Pair(image, tuple(captions), printable(name or row.where.rpartition("/")[2]))
