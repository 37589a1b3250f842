"""The metadata of a TIFF: tags of its first directory.

A changed directory is written behind the rest of the file and the header is pointed at it, so that no picture moves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from recap.batch.metadata.containers import Metadata
from recap.errors import InputError

_XMP, _IPTC = 700, 33723
_BYTE, _LONG = 1, 4
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How numbers are written: byte order, and 4 bytes for an offset or 8 in a BigTIFF."""

    order: str
    big: bool

    @property
    def offset(self) -> struct.Struct:
        return struct.Struct(self.order + ("Q" if self.big else "I"))

    @property
    def count(self) -> struct.Struct:
        return struct.Struct(self.order + ("Q" if self.big else "H"))

    @property
    def entry(self) -> struct.Struct:
        """Tag, type, count, and the value or where it is."""
        return struct.Struct(self.order + ("HHQ8s" if self.big else "HHI4s"))

    @property
    def pointer(self) -> int:
        """Where the header says where the first directory is."""
        return 8 if self.big else 4


Entry = tuple[int, int, int, bytes]


def read_tiff(data: bytes) -> Metadata:
    """Return the metadata of a TIFF's first picture."""
    try:
        layout = _layout(data)
        entries, _ = _directory(data, layout)
        values = {entry[0]: _value(data, entry, layout) for entry in entries if entry[0] in (_XMP, _IPTC)}
    except struct.error as error:
        raise InputError("the TIFF is cut off") from error
    return Metadata(values.get(_XMP, b""), values.get(_IPTC, b""))


def write_tiff(data: bytes, new: Metadata) -> bytes:
    """Return a TIFF with other metadata of its first picture."""
    layout = _layout(data)
    try:
        entries, following = _directory(data, layout)
    except struct.error as error:
        raise InputError("the TIFF is cut off") from error
    kept = [entry for entry in entries if entry[0] not in (_XMP, _IPTC)]
    out = bytearray(data)
    datasets = new.iptc or b""
    datasets += b"\0" * (-len(datasets) % 4)  # by tradition they are called numbers of four bytes
    kept.append((_XMP, _BYTE, len(new.xmp), _stored(out, new.xmp, layout)))
    kept.append((_IPTC, _LONG, len(datasets) // 4, _stored(out, datasets, layout)))
    kept.sort(key=lambda entry: entry[0])
    out += b"\0" * (len(out) % 2)
    place = len(out)
    out += layout.count.pack(len(kept)) + b"".join(layout.entry.pack(*entry) for entry in kept) + following
    if len(out) > 0xFFFFFFFF and not layout.big:
        raise InputError("the TIFF would be larger than 4 GiB, which needs a BigTIFF")
    layout.offset.pack_into(out, layout.pointer, place)
    return bytes(out)


def _stored(out: bytearray, value: bytes, layout: _Layout) -> bytes:
    """Return a value that fits its entry; a longer one is put at the end of the file, and its place returned."""
    if len(value) <= layout.offset.size:
        return value
    out += b"\0" * (len(out) % 2)
    place = layout.offset.pack(len(out))
    out += value
    return place


def _layout(data: bytes) -> _Layout:
    order = "<" if data.startswith(b"II") else ">"
    return _Layout(order, big=struct.unpack_from(order + "H", data, 2)[0] == 43)


def _directory(data: bytes, layout: _Layout) -> tuple[list[Entry], bytes]:
    """Return the entries of the first directory, and where the next one is, as it is written."""
    (place,) = layout.offset.unpack_from(data, layout.pointer)
    (count,) = layout.count.unpack_from(data, place)
    place += layout.count.size
    entries = [layout.entry.unpack_from(data, place + number * layout.entry.size) for number in range(count)]
    place += count * layout.entry.size
    layout.offset.unpack_from(data, place)
    return entries, data[place : place + layout.offset.size]


def _value(data: bytes, entry: Entry, layout: _Layout) -> bytes:
    _, kind, count, stored = entry
    size = count * _SIZES.get(kind, 1)
    if size <= layout.offset.size:
        return stored[:size]
    (place,) = layout.offset.unpack(stored)
    if place + size > len(data):
        raise InputError("the TIFF is cut off")
    return data[place : place + size]
