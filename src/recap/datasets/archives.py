"""Webdataset shards: tar files in which a picture and its captions follow each other under one name.

    000001.jpg  000001.txt          one caption a line; or 000001.json with "caption" or "captions"

A shard is read once from front to back and nothing is unpacked, so any number of any size will do.

Parquet tables of pictures and captions, with the pictures beside the file or inside it.
"""

from __future__ import annotations

import glob
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from recap.datasets.images import IMAGE_SUFFIXES, find_images
from recap.datasets.records import (
    CAPTION_FIELDS,
    ID_FIELDS,
    IMAGE_FIELDS,
    Record,
    as_captions,
    printable,
    read_rows,
)
from recap.errors import InputError
from recap.types import Pair

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
CAPTION_SUFFIXES = (".txt", ".caption", ".json")
MAX_BYTES = 1 << 30
"""Of one member."""
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
            if not 0 <= member.size <= MAX_BYTES or member.issparse():
                # passing over it would take as long as reading what it claims to hold
                name = printable(member.name[:100])
                limit = f"over the limit of {MAX_BYTES >> 30} GiB, or has holes"
                raise InputError(f"{shard}: {name} ({member.size} bytes) is {limit}; the rest is not read")
            path = PurePosixPath(member.name)
            stem, _, suffix = path.name.partition(".")
            suffix = f".{suffix.lower()}"
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
