"""What is decoded of an AVIF or a HEIF in truth.

The size of an AV1 stream is that of its sequence header, not that of the container; and a HEIF of 64x64 pixels may name
one tile of 4096x4096 a thousand times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_CONTAINERS = {b"meta", b"moov", b"trak", b"mdia", b"minf", b"stbl"}
_HEIF_CONTAINERS = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"iref": 4}
"""With the bytes before the boxes inside."""
_SEQUENCE_HEADER = 1
_MAX_PARTS = 100_000
"""Largest number of parts of a file that are looked at; no honest picture has more."""
_MAX_DEPTH = 8
"""Of pictures that are put together from pictures that are put together."""


class TooManyPartsError(ValueError):
    """A file that would keep its reader busy."""


class _Budget:
    """What is left of the parts that may be looked at."""

    def __init__(self) -> None:
        self._left = _MAX_PARTS

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyPartsError(f"a picture of more than {_MAX_PARTS} parts")


def coded_sizes(content: bytes) -> list[int]:
    """Return the pixels of each AV1 stream of an AVIF file; what cannot be parsed is passed over.

    Raises:
        TooManyPartsError: there is no end of them.
    """
    sizes, budget = [], _Budget()
    for stream in _streams(content, budget):
        try:
            sizes.append(max((width * height for width, height in _sequence_headers(stream, budget)), default=0))
        except TooManyPartsError:
            raise
        except (IndexError, ValueError, struct.error):
            continue
    return sizes


def tiled_pixels(content: bytes) -> int:
    """Return the pixels of the tiles of a HEIF picture, each as often as it is used, and of what goes with it.

    Raises:
        TooManyPartsError: there is no end of them.
    """
    sizes, parts, planes = _heif_items(content)
    known: dict[int, int] = {}

    def pixels(item: int, depth: int = 0) -> int:
        if depth > _MAX_DEPTH:
            raise TooManyPartsError("a HEIF whose parts hold each other")
        if item not in known:
            known[item] = max(sizes.get(item, 0), sum(pixels(part, depth + 1) for part in parts.get(item, ())))
        return known[item]

    whole = max((pixels(item) for item in parts if item not in planes), default=0)
    return whole + sum(map(pixels, planes))


def _heif_items(content: bytes) -> tuple[dict[int, int], dict[int, list[int]], set[int]]:
    """Return the pixels of the items of a HEIF, what each is put together from, and which go with others."""
    areas: list[int] = []
    owned: list[tuple[int, int]] = []
    parts: dict[int, list[int]] = {}
    planes: set[int] = set()
    budget, waiting = _Budget(), [(b"", 0, len(content))]
    while waiting:
        parent, start, end = waiting.pop()
        if parent == b"ipco" and areas:
            raise TooManyPartsError("a HEIF that describes its parts twice")
        wide = 4 if parent == b"iref" and content[start - 4] else 2
        for kind, begin, stop in _boxes(content, start, end, budget):
            number = _Numbers(content, begin, budget)
            if parent == b"ipco":
                areas.append(int(kind == b"ispe") and _area(number))
            elif parent == b"iref" and kind in (b"dimg", b"auxl"):
                item = number(wide)
                named = [number(wide) for _ in range(number(2))]
                if kind == b"dimg":
                    parts.setdefault(item, []).extend(named)
                else:
                    planes.add(item)
            elif kind == b"ipma":
                owned += _owned_properties(number)
            elif kind in _HEIF_CONTAINERS:
                waiting.append((kind, begin + _HEIF_CONTAINERS[kind], stop))
    sizes: dict[int, int] = {}
    for item, place in owned:
        if 0 < place <= len(areas):
            sizes[item] = max(sizes.get(item, 0), areas[place - 1])
    return sizes, parts, planes


def _area(number: _Numbers) -> int:
    """Return the pixels that an ``ispe`` box tells."""
    number(4)  # its version
    return number(4) * number(4)


def _owned_properties(number: _Numbers) -> Iterator[tuple[int, int]]:
    """Yield the items of an ``ipma`` box, each with the place of a property."""
    head = number(4)
    wide, index = (4 if head >> 24 else 2), (2 if head & 1 else 1)
    for _ in range(number(4)):
        item = number(wide)
        for _ in range(number(1)):
            # the first bit says whether a reader must know it
            yield item, number(index) & (0x7FFF if index == 2 else 0x7F)


class _Numbers:
    """Reads whole numbers, one after the other."""

    def __init__(self, content: bytes, place: int, budget: _Budget) -> None:
        self._content, self._place, self._budget = content, place, budget

    def __call__(self, width: int) -> int:
        self._budget.spend()
        start = self._place
        self._place += width
        if self._place > len(self._content):
            raise IndexError("the file is cut off")
        return int.from_bytes(self._content[start : self._place], "big")


def _boxes(content: bytes, start: int, end: int, budget: _Budget) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the boxes of a container."""
    while start + 8 <= end:
        budget.spend()
        size, kind = struct.unpack_from(">I4s", content, start)
        head = 8
        if size == 1 and start + 16 <= end:
            (size,), head = struct.unpack_from(">Q", content, start + 8), 16
        stop = end if size == 0 else start + size
        if stop < start + head or stop > end:
            return
        yield kind, start + head, stop
        start = stop


def _streams(content: bytes, budget: _Budget) -> list[memoryview]:
    """Return the data of the items, and of the first samples of tracks."""
    found: list[memoryview] = []
    waiting = [(0, len(content))]
    while waiting:
        start, end = waiting.pop()
        boxes = list(_boxes(content, start, end, budget))
        inside = next((begin for kind, begin, _ in boxes if kind == b"idat"), 0)
        for kind, begin, stop in boxes:
            try:
                if kind in _CONTAINERS:
                    waiting.append((begin + (4 if kind == b"meta" else 0), stop))
                elif kind == b"iloc":
                    found += _item_data(content, begin, inside, budget)
                elif kind in (b"stco", b"co64") and struct.unpack_from(">I", content, begin + 4)[0]:
                    (place,) = struct.unpack_from(">I" if kind == b"stco" else ">Q", content, begin + 8)
                    found.append(memoryview(content)[place:])
            except (IndexError, struct.error):
                continue
    return found


def _item_data(content: bytes, place: int, inside: int, budget: _Budget) -> Iterator[memoryview]:
    """Yield the data of each item of an ``iloc`` box; ``inside`` is where the data of the metadata itself begins."""
    version, widths = content[place], content[place + 4 : place + 6]
    offset, length, base = widths[0] >> 4, widths[0] & 15, widths[1] >> 4
    index = widths[1] & 15 if version in (1, 2) else 0
    number = _Numbers(content, place + 6, budget)
    whole = memoryview(content)
    for _ in range(number(4 if version == 2 else 2)):
        number(4 if version == 2 else 2)
        method = number(2) & 15 if version in (1, 2) else 0
        number(2)
        start = number(base) + (inside if method == 1 else 0)
        extents: list[memoryview] = []
        for _ in range(number(2)):
            number(index)
            at = start + number(offset)
            size = number(length)
            extents.append(whole[at : at + size if size else len(content)])
        if sum(map(len, extents)) > len(content):
            raise TooManyPartsError("an AVIF whose parts lie upon each other")
        yield extents[0] if len(extents) == 1 else memoryview(b"".join(extents))


def _sequence_headers(stream: memoryview, budget: _Budget) -> Iterator[tuple[int, int]]:
    """Yield the largest width and height that each sequence header of a stream allows."""
    place = 0
    while place < len(stream):
        budget.spend()
        head = stream[place]
        if head & 0x81:  # reserved bits: no AV1
            return
        place += 2 if head & 4 else 1
        size = len(stream) - place
        if head & 2:
            size, place = _leb128(stream, place)
        if head >> 3 == _SEQUENCE_HEADER:
            yield _largest(bytes(stream[place : place + 64]))
        place += size


def _leb128(stream: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 56, 7):
        byte = stream[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("a length without end")


class _Bits:
    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def __call__(self, count: int) -> int:
        if count > self._left:
            raise ValueError("the header is cut off")
        self._left -= count
        return (self._value >> self._left) & ((1 << count) - 1)


def _largest(header: bytes) -> tuple[int, int]:
    """Return the largest width and height of a sequence header (AV1 specification, 5.5.1)."""
    bits = _Bits(header)
    bits(4)  # profile, still picture
    if bits(1):  # reduced header of a still picture
        bits(5)
    else:
        _operating_points(bits)
    width_bits, height_bits = bits(4) + 1, bits(4) + 1
    return bits(width_bits) + 1, bits(height_bits) + 1


def _operating_points(bits: _Bits) -> None:
    """Pass over what stands between the profile and the size."""
    model, delays = False, 0
    if bits(1):  # timing
        bits(32)
        bits(32)
        if bits(1):  # equal intervals
            zeros = 0
            while not bits(1):
                zeros += 1
            bits(min(zeros, 32))
        model = bool(bits(1))
        if model:
            delays = bits(5) + 1
            bits(32)
            bits(10)
    display = bits(1)
    for _ in range(bits(5) + 1):
        bits(12)
        if bits(5) > 7:
            bits(1)
        if model and bits(1):
            bits(2 * delays + 1)
        if display and bits(1):
            bits(4)
