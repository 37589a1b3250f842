"""XMP packets: a description put in, everything else kept as it was written.

The packet is not parsed into a tree and written again, which would rename prefixes and fold line breaks of attributes:
expat says where the old values stand, they are cut out, and the new ones are put in before ``</rdf:RDF>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def description(packet: bytes) -> tuple[str, str]:
    """Return the description of a packet and who wrote it; the default language, or the first there is."""
    reading = _read(packet)
    text = reading.texts.get("x-default") or next(iter(reading.texts.values()), "")
    return text.strip(), reading.writer.strip()


def with_description(packet: bytes | None, text: str, writer: str) -> bytes:
    """Return a packet that describes the picture with ``text``, in place of the descriptions it had."""
    packet, reading = _opened(packet)
    return _replaced(packet, reading, reading.old, _properties(text, writer))


def keywords(packet: bytes) -> list[str]:
    """Return the keywords of a packet."""
    return _read(packet).keywords


def with_keywords(packet: bytes | None, names: Sequence[str]) -> bytes:
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
