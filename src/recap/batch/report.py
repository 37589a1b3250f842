"""One self-contained page about a batch: each picture with its caption, and what the caption rests on.

Everything that comes from outside is escaped here, and only here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from string import Template
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import quote

from recap import __version__
from recap.encoders.images import decode
from recap.errors import ImageError, InputError
from recap.files import atomic_write
from recap.language.words import AttributedWord, Attribution, attribute, same_word, surface_words
from recap.selection import describe_choice
from recap.types import Candidate, Caption, Evidence, Found, ImageLike

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 360
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_text(text: str) -> str:
    """Return a text for a page: escaped, and without characters that would hide or turn around what follows."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def thumbnail(picture: ImageLike) -> Image | None:
    """Return a small picture for the page, or None when it cannot be read."""
    try:
        image = decode(picture, shorter_side=_SIDE // 2)
    except ImageError:
        return None
    image.thumbnail((_SIDE, _SIDE))
    return image


def card(
    name: str, link: str, shown: Image | None, caption: Caption, *, withheld: bool = False, language: str = "en"
) -> str:
    """Return the part of the page about one picture; a ``withheld`` or unsure caption is shown as such."""
    attribution = attribute(caption, language=language)
    sure = caption.score if caption.confidence is None else caption.confidence
    words, choice = _tag(caption, withheld) + _words(caption.text, attribution), describe_choice(caption.selection)
    return f"""<article class="card{" withheld" if withheld else ""}" data-sure="{sure:.4f}">
<a class="picture" href="{escape(link)}" aria-label="Open {escape_text(PurePath(name).name)}">{_image(shown)}</a>
<div class="about">
<h2 class="said" tabindex="0" aria-description="Arrow keys explore its words">{words}</h2>
<p class="facts">{_facts(caption)}</p>
{_unsupported(attribution.unsupported)}<h3>Retrieved captions{_common_source(caption.evidence)}</h3>
<ol class="rows">
{"".join(_evidence_rows(attribution))}</ol>
<details><summary>Candidates <small>({len(caption.candidates)}, {escape_text(choice)})</small></summary>
<ol class="rows">
{"".join(_candidate_rows(caption.candidates))}</ol></details>
<p class="file">{escape_text(name)}</p>
</div>
</article>
"""


def _tag(caption: Caption, withheld: bool) -> str:
    """Return what is said before a caption that is not to be relied on."""
    if withheld:
        return '<span class="tag">Withheld</span> '
    return (
        '<span class="tag unsure" title="probably wrong"><span aria-hidden="true">?</span> Unsure</span> '
        if caption.unsure
        else ""
    )


def problem_card(name: str, reason: str) -> str:
    """Return the part of the page about a file without a caption."""
    return f"""<article class="card problem" data-sure="-1">
<div class="picture"><span class="blank">no picture</span></div>
<div class="about">
<h2 class="said">No caption</h2>
<p class="facts">{escape_text(reason)}</p>
<p class="file">{escape_text(name)}</p>
</div>
</article>
"""


def _image(shown: Image | None) -> str:
    if shown is None:
        return '<span class="blank">no preview</span>'
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=72)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{shown.width}" height="{shown.height}"'
    return f'<img loading="lazy" decoding="async" alt="" {size} src="data:image/jpeg;base64,{data}">'


def _facts(caption: Caption) -> str:
    parts = []
    if caption.confidence is not None:
        level = "low" if caption.unsure else "high" if caption.confidence >= 0.7 else "middle"
        parts.append(f'<span class="chip {level}">{caption.confidence:.0%} sure</span>')
    parts.append(
        f'<span title="cosine of caption and picture in caption space">aligned cosine {caption.score:.2f}</span>'
    )
    if caption.candidates and caption.candidates[0].origin == "lm":
        parts.append("written by the language model")
    return " ".join(parts)


def _unsupported(words: Sequence[str]) -> str:
    if not words:
        return ""
    named = ", ".join(f"<b>{escape_text(word)}</b>" for word in words)
    return f'<p class="warning">In none of the captions below: {named}</p>\n'


def _words(text: str, attribution: Attribution) -> str:
    """Return the caption, each word with the places of the captions it comes from."""
    parts, done = [], 0
    for number, word in enumerate(attribution.words):
        parts += [escape_text(text[done : word.start]), _word(number, word)]
        done = word.end
    return "".join([*parts, escape_text(text[done:])])


def _word(number: int, word: AttributedWord) -> str:
    if word.kind == "common":
        return f'<span class="w common">{escape_text(word.text)}</span>'
    if word.kind == "nowhere":
        return f'<span class="w none" data-n="{number}">{escape_text(word.text)}</span>'
    sources = " ".join(str(source.evidence) for source in word.sources)
    attributes = f'class="w some" data-n="{number}" data-from="{sources}" style="--s:{word.support:.2f}"'
    return f"<span {attributes}>{escape_text(word.text)}</span>"


def _evidence_rows(attribution: Attribution) -> Iterable[str]:
    """Yield the retrieved captions, with the words that are also the caption's marked by the number they have there."""
    best = max((item.similarity for item in attribution.evidence), default=1.0)
    alike = _common_source(attribution.evidence) != ""
    for place, item in enumerate(attribution.evidence):
        origin = "" if alike else escape_text(item.source) + (" (machine)" if item.synthetic else "")
        source = f'<small class="source">{origin}</small>' if origin else ""
        yield _row(item.similarity, best, f"{_marked(item, place, attribution)} {source}", f' data-i="{place}"')


def _common_source(evidence: Sequence[Evidence]) -> str:
    """Return where the captions are from, when people wrote them all and they are from one place."""
    origins = {(item.source, item.synthetic) for item in evidence if item.source or item.synthetic}
    if len(origins) != 1 or any(synthetic for _, synthetic in origins):
        return ""
    return f" <small>from {escape_text(next(iter(origins))[0])}</small>"


def _marked(item: Evidence, place: int, attribution: Attribution) -> str:
    ours = [
        (number, word.text.casefold())
        for number, word in enumerate(attribution.words)
        if any(source.evidence == place for source in word.sources)
    ]
    parts, done = [], 0
    for word in surface_words(item.text):
        start = item.text.index(word, done)
        numbers = " ".join(
            str(number) for number, text in ours if same_word(text, word.casefold(), attribution.language)
        )
        parts.append(escape_text(item.text[done:start]))
        parts.append(f'<i data-n="{numbers}">{escape_text(word)}</i>' if numbers else escape_text(word))
        done = start + len(word)
    return "".join([*parts, escape_text(item.text[done:])])


def _candidate_rows(candidates: Sequence[Candidate]) -> Iterable[str]:
    best = max((item.score for item in candidates), default=1.0)
    for item in candidates:
        origin = '<small class="source">language model</small>' if item.origin == "lm" else ""
        yield _row(item.score, best, f"{escape_text(item.text)} {origin}")


def _row(value: float, best: float, content: str, attributes: str = "") -> str:
    width = max(0.0, min(1.0, value / best)) if best > 0 else 0.0
    bar = f'<data value="{value:.4f}" style="--v:{width:.3f}">{value:.2f}</data>'
    return f"<li{attributes}>{bar}<span>{content}</span></li>\n"


def write_thumbnails(file: BinaryIO, title: str, found: Iterable[Found], link: Callable[[str], str]) -> None:
    """Write a page of the pictures that were found for a text, best first; ``link`` gives the address of each."""
    head = _head(escape_text(title), _asset("report.css"), "", "", template="thumbnails.html")
    file.write(head.encode("utf-8", "replace"))
    for item in found:
        name, address = escape_text(PurePath(item.path).name), escape(link(item.path))
        label = f'<span class="name">{name}</span> <data value="{item.similarity:.4f}">{item.similarity:.2f}</data>'
        tile = f'<li><a href="{address}">{_image(thumbnail(item.path))}<span class="label">{label}</span></a></li>\n'
        file.write(tile.encode("utf-8", "replace"))
    file.write(_template(1, "thumbnails.html").substitute().encode())


PICTURES = 2000
"""Pictures on one page, of about 20 kB each: browsers are still at ease with that."""

GENERATOR = b'<meta name="generator" content="recap '
"""Every page has this in its head."""


class HtmlReport:
    """A page that explains captions. It appears under its name when it is closed, whole.

    More than ``pictures`` go on in further pages beside it, ``report-page-2.html`` after ``report.html``, each with
    links to the ones before and after. All appear when the report is closed, or none.

        with HtmlReport("report.html", title="Holiday") as report:
            report.add("beach.jpg", captioner.caption("beach.jpg"))
    """

    def __init__(
        self, path: str | Path, title: str = "Captions", *, pictures: int = PICTURES, language: str = "en"
    ) -> None:
        self._path = Path(path)
        self._title = title
        self._pictures = pictures
        self._language = language
        self._folder = Path(path).resolve().parent
        self._stack = ExitStack()
        self._open = True
        self._script = _asset("report.js")
        self._pages = 0
        self._file = self._next_page()

    @property
    def pages(self) -> list[Path]:
        """The files of the report, in their order."""
        return [self._place(number) for number in range(1, self._pages + 1)]

    def add(
        self, image_path: str | Path, caption: Caption, *, picture: ImageLike | None = None, withheld: bool = False
    ) -> None:
        """Add a picture with its caption, which is shown as ``withheld`` if it was not sure enough to be given.

        ``picture`` is what to show of a file that is none, such as a video.
        """
        shown = thumbnail(picture if picture is not None else image_path)
        self._add(
            card(str(image_path), self._link(image_path), shown, caption, withheld=withheld, language=self._language)
        )

    def add_problem(self, image_path: str | Path, reason: str) -> None:
        """Add a file that could not be captioned, and why."""
        self._add(problem_card(str(image_path), reason))

    def close(self) -> None:
        """Finish the page and put it in place; closing twice does nothing."""
        if self._open:
            self._write(_foot(self._script, self._links(last=True)))
            self._open = False
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._open = False
            self._stack.__exit__(kind, error, trace)

    def _add(self, part: str) -> None:
        if self._added == self._pictures:
            self._write(_foot(self._script, self._links(last=False)))
            self._file = self._next_page()
        self._added += 1
        self._write(part)

    def _next_page(self) -> BinaryIO:
        """Begin a page; those before stay open, so that all are put in place together."""
        self._pages += 1
        self._added = 0
        title, place = escape_text(self._title), self._place(self._pages)
        if self._pages > 1:
            title += f", page {self._pages}"
            _check_ours(place)
        self._file = self._stack.enter_context(atomic_write(place))
        # how many follow is not known yet: the way there is at the end of the page
        self._write(_head(title, _asset("report.css"), self._script, self._links(last=True)))
        return self._file

    def _place(self, number: int) -> Path:
        return self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-page-{number}")

    def _links(self, *, last: bool) -> str:
        """Return the way to the pages before and after; nothing where there is only one."""
        neighbours = [("Previous page", self._pages - 1)] if self._pages > 1 else []
        if not last:
            neighbours.append(("Next page", self._pages + 1))
        links = [f'<a href="./{quote(os.fsencode(self._place(n).name))}">{text}</a>' for text, n in neighbours]
        return f'<p class="pages">{" ".join(links)}</p>\n' if links else ""

    def _write(self, text: str) -> None:
        self._file.write(text.encode("utf-8", "replace"))

    def _link(self, image_path: str | Path) -> str:
        return link_from(self._folder, image_path)


def link_from(folder: Path, path: str | Path) -> str:
    """Return the address of a file as seen from a page in a folder, safe against names that look like others."""
    absolute = Path(path).absolute()
    try:
        relative = Path(os.path.relpath(absolute, folder)).as_posix()
    except ValueError:  # on another drive
        return absolute.as_uri()
    return "./" + quote(os.fsencode(relative), safe="/")


def _check_ours(place: Path) -> None:
    """Raise if a file that nobody named is somebody else's."""
    if not place.exists():
        return
    with place.open("rb") as file:
        ours = GENERATOR in file.read(2000)
    if not ours:
        raise InputError(f"{place} is there, and no page of recap: move it away, or name another page")


def _asset(name: str) -> str:
    return (files("recap.batch") / name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str, links: str, template: str = "report.html") -> str:
    # whatever a caption or a file's name may smuggle in, the browser runs this script only and loads nothing
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return _template(0, template).substitute(title=title, style=style, links=links, policy=policy, version=__version__)


def _foot(script: str, links: str) -> str:
    return _template(1).substitute(script=script, footer=links and f"<footer>{links}</footer>")


def _template(half: int, name: str = "report.html") -> Template:
    """Return what comes before the pictures of a page, or after them."""
    return Template((_asset("head.html") + _asset(name)).split("<!-- pictures -->\n")[half])
