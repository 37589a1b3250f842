"""The tags of an HTML page and where they stand, and the encoding that turns the page back into the same bytes.

It goes through a page as a browser's tokenizer does. ``html.parser`` knows where a tag begins but not where an
attribute does, takes what stands in ``<title>`` or ``<textarea>`` for tags in older versions of Python, and stops at
some broken pages.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

_SPACE = "\t\n\f\r "
_BLANKS = re.compile(f"[{_SPACE}]*")
_BETWEEN = re.compile(f"[{_SPACE}/]*")
_NAME = re.compile(f"[^{_SPACE}/>][^{_SPACE}/>=]*")
_UNQUOTED = re.compile(f"[^{_SPACE}>]*")
_TAG = re.compile(rf"<(/?)([a-zA-Z][^{_SPACE}/>]*)|<!--|<!\[CDATA\[|<\?(?:php|=)|<%|<[!?/]")
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>", "<?php": "?>", "<?=": "?>", "<%": "%>"}
_RAW = frozenset({"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"})
_CHARSET = re.compile(
    rb"""<meta[^>]*?charset\s*=\s*["']?\s*([\w:.-]+)|^\s*<\?xml[^>]*?encoding\s*=\s*["']([\w:.-]+)""", re.I
)

_AS_CP1252 = frozenset({"iso-8859-1", "latin1", "ascii", "us-ascii", "idna", "punycode"})
"""What browsers take for Windows' code page; the last two they do not have, and Python's take too long."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute with its value, and from where to where it stands."""

    start: int
    end: int
    value: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A start tag: its name in lower case, where it and its name end, and the first attribute of each name."""

    name: str
    start: int
    name_end: int
    attributes: dict[str, Attribute]

    def get(self, name: str) -> str:
        """Return the value of an attribute; nothing when there is none."""
        return self.attributes[name].value if name in self.attributes else ""


def start_tags(text: str) -> Iterator[Tag]:
    """Yield the start tags of a page; comments, scripts and other raw text are passed over."""
    place = 0
    while found := _TAG.search(text, place):
        if found[2] is None:
            place = _skip_markup(text, found)
            continue
        attributes, end = _parse_attributes(text, found.end())
        if end is None:
            return
        place, name = end, found[2].lower()
        if found[1]:
            continue
        yield Tag(name, found.start(), found.end(), attributes)
        if name in _RAW:
            closing = re.compile(rf"</{re.escape(name)}(?=[{_SPACE}/>])", re.IGNORECASE).search(text, place)
            place = closing.start() if closing else len(text)


def _skip_markup(text: str, found: re.Match[str]) -> int:
    """Return where a comment, a declaration or an instruction ends."""
    if found[0] == "<!--" and (short := re.compile("-?>").match(text, found.end())):
        return short.end()
    closing = _ENDS.get(found[0], ">")
    end = text.find(closing, found.end())
    return len(text) if end < 0 else end + len(closing)


def _parse_attributes(text: str, place: int) -> tuple[dict[str, Attribute], int | None]:
    """Return the attributes from ``place`` on, the first of each name, and the end of the tag; None: it has none."""
    attributes: dict[str, Attribute] = {}
    while (place := _match_end(_BETWEEN, text, place)) < len(text):
        if text[place] == ">":
            return attributes, place + 1
        start = place
        place = _match_end(_NAME, text, start)
        name, value = text[start:place].lower(), ""
        equals = _match_end(_BLANKS, text, place)
        if text[equals : equals + 1] == "=":
            begin = _match_end(_BLANKS, text, equals + 1)
            quote = text[begin : begin + 1]
            if quote and quote in "\"'":
                close = text.find(quote, begin + 1)
                if close < 0:
                    break
                value, place = text[begin + 1 : close], close + 1
            else:
                place = _match_end(_UNQUOTED, text, begin)
                value = text[begin:place]
        attributes.setdefault(name, Attribute(start, place, unescape(value)))
    return attributes, None


def _match_end(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place


def decode_page(page: bytes) -> tuple[str, str]:
    """Return a page as text, and the codec that turns it back into the same bytes."""
    for codec in (_declared_codec(page), "cp1252"):
        try:
            text = page.decode(codec, _errors(codec))
            if encode_page(text, codec) == page:
                return text, codec
        except (UnicodeError, LookupError):
            continue
    return page.decode("latin-1"), "latin-1"


def _declared_codec(page: bytes) -> str:
    """Return the encoding that a browser would take the page for, unless a server told it otherwise."""
    for mark, codec in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if page.startswith(mark):
            return codec
    found = _CHARSET.search(page[:4096])
    if not found:
        return "utf-8" if _is_utf8(page) else "cp1252"
    named = (found[1] or found[2]).decode("ascii").lower()
    if named.startswith("utf"):  # what can be read so far is no UTF-16, whatever it says
        return "utf-8"
    return "cp1252" if named.replace("_", "-") in _AS_CP1252 else named


def _is_utf8(page: bytes) -> bool:
    try:
        page.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_page(text: str, codec: str) -> bytes:
    """Return a text as the bytes that ``decode_page`` read it from."""
    return text.encode(codec, _errors(codec))


def _errors(codec: str) -> str:
    return "surrogatepass" if codec.startswith("utf-16") else "surrogateescape"
