"""Alternative texts for the pictures of an HTML page, with every other byte left as it is.

A parser that builds a tree cannot give back the page it read, so the page is only scanned for its tags, and texts are
put in where they are missing.

A picture that loads late has its source in ``data-src`` or the like, and one of several sizes may have it in
``srcset`` alone. What it does not do: ``<area>`` and ``<input type=image>``, backgrounds of style sheets, and pictures
that scripts make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from recap.alt.tags import Tag, decode_page, encode_page, start_tags
from recap.confidence import is_trusted
from recap.datasets.images import IMAGE_SUFFIXES, find_images
from recap.errors import ImageError
from recap.files import atomic_write
from recap.types import Caption

PAGE_SUFFIXES = frozenset({".html", ".htm"})
MARK = ' data-alt-source="recap"'
"""The attribute that says a machine wrote the text beside it."""
SAFE = 0.6
"""Captions less sure are withheld unless a bound is given: of 199 above it one was wrong to one of its two readers."""

Status = Literal[
    "filled", "described", "decorative", "remote", "embedded", "template", "sourceless", "unreadable", "withheld"
]
"""What became of a picture: only ``filled`` ones were changed; ``unreadable`` ones could not be; of ``withheld`` ones
the caption was not sure enough."""

Describe = Callable[[Sequence[Path | str]], Iterable[Caption | ImageError]]
"""Captions for pictures, in order: ``ReCap.caption_each``."""

_LATE = ("data-src", "data-lazy-src", "data-original", "data-srcset", "data-lazy-srcset")
"""Where scripts that load pictures late look for the source; ``src`` then holds a placeholder, or nothing."""

_SPACER = 3  # a picture no larger than this holds a layout in place and shows nothing
_TEMPLATE = re.compile(r"\{\{|\{%|\{#|<%|<\?|\$\{")
_TEMPLATE_NAME = re.compile(r"[{}<%$]")
_BOUND_ALT = frozenset({":alt", "v-bind:alt", "x-bind:alt", "[alt]", "[attr.alt]"})
_PLACEHOLDER = re.compile(
    r"alt(?:[ -]?text)?|pic|placeholder|todo|untitled|(?:image|img|photo|picture|dscn?|pict?)(?:[-_ ]?\d+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one ``<img>``, and its text or the reason."""

    line: int
    src: str
    status: Status
    text: str = ""

    @property
    def short_src(self) -> str:
        """The source for messages: a picture inside the page has a long one."""
        return self.src if len(self.src) <= 80 else f"{self.src[:77]}..."


@dataclass(frozen=True, slots=True)
class FilledPage:
    """A page with its new texts, and what became of each picture, in the order of the page."""

    content: bytes
    findings: tuple[Finding, ...]

    def count(self, status: Status) -> int:
        """Return how many pictures ended this way."""
        return sum(finding.status == status for finding in self.findings)

    @property
    def summary(self) -> str:
        """What became of the pictures, in a line."""
        filled, known = self.count("filled"), self.count("described") + self.count("decorative")
        withheld = f" ({self.count('withheld')} not sure enough)" if self.count("withheld") else ""
        left = len(self.findings) - filled - known
        return f"{filled} filled, {known} had a text or are decoration, {left} left alone{withheld}"

    def write(self, target: Path, *, like: Path) -> None:
        """Write the page with the mode of the one it was made from, ``like``; one that has not changed is left."""
        if target == like and like.read_bytes() == self.content:
            return
        with atomic_write(target) as file:
            file.write(self.content)
            Path(file.name).chmod(like.stat().st_mode)


def find_pages(given: Iterable[str]) -> tuple[list[tuple[Path, Path | None]], list[Path]]:
    """Return the pages that names stand for, those of a folder with the folder; and those that lie outside of it."""
    found: list[tuple[Path, Path | None]] = []
    outside: list[Path] = []
    for name in given:
        site = Path(name) if Path(name).is_dir() else None
        for page in find_images([name], PAGE_SUFFIXES):
            if site and not page.resolve().is_relative_to(site.resolve()):
                outside.append(page)
            else:
                found.append((page, site))
    return found, outside


def fill(
    page: bytes,
    describe: Describe,
    *,
    base: str | Path,
    root: str | Path | None = None,
    empty: bool = False,
    placeholders: bool = False,
    remote: bool = False,
    min_confidence: float | None = None,
) -> FilledPage:
    """Put captions in for the missing alternative texts of local pictures, and on request of remote ones.

    ``alt=""`` says that a picture is decoration, and is believed.

    Args:
        page: the page as it is on the disk, in any encoding a browser would read.
        describe: gives the captions, such as ``captioner.caption_each``.
        base: the folder that sources start from: the page's own, as a rule.
        root: the folder of the site, in which sources that begin with ``/`` are looked for; by default ``base``.
        empty: whether ``alt=""`` is filled as well.
        placeholders: whether texts that say nothing, such as ``image``, ``IMG_1234`` or the file's name, are replaced.
        remote: whether pictures of the web are fetched and described as well.
        min_confidence: captions less sure than this are withheld; they need a calibrated pack. None withholds those
            below ``SAFE``, where captions have a confidence; 0 takes all.
    """
    text, codec = decode_page(page)
    lines = _LineCounter(text)
    tags, findings = list(_image_tags(text)), {}
    wanted: dict[int, tuple[Tag, Path | str]] = {}
    for tag, address in tags:
        status, reason = _classify(tag, address, empty, placeholders)
        if status == "remote" and remote and (url := _web_address(address)):
            status, wanted[tag.start] = "filled", (tag, url)
        elif status == "filled":
            wanted[tag.start] = (tag, _local_path(address, Path(base), Path(root or base)))
        findings[tag.start] = Finding(lines.at(tag.start), _source(tag), status, reason)
    sources = list(dict.fromkeys(source for _, source in wanted.values()))
    captions = dict(zip(sources, _describe(sources, describe, min_confidence), strict=True))
    edits = []
    for start, (tag, source) in wanted.items():
        status, caption = captions[source]
        old = findings[start]
        findings[start] = Finding(old.line, old.src, status, caption)
        if status == "filled":
            edits.append(_edit(tag, caption, codec))
    return FilledPage(encode_page(_splice(text, edits), codec), tuple(findings.values()))


def _describe(sources: Sequence[Path | str], describe: Describe, minimum: float | None) -> Iterator[tuple[Status, str]]:
    """Yield for each picture its text, or why it has none."""
    shown = [source for source in sources if isinstance(source, str) or not _is_spacer(source)]
    results = dict(zip(shown, describe(shown), strict=True)) if shown else {}
    for source in sources:
        result = results.get(source)
        if result is None:
            yield "decorative", "a spacer of a few pixels"
        elif isinstance(result, ImageError):
            yield "unreadable", str(result)
        elif _is_doubtful(result, minimum):
            yield "withheld", f"only {result.confidence:.0%} sure: {_plain(result.text)}"
        else:
            yield "filled", _plain(result.text)


def _is_doubtful(caption: Caption, minimum: float | None) -> bool:
    if minimum is None:
        return caption.confidence is not None and caption.confidence < SAFE
    return minimum > 0 and not is_trusted(caption, minimum)


def _classify(tag: Tag, address: SplitResult, empty: bool, placeholders: bool) -> tuple[Status, str]:
    """Say what is to become of a picture before it is looked at."""
    alt, src = tag.get("alt").strip(), _source(tag)
    if any(_TEMPLATE_NAME.search(name) for name in tag.attributes):
        return "template", "the tag is completed by a template"
    if _BOUND_ALT & tag.attributes.keys() or tag.get("aria-label").strip() or "aria-labelledby" in tag.attributes:
        return "described", ""
    if tag.get("role").lower() in ("presentation", "none") or tag.get("aria-hidden").lower() == "true":
        return "decorative", "marked as presentation"
    if "alt" in tag.attributes:
        if not alt and not empty:
            return "decorative", ""
        if alt and not (placeholders and _is_placeholder(alt, address)):
            return "described", alt
    if not src:
        return "sourceless", "there is no src, srcset or data-src"
    if _TEMPLATE.search(src):
        return "template", "the source is filled in by a template"
    if address.scheme == "data":
        return "embedded", "the picture is inside the page"
    if address.netloc or address.scheme not in ("", "file"):
        return "remote", "not a file here; --remote fetches pictures of the web" if _web_address(address) else "no file"
    return "filled", ""


def _is_placeholder(alt: str, address: SplitResult) -> bool:
    """Tell whether a text is a file's name or a word that stands for a missing text."""
    file = Path(unquote(address.path)).name.casefold()
    folded = alt.casefold()
    named = folded in (file, Path(file).stem) or Path(folded).suffix in IMAGE_SUFFIXES
    return named or _PLACEHOLDER.fullmatch(alt) is not None


def _source(tag: Tag) -> str:
    """Return where a picture comes from: what is loaded late, the source, or the first of several sizes."""
    for name in (*_LATE, "src", "srcset"):
        value = tag.get(name).strip()
        # candidates are parted by a comma and white space; addresses may hold commas
        first = value.split(maxsplit=1)[0].rstrip(",") if value and name.endswith("srcset") else value
        if first:
            return first
    return ""


def _web_address(address: SplitResult) -> str:
    """Return the address of a picture of the web; nothing where it is no such address."""
    if not address.netloc or address.scheme not in ("", "http", "https"):
        return ""
    return address._replace(scheme=address.scheme or "https").geturl()


def _local_path(address: SplitResult, base: Path, root: Path) -> Path:
    path = unquote(address.path)
    if address.scheme == "file":
        return Path(path)
    return root / path.lstrip("/") if path.startswith("/") else base / path


def _is_spacer(path: Path) -> bool:
    from PIL import Image

    from recap.encoders.images import formats

    try:
        if not path.is_file():  # opening a pipe would wait for somebody to write to it
            return False
        with Image.open(path, formats=formats()) as picture:
            return min(picture.size) <= _SPACER
    except Exception:  # the captioner reads it again, and says what is wrong with it
        return False


def _plain(text: str) -> str:
    """Return a caption on one line, without control characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", " ".join(text.split()))


def _edit(tag: Tag, text: str, codec: str) -> tuple[int, int, str]:
    """Return what is to be replaced, from where to where, and by what."""
    alt = f' alt="{escape(text)}"{"" if tag.get("data-alt-source") else MARK}'
    if not codec.startswith("utf"):
        alt = alt.encode("ascii", "xmlcharrefreplace").decode()
    if "alt" not in tag.attributes:
        return tag.name_end, tag.name_end, alt
    old = tag.attributes["alt"]
    return old.start, old.end, alt.lstrip()


def _splice(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    parts, done = [], 0
    for start, end, new in edits:
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def _image_tags(text: str) -> Iterator[tuple[Tag, SplitResult]]:
    """Yield the ``<img>`` tags with their addresses, the page's ``<base>`` taken into account."""
    start_address = ""
    for tag in start_tags(text):
        if tag.name == "base" and not start_address:
            start_address = tag.get("href").strip()
        elif tag.name == "img":
            yield tag, _join_address(start_address, _source(tag))


def _join_address(start: str, src: str) -> SplitResult:
    try:
        return urlsplit(urljoin(start, src))
    except ValueError:  # such as an unfinished [ of an IPv6 address
        return urlsplit("invalid:")


class _LineCounter:
    """Line numbers of places that only go forward."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._line = text, 0, 1

    def at(self, place: int) -> int:
        self._line += self._text.count("\n", self._place, place)
        self._place = place
        return self._line
