"""The two standards by which a picture says what it shows: XMP, and the older IPTC-IIM of news pictures.

An XMP packet is not parsed into a tree and written again, which would rename prefixes and fold line breaks of
attributes: expat says where the old values stand, they are cut out, and the new ones are put in before ``</rdf:RDF>``.

A dataset of IPTC-IIM is the byte 1C, its record and number, a length and a value. In a JPEG, Photoshop resources carry
them: ``8BIM``, a number, a name and a value; number 1028 holds the datasets, and 1061 their MD5, by which a reader
knows that XMP and IIM belong together.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from xml.parsers import expat

from recap.errors import InputError

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_DC = "http://purl.org/dc/elements/1.1/"
_PHOTOSHOP = "http://ns.adobe.com/photoshop/1.0/"
_LANG = "http://www.w3.org/XML/1998/namespace lang"
_ABOUT = f"{_RDF} about"
_TEXT = f"{_DC} description"
_WRITER = f"{_PHOTOSHOP} CaptionWriter"
_KEYWORDS = f"{_DC} subject"
_PADDING = re.compile(rb"\s+(?=<\?xpacket end)")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
    f'<rdf:RDF xmlns:rdf="{_RDF}">\n</rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>'
)


@dataclass(slots=True)
class _Reading:
    """What a packet says, and where."""

    texts: dict[str, str] = field(default_factory=dict)
    """The descriptions by language."""
    writer: str = ""
    about: str = ""
    old: list[tuple[int, int]] = field(default_factory=list)
    """From where to where the old values stand."""
    keywords: list[str] = field(default_factory=list)
    old_keywords: list[tuple[int, int]] = field(default_factory=list)
    end: int | None = None
    """Where ``</rdf:RDF>`` begins."""


def xmp_description(packet: bytes) -> tuple[str, str]:
    """Return the description of a packet and who wrote it; the default language, or the first there is."""
    reading = _read(packet)
    text = reading.texts.get("x-default") or next(iter(reading.texts.values()), "")
    return text.strip(), reading.writer.strip()


def with_xmp_description(packet: bytes | None, text: str, writer: str) -> bytes:
    """Return a packet that describes the picture with ``text``, in place of the descriptions it had."""
    packet, reading = _opened(packet)
    return _replaced(packet, reading, reading.old, _properties(text, writer))


def xmp_keywords(packet: bytes) -> list[str]:
    """Return the keywords of a packet."""
    return _read(packet).keywords


def with_xmp_keywords(packet: bytes | None, names: Sequence[str]) -> bytes:
    """Return a packet with these keywords in place of those it had."""
    packet, reading = _opened(packet)
    items = "".join(f"<rdf:li>{_escaped(name)}</rdf:li>" for name in names)
    bag = f"<dc:subject><rdf:Bag>{items}</rdf:Bag></dc:subject>".encode()
    return _replaced(packet, reading, reading.old_keywords, bag)


def _opened(packet: bytes | None) -> tuple[bytes, _Reading]:
    """Return a packet as it is written from now on, and what it says; a new one where there is nothing to keep."""
    packet = _as_utf8(packet) if packet and packet.strip(b"\0\r\n\t ") else _EMPTY.encode()
    reading = _read(packet)
    # <rdf:RDF/>, or no RDF at all
    return _opened(None) if reading.end is None else (packet, reading)


def _replaced(packet: bytes, reading: _Reading, old: Sequence[tuple[int, int]], properties: bytes) -> bytes:
    """Return a packet in which the old values are cut out and new ones put in before the end."""
    parts, done = [], 0
    for start, end in sorted(old):
        parts.append(packet[done:start])
        done = end
    opening, closing = _frame(reading.about)
    # what an earlier description leaves behind would otherwise grow with each new one
    before = b"".join([*parts, packet[done : reading.end]]).replace(opening + closing, b"")
    return b"".join([before, opening, properties, closing, packet[reading.end :]])


def without_padding(packet: bytes) -> bytes:
    """Return a packet without the room that other programs leave for changes in place."""
    return _PADDING.sub(b"\n", packet)


def _frame(about: str) -> tuple[bytes, bytes]:
    opening = (
        f'<rdf:Description xmlns:rdf="{_RDF}" xmlns:dc="{_DC}" xmlns:photoshop="{_PHOTOSHOP}"'
        f' rdf:about="{escape(about)}">'
    )
    return opening.encode(), b"</rdf:Description>\n"


def _properties(text: str, writer: str) -> bytes:
    text, writer = _escaped(text), _escaped(writer)
    return (
        f'<dc:description><rdf:Alt><rdf:li xml:lang="x-default">{text}</rdf:li></rdf:Alt></dc:description>'
        f"<photoshop:CaptionWriter>{writer}</photoshop:CaptionWriter>"
    ).encode()


def _escaped(text: str) -> str:
    return escape(_NOT_XML.sub("", text), quote=False)


def _as_utf8(packet: bytes) -> bytes:
    """Bring the rare packet in UTF-16 to UTF-8, and cut what is not text at its ends."""
    little, big = "utf-16-le", "utf-16-be"
    for mark, codec in ((b"<\0", little), (b"\xff\xfe", little), (b"\0<", big), (b"\xfe\xff", big)):
        if packet.startswith(mark):
            packet = packet.decode(codec, "replace").encode()
    return packet.removeprefix(b"\xef\xbb\xbf").strip(b"\0\r\n\t ")


def _read(packet: bytes) -> _Reading:
    try:
        return _Reader(_as_utf8(packet)).reading
    except expat.ExpatError as error:
        raise InputError(f"its XMP metadata cannot be parsed ({error})") from error


class _Reader:
    """Walks through a packet once. The properties of a picture are the children of an outermost rdf:Description."""

    def __init__(self, packet: bytes) -> None:
        self.reading = _Reading()
        self._packet = packet
        self._path: list[str] = []
        self._language = ""
        self._start = 0
        self._said: list[str] = []
        self._parser = expat.ParserCreate("utf-8", " ")
        self._parser.namespace_prefixes = True
        self._parser.StartElementHandler = self._open
        self._parser.EndElementHandler = self._close
        self._parser.CharacterDataHandler = self._said.append
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.Parse(packet, True)

    def _refuse(self, *_: Any) -> None:
        raise InputError("its XMP metadata has a document type, which XMP forbids")

    @property
    def _property(self) -> str:
        """The property that the present element is, or is part of."""
        place = self._path.index(f"{_RDF} RDF") if f"{_RDF} RDF" in self._path else len(self._path)
        described = self._path[place + 1 : place + 2] == [f"{_RDF} Description"]
        return self._path[place + 2] if described and len(self._path) > place + 2 else ""

    def _is_property(self) -> bool:
        """Tell whether the present element is a property itself, directly in an outermost description."""
        return self._path[-3:-1] == [f"{_RDF} RDF", f"{_RDF} Description"]

    def _open(self, written: str, attributes: dict[str, str]) -> None:
        self._path.append(_name(written))
        self._said.clear()
        values = {_name(key): value for key, value in attributes.items()}
        self._language = values.get(_LANG, "x-default")
        if self._path[-2:] == [f"{_RDF} RDF", f"{_RDF} Description"]:
            self.reading.about = self.reading.about or values.get(_ABOUT, "")
            self.reading.writer = values.get(_WRITER, self.reading.writer)
            if _TEXT in values:
                self.reading.texts.setdefault("x-default", values[_TEXT])
            self.reading.old += [self._attribute(key) for key in attributes if _name(key) in (_TEXT, _WRITER)]
        elif self._is_property():
            self._start = self._parser.CurrentByteIndex

    def _attribute(self, key: str) -> tuple[int, int]:
        """Return where an attribute of the present tag stands: expat has seen it, so it is there."""
        _, local, prefix = key.split(" ")
        pattern = rf"""\s{re.escape(prefix)}:{local}\s*=\s*("[^"]*"|'[^']*')""".encode()
        found = re.compile(pattern).search(self._packet, self._parser.CurrentByteIndex)
        return found.span() if found else (0, 0)

    def _close(self, written: str) -> None:
        name, place, own = _name(written), self._parser.CurrentByteIndex, self._property
        if own in (_TEXT, _WRITER):
            said = "".join(self._said)
            if own == _WRITER:
                self.reading.writer = said
            elif said.strip():
                self.reading.texts.setdefault(self._language, said)
            if self._is_property():
                self.reading.old.append((self._start, self._packet.index(b">", place) + 1))
        elif own == _KEYWORDS:
            said = "".join(self._said).strip()
            if name == f"{_RDF} li" and said:
                self.reading.keywords.append(said)
            if self._is_property():
                self.reading.old_keywords.append((self._start, self._packet.index(b">", place) + 1))
        elif name == f"{_RDF} RDF" and self._packet.startswith(b"</", place):
            self.reading.end = place
        self._said.clear()
        self._path.pop()


def _name(written: str) -> str:
    """Return namespace and name, without the prefix that expat puts last."""
    return " ".join(written.split(" ")[:2])


_UTF8 = b"\x1b%G"
_CHARSET, _VERSION, _KEYWORD, _CAPTION, _EDITOR = (1, 90), (2, 0), (2, 25), (2, 120), (2, 122)
_LIMITS = {_KEYWORD: 64, _CAPTION: 2000, _EDITOR: 32}
_DATASETS, _DIGEST = 1028, 1061

Dataset = tuple[tuple[int, int], bytes]
Resource = tuple[int, bytes, bytes]
"""Number, name as it is written, value."""


def iptc_description(data: bytes) -> tuple[str, str]:
    """Return the caption of IIM datasets and who wrote it."""
    datasets = list(_datasets(data))
    codec = _codec(datasets)
    values = {key: value.decode(codec, "replace").strip("\0 \r\n") for key, value in reversed(datasets)}
    return values.get(_CAPTION, ""), values.get(_EDITOR, "")


def with_iptc_description(data: bytes, text: str, writer: str) -> bytes:
    """Return IIM datasets with another caption; letters and length as far as the old standard can hold them."""
    return _with_values(data, [(_CAPTION, text), (_EDITOR, writer)])


def iptc_keywords(data: bytes) -> list[str]:
    """Return the keywords of IIM datasets."""
    datasets = list(_datasets(data))
    return [value.decode(_codec(datasets), "replace").strip("\0 \r\n") for key, value in datasets if key == _KEYWORD]


def with_iptc_keywords(data: bytes, names: Sequence[str]) -> bytes:
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
