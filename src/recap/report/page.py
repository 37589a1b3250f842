"""The page itself, written picture by picture, so that a batch of any size takes no memory."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import quote

from recap import __version__
from recap.errors import InputError
from recap.files import atomic_write
from recap.report.card import card, plain, problem_card, thumbnail
from recap.types import Caption, ImageLike

PICTURES = 2000
"""So many are on one page, of about 20 kB each: browsers are still at ease with that."""

GENERATOR = b'<meta name="generator" content="recap '
"""Every page has this in its head."""


class HtmlReport:
    """A page that explains captions. It appears under its name when it is closed, whole.

    More than ``pictures`` go on in further pages beside it, ``report-page-2.html`` after ``report.html``, each with
    links to the ones before and after. All appear when the report is closed, or none.

        with HtmlReport("report.html", title="Holiday") as report:
            report.add("beach.jpg", captioner.caption("beach.jpg"))
    """

    def __init__(self, path: str | Path, title: str = "Captions", *, pictures: int = PICTURES) -> None:
        self._path = Path(path)
        self._title = title
        self._pictures = pictures
        self._folder = Path(path).resolve().parent
        self._stack = ExitStack()
        self._open = True
        self._script = _asset("page.js")
        self._pages = 0
        self._file = self._next_page()

    @property
    def pages(self) -> list[Path]:
        """The files of the report, in their order."""
        return [self._place(number) for number in range(1, self._pages + 1)]

    def add(
        self, image_path: str | Path, caption: Caption, *, picture: ImageLike | None = None, withheld: bool = False
    ) -> None:
        """Add a picture with its caption.

        Args:
            image_path: its file.
            caption: what was said about it.
            picture: what to show of a file that is no picture, such as a video.
            withheld: whether the caption was not sure enough to be given; it is shown as such.
        """
        shown = thumbnail(picture if picture is not None else image_path)
        self._add(card(str(image_path), self._link(image_path), shown, caption, withheld=withheld))

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
        title, place = plain(self._title), self._place(self._pages)
        if self._pages > 1:
            title += f", page {self._pages}"
            _check_ours(place)
        self._file = self._stack.enter_context(atomic_write(place))
        # how many follow is not known yet: the way there is at the end of the page
        self._write(_head(title, _asset("page.css"), self._script, self._links(last=True)))
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
        """Return the address of a picture as seen from the page, safe against names that look like something else."""
        absolute = Path(image_path).absolute()
        try:
            relative = Path(os.path.relpath(absolute, self._folder)).as_posix()
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
    return (files("recap.report") / name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str, links: str) -> str:
    # whatever a caption or a file's name may smuggle in, the browser runs this script only and loads nothing
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="recap {__version__}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#pictures">Skip to the pictures</a>
<header>
<h1>{title}</h1>
<p class="lead">Written by a machine: recap {__version__}. Point at a word, or focus a caption and use the arrow keys,
to see which retrieved captions the word comes from. <span class="key some">Underlined</span> words are in some of
them, the stronger the more; <span class="key none">dotted</span> ones are in none, and come from the language
model alone. A caption that is marked as unsure is probably wrong.</p>
{links}<form class="tools" role="search" hidden>
<label>Find <input type="search" id="find" placeholder="word or file name" autocomplete="off"></label>
<label>Order <select id="order"><option value="">as captioned</option><option value="up">least sure first</option>
<option value="down">surest first</option></select></label>
<output id="count" for="find"></output>
</form>
</header>
<main id="pictures" tabindex="-1">
"""


def _foot(script: str, links: str) -> str:
    return f"""</main>
{links and f"<footer>{links}</footer>"}
<p id="told" class="unseen" role="status" aria-live="polite"></p>
<script>{script}</script>
</body>
</html>
"""
