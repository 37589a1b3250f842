"""Where JPEG, PNG, WebP and TIFF files keep metadata. Only these parts are read and replaced.

Each format has a pair of functions: ``read_*`` returns the metadata of a file, ``write_*`` returns the file with other
metadata, all else byte for byte as it was.

The metadata of a TIFF: tags of its first directory.

A changed directory is written behind the rest of the file and the header is pointed at it, so that no picture moves.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from recap.batch.metadata.standards import datasets_of, with_datasets, without_padding
from recap.errors import InputError

_XMP_HEADER = b"http://ns.adobe.com/xap/1.0/\0"
_PHOTOSHOP_HEADER = b"Photoshop 3.0\0"
_SEGMENT = 0xFFFF - 2
_MOST_XMP = 1 << 26  # what a compressed packet may unpack to

Segment = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parts of a file's metadata that hold a description; None where the format has no such part."""

    xmp: bytes = b""
    iptc: bytes | None = None


def read_jpeg(data: bytes) -> Metadata:
    """Return the metadata of a JPEG."""
    segments, _ = _segments(data)
    packet = next((payload[len(_XMP_HEADER) :] for _, payload in segments if payload.startswith(_XMP_HEADER)), b"")
    return Metadata(packet, datasets_of(_resources(segments)))


def write_jpeg(data: bytes, new: Metadata) -> bytes:
    """Return a JPEG with other metadata; what follows the header is copied."""
    segments, rest = _segments(data)
    resources = with_datasets(_resources(segments), new.iptc or b"")
    packet = new.xmp if len(new.xmp) + len(_XMP_HEADER) <= _SEGMENT else without_padding(new.xmp)
    if len(packet) + len(_XMP_HEADER) > _SEGMENT:
        raise InputError("its XMP metadata has no room for a description: a segment of a JPEG holds 64 kB")
    size = _SEGMENT - len(_PHOTOSHOP_HEADER)
    pieces = [resources[start : start + size] for start in range(0, len(resources), size)]
    ours = [(0xE1, _XMP_HEADER + packet), *((0xED, _PHOTOSHOP_HEADER + piece) for piece in pieces)]
    kept = [item for item in segments if not _is_ours(item)]
    _check_further_pictures(segments)
    # readers expect JFIF and EXIF first
    place = next((i for i, (code, _) in enumerate(kept) if code not in (0xE0, 0xE1)), len(kept))
    return b"\xff\xd8" + b"".join(_packed_segment(*item) for item in (*kept[:place], *ours, *kept[place:])) + rest


def _is_ours(segment: Segment) -> bool:
    code, payload = segment
    return (code == 0xE1 and payload.startswith(_XMP_HEADER)) or (
        code == 0xED and payload.startswith(_PHOTOSHOP_HEADER)
    )


def _check_further_pictures(segments: list[Segment]) -> None:
    """Refuse a file whose further pictures are found by their distance from a segment that would not keep it."""
    index = next((i for i, (_, payload) in enumerate(segments) if payload.startswith(b"MPF\0")), len(segments))
    if any(_is_ours(item) for item in segments[index:]):
        raise InputError("it holds several pictures, and its metadata cannot grow without losing the others")


def _resources(segments: list[Segment]) -> bytes:
    pieces = [payload for code, payload in segments if code == 0xED and payload.startswith(_PHOTOSHOP_HEADER)]
    return b"".join(piece[len(_PHOTOSHOP_HEADER) :] for piece in pieces)


def _packed_segment(code: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, code, len(payload) + 2) + payload


def _segments(data: bytes) -> tuple[list[Segment], bytes]:
    """Return the segments of a JPEG before its tables and picture, and all the rest as it is."""
    segments: list[Segment] = []
    place = 2
    while len(data) >= place + 4 and data[place] == 0xFF:
        code, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if not (0xE0 <= code <= 0xEF or code == 0xFE):
            return segments, data[place:]
        if length < 2 or place + 2 + length > len(data):
            break
        segments.append((code, data[place + 4 : place + 2 + length]))
        place += 2 + length
    raise InputError("the JPEG is cut off in its header")


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_KEYWORD = b"XML:com.adobe.xmp\0"


def read_png(data: bytes) -> Metadata:
    """Return the metadata of a PNG."""
    return Metadata(next((_text_of(body) for kind, body, _ in _png_chunks(data) if _is_xmp(kind, body)), b""))


def write_png(data: bytes, new: Metadata) -> bytes:
    """Return a PNG with other metadata, put before its pixels."""
    body = _PNG_KEYWORD + b"\0\0\0\0" + new.xmp  # not compressed, no language, no translated keyword
    chunk = struct.pack(">I", len(body)) + b"iTXt" + body + struct.pack(">I", zlib.crc32(b"iTXt" + body))
    parts, placed = [_PNG_SIGNATURE], False
    for kind, old, whole in _png_chunks(data):
        if kind in (b"IDAT", b"IEND") and not placed:
            parts.append(chunk)
            placed = True
        if not _is_xmp(kind, old):
            parts.append(whole)
    return b"".join(parts)


def _is_xmp(kind: bytes, body: bytes) -> bool:
    return kind == b"iTXt" and body.startswith(_PNG_KEYWORD)


def _text_of(body: bytes) -> bytes:
    compressed = body[len(_PNG_KEYWORD) : len(_PNG_KEYWORD) + 1] == b"\1"
    text = body[len(_PNG_KEYWORD) + 2 :].split(b"\0", 2)[-1]
    if not compressed:
        return text
    try:
        return zlib.decompressobj().decompress(text, _MOST_XMP)
    except zlib.error as error:
        raise InputError(f"its XMP metadata cannot be unpacked ({error})") from error


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield kind, body and the whole of each chunk; what follows the last chunk comes with it."""
    place = len(_PNG_SIGNATURE)
    while len(data) >= place + 12:
        length = int.from_bytes(data[place : place + 4], "big")
        kind, end = data[place + 4 : place + 8], place + 12 + length
        if end > len(data):
            break
        if kind == b"IEND":
            yield kind, b"", data[place:]
            return
        yield kind, data[place + 8 : end - 4], data[place:end]
        place = end
    raise InputError("the PNG is cut off")


_WEBP_XMP_FLAG, _WEBP_ALPHA_FLAG = 0x04, 0x10


def read_webp(data: bytes) -> Metadata:
    """Return the metadata of a WebP."""
    return Metadata(next((body for kind, body in _webp_chunks(data) if kind == b"XMP "), b""))


def write_webp(data: bytes, new: Metadata) -> bytes:
    """Return a WebP with other metadata; a simple file gets the header that may announce some."""
    chunks = [item for item in _webp_chunks(data) if item[0] != b"XMP "]
    if not chunks:
        raise InputError("the WebP has no picture")
    kind, header = chunks[0]
    if kind == b"VP8X":
        chunks[0] = kind, bytes([header[0] | _WEBP_XMP_FLAG]) + header[1:]
    else:
        chunks.insert(0, (b"VP8X", _webp_header(kind, header)))
    chunks.append((b"XMP ", new.xmp))
    packed = b"".join(k + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2) for k, body in chunks)
    behind = data[8 + int.from_bytes(data[4:8], "little") :]
    return b"RIFF" + struct.pack("<I", len(packed) + 4) + b"WEBP" + packed + behind


def _webp_header(kind: bytes, body: bytes) -> bytes:
    """Return the extended header of a picture that has none: flags, and one less than its width and height."""
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        width, height, alpha = bits & 0x3FFF, bits >> 14 & 0x3FFF, bits >> 28 & 1
    elif kind == b"VP8 " and len(body) >= 10:
        width, height, alpha = *(side & 0x3FFF for side in struct.unpack_from("<HH", body, 6)), 0
        width, height = width - 1, height - 1
    else:
        raise InputError("the WebP has no picture")
    flags = _WEBP_XMP_FLAG | (_WEBP_ALPHA_FLAG if alpha else 0)
    return struct.pack("<I", flags) + width.to_bytes(3, "little") + height.to_bytes(3, "little")


def _webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place, end = 12, 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise InputError("the WebP is cut off")
    while place + 8 <= end:
        kind, length = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if place + 8 + length > end:
            raise InputError("the WebP is cut off")
        yield kind, data[place + 8 : place + 8 + length]
        place += 8 + length + length % 2


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
