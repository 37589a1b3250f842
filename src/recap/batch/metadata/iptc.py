"""IPTC-IIM, the older metadata of news pictures, and the Photoshop resources that carry it in a JPEG.

A dataset is the byte 1C, its record and number, a length and a value. Photoshop resources are ``8BIM``, a number, a
name and a value; number 1028 holds the datasets, and 1061 their MD5, by which a reader knows that XMP and IIM belong
together.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from recap.errors import InputError

_UTF8 = b"\x1b%G"
_CHARSET, _VERSION, _KEYWORD, _CAPTION, _WRITER = (1, 90), (2, 0), (2, 25), (2, 120), (2, 122)
_LIMITS = {_KEYWORD: 64, _CAPTION: 2000, _WRITER: 32}
_DATASETS, _DIGEST = 1028, 1061

Dataset = tuple[tuple[int, int], bytes]
Resource = tuple[int, bytes, bytes]
"""Number, name as it is written, value."""


def description(data: bytes) -> tuple[str, str]:
    """Return the caption of IIM datasets and who wrote it."""
    datasets = list(_datasets(data))
    codec = _codec(datasets)
    values = {key: value.decode(codec, "replace").strip("\0 \r\n") for key, value in reversed(datasets)}
    return values.get(_CAPTION, ""), values.get(_WRITER, "")


def with_description(data: bytes, text: str, writer: str) -> bytes:
    """Return IIM datasets with another caption; letters and length as far as the old standard can hold them."""
    return _with_values(data, [(_CAPTION, text), (_WRITER, writer)])


def keywords(data: bytes) -> list[str]:
    """Return the keywords of IIM datasets."""
    datasets = list(_datasets(data))
    return [value.decode(_codec(datasets), "replace").strip("\0 \r\n") for key, value in datasets if key == _KEYWORD]


def with_keywords(data: bytes, names: Sequence[str]) -> bytes:
    """Return IIM datasets with other keywords."""
    return _with_values(data, [(_KEYWORD, name) for name in names])


def _with_values(data: bytes, values: Sequence[tuple[tuple[int, int], str]]) -> bytes:
    """Return datasets in which these take the place of those with the same numbers."""
    replaced = {key for key, _ in values}
    datasets = [item for item in _datasets(data) if item[0] not in replaced]
    if all(value.isascii() for key, value in datasets if key[0] == 2) and _CHARSET not in dict(datasets):
        datasets.append((_CHARSET, _UTF8))
    if _VERSION not in dict(datasets):
        datasets.append((_VERSION, b"\0\4"))
    codec = _codec(datasets)
    for key, value in values:
        # a letter that the limit cuts in two is left out
        cut = value.encode(codec, "replace")[: _LIMITS[key]].decode(codec, "ignore")
        datasets.append((key, cut.encode(codec)))
    datasets.sort(key=lambda item: item[0])
    return b"".join(_packed(*item) for item in datasets)


def _codec(datasets: list[Dataset]) -> str:
    """Return how texts are encoded; without a word about it readers assume Latin letters."""
    charset = dict(datasets).get(_CHARSET)
    return "cp1252" if charset is None else "utf-8" if charset == _UTF8 else "ascii"


def _datasets(data: bytes) -> Iterator[Dataset]:
    place = 0
    while data[place : place + 1] == b"\x1c":
        if len(data) < place + 5:
            raise InputError("its IPTC metadata is cut off")
        record, number, length = struct.unpack_from(">BBH", data, place + 1)
        place += 5
        if length & 0x8000:
            size = length & 0x7FFF
            length = int.from_bytes(data[place : place + size], "big")
            place += size
        if place + length > len(data):
            raise InputError("its IPTC metadata is cut off")
        yield (record, number), data[place : place + length]
        place += length


def _packed(key: tuple[int, int], value: bytes) -> bytes:
    if len(value) < 0x8000:
        return struct.pack(">BBBH", 0x1C, *key, len(value)) + value
    return struct.pack(">BBBHI", 0x1C, *key, 0x8004, len(value)) + value


def datasets_of(resources: bytes) -> bytes:
    """Return the IIM datasets among Photoshop resources."""
    return next((value for number, _, value in _resources(resources) if number == _DATASETS), b"")


def with_datasets(resources: bytes, data: bytes) -> bytes:
    """Return Photoshop resources with other IIM datasets, and the digest that belongs to them."""
    kept = [item for item in _resources(resources) if item[0] not in (_DATASETS, _DIGEST)]
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    new: list[Resource] = [(_DATASETS, b"\0\0", data), (_DIGEST, b"\0\0", digest)]
    packed = []
    for number, name, value in (*new, *kept):
        packed.append(b"8BIM" + struct.pack(">H", number) + name + struct.pack(">I", len(value)) + value)
        packed.append(b"\0" * (len(value) % 2))
    return b"".join(packed)


def _resources(data: bytes) -> Iterator[Resource]:
    place = 0
    while data[place : place + 4] == b"8BIM":
        name_end = place + 7 + data[place + 6] if len(data) > place + 6 else len(data)
        name_end += (name_end - place) % 2
        if name_end + 4 > len(data):
            raise InputError("its Photoshop metadata is cut off")
        number, length = struct.unpack_from(">H", data, place + 4)[0], struct.unpack_from(">I", data, name_end)[0]
        start = name_end + 4
        if start + length > len(data):
            raise InputError("its Photoshop metadata is cut off")
        yield number, data[place + 6 : name_end], data[start : start + length]
        place = start + length + length % 2
    if data[place:].strip(b"\0"):
        raise InputError("its Photoshop metadata holds something that is not known")
