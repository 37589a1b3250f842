"""The part of the page about one picture. Everything that comes from outside is escaped here, and only here."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING

from recap.attribution import AttributedWord, Attribution, attribute
from recap.encoders.images import decode
from recap.errors import ImageError
from recap.types import Candidate, Caption, Evidence, ImageLike
from recap.words import same_word, surface_words

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 360
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
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


def card(name: str, link: str, shown: Image | None, caption: Caption, *, withheld: bool = False) -> str:
    """Return the part of the page about one picture; a ``withheld`` or unsure caption is shown as such."""
    attribution = attribute(caption)
    sure = caption.score if caption.confidence is None else caption.confidence
    words = _tag(caption, withheld) + _words(caption.text, attribution)
    return f"""<article class="card{" withheld" if withheld else ""}" data-sure="{sure:.4f}">
<a class="picture" href="{escape(link)}" aria-label="Open {plain(PurePath(name).name)}">{_image(shown)}</a>
<div class="about">
<h2 class="said" tabindex="0" aria-description="Arrow keys explore its words">{words}</h2>
<p class="facts">{_facts(caption)}</p>
{_unsupported(attribution.unsupported)}<h3>Retrieved captions{_common_source(caption.evidence)}</h3>
<ol class="rows">
{"".join(_evidence_rows(attribution))}</ol>
<details><summary>Candidates <small>({len(caption.candidates)}, chosen by {plain(caption.selection)})</small></summary>
<ol class="rows">
{"".join(_candidate_rows(caption.candidates))}</ol></details>
<p class="file">{plain(name)}</p>
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
<p class="facts">{plain(reason)}</p>
<p class="file">{plain(name)}</p>
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
    named = ", ".join(f"<b>{plain(word)}</b>" for word in words)
    return f'<p class="warning">In none of the captions below: {named}</p>\n'


def _words(text: str, attribution: Attribution) -> str:
    """Return the caption, each word with the places of the captions it comes from."""
    parts, done = [], 0
    for number, word in enumerate(attribution.words):
        parts += [plain(text[done : word.start]), _word(number, word)]
        done = word.end
    return "".join([*parts, plain(text[done:])])


def _word(number: int, word: AttributedWord) -> str:
    if word.kind == "common":
        return f'<span class="w common">{plain(word.text)}</span>'
    if word.kind == "nowhere":
        return f'<span class="w none" data-n="{number}">{plain(word.text)}</span>'
    sources = " ".join(str(source.evidence) for source in word.sources)
    strength = f"--s:{word.support:.2f}"
    return f'<span class="w some" data-n="{number}" data-from="{sources}" style="{strength}">{plain(word.text)}</span>'


def _evidence_rows(attribution: Attribution) -> Iterable[str]:
    """Yield the retrieved captions, with the words that are also the caption's marked by the number they have there."""
    best = max((item.similarity for item in attribution.evidence), default=1.0)
    alike = _common_source(attribution.evidence) != ""
    for place, item in enumerate(attribution.evidence):
        origin = "" if alike else plain(item.source) + (" (machine)" if item.synthetic else "")
        source = f'<small class="source">{origin}</small>' if origin else ""
        yield _row(item.similarity, best, f"{_marked(item, place, attribution)} {source}", f' data-i="{place}"')


def _common_source(evidence: Sequence[Evidence]) -> str:
    """Return where the captions are from, when people wrote them all and they are from one place."""
    origins = {(item.source, item.synthetic) for item in evidence if item.source or item.synthetic}
    if len(origins) != 1 or any(synthetic for _, synthetic in origins):
        return ""
    return f" <small>from {plain(next(iter(origins))[0])}</small>"


def _marked(item: Evidence, place: int, attribution: Attribution) -> str:
    ours = [
        (number, word.text.casefold())
        for number, word in enumerate(attribution.words)
        if any(source.evidence == place for source in word.sources)
    ]
    parts, done = [], 0
    for word in surface_words(item.text):
        start = item.text.index(word, done)
        numbers = " ".join(str(number) for number, text in ours if same_word(text, word.casefold()))
        parts.append(plain(item.text[done:start]))
        parts.append(f'<i data-n="{numbers}">{plain(word)}</i>' if numbers else plain(word))
        done = start + len(word)
    return "".join([*parts, plain(item.text[done:])])


def _candidate_rows(candidates: Sequence[Candidate]) -> Iterable[str]:
    best = max((item.score for item in candidates), default=1.0)
    for item in candidates:
        origin = '<small class="source">language model</small>' if item.origin == "lm" else ""
        yield _row(item.score, best, f"{plain(item.text)} {origin}")


def _row(value: float, best: float, content: str, attributes: str = "") -> str:
    width = max(0.0, min(1.0, value / best)) if best > 0 else 0.0
    bar = f'<data value="{value:.4f}" style="--v:{width:.3f}">{value:.2f}</data>'
    return f"<li{attributes}>{bar}<span>{content}</span></li>\n"
