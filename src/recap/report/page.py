"""The page itself, written picture by picture, so that a batch of any size takes no memory."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from recap import __version__
from recap.files import atomic_write
from recap.report.card import card, plain, problem_card, thumbnail
from recap.types import Caption, ImageLike


class HtmlReport:
    """A page that explains captions. It appears under its name when it is closed, whole.

    Every picture takes about 20 kB of the page, and browsers are at ease with some thousand of them.

        with HtmlReport("report.html", title="Holiday") as report:
            report.add("beach.jpg", captioner.caption("beach.jpg"))
    """

    def __init__(self, path: str | Path, title: str = "Captions") -> None:
        self._folder = Path(path).resolve().parent
        self._stack = ExitStack()
        self._file = self._stack.enter_context(atomic_write(path))
        self._open = True
        self._script = _asset("page.js")
        self._write(_head(plain(title), _asset("page.css"), self._script))

    def add(self, image_path: str | Path, caption: Caption, *, picture: ImageLike | None = None) -> None:
        """Add a picture with its caption; ``picture`` is what to show of a file that is no picture, such as a video."""
        shown = thumbnail(picture if picture is not None else image_path)
        self._write(card(str(image_path), self._link(image_path), shown, caption))

    def add_problem(self, image_path: str | Path, reason: str) -> None:
        """Add a file that could not be captioned, and why."""
        self._write(problem_card(str(image_path), reason))

    def close(self) -> None:
        """Finish the page and put it in place; closing twice does nothing."""
        if self._open:
            self._write(_foot(self._script))
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


def _asset(name: str) -> str:
    return (files("recap.report") / name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str) -> str:
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
model alone.</p>
<form class="tools" role="search" hidden>
<label>Find <input type="search" id="find" placeholder="word or file name" autocomplete="off"></label>
<label>Order <select id="order"><option value="">as captioned</option><option value="up">least sure first</option>
<option value="down">surest first</option></select></label>
<output id="count" for="find"></output>
</form>
</header>
<main id="pictures" tabindex="-1">
"""


def _foot(script: str) -> str:
    return f"""</main>
<p id="told" class="unseen" role="status" aria-live="polite"></p>
<script>{script}</script>
</body>
</html>
"""
