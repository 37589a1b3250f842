"""What a chat asks for, and answers in sentences: a caption, an alt text, keywords, or whether a caption is right.

There is no language model behind this that could talk. What was asked is told by a few words of the prompt, and what
cannot be done is said in the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recap.types import UNSURE_BELOW, Caption, Tag

Wish = Literal["caption", "alt", "tags", "judge", "other"]

ABILITIES = (
    "I caption pictures: send one, and ask for a caption, an alt text, tags, or whether a caption is right "
    '(Is "a dog on a sofa" right?).'
)
CANNOT = "I cannot answer that. " + ABILITIES

_QUOTED = re.compile(r"[\"\u201c\u201e]([^\"\u201c\u201d]{2,1000})[\"\u201d\u201c]")
_QUESTION = re.compile(
    r"^\W*(?:please\W+)?(?:answer\b.{0,40}?:\s*)?(?:is there|are there|(?:is|are) (?:this|that|it|these)|"
    r"(?:do|can) you see|do(?:es)? (?:this|the|it)(?: (?:image|picture|photo)?\s*)?"
    r"(?:show|contain|have)s?)\s+(.+?)\s*\?",
    re.IGNORECASE | re.DOTALL,
)
_WHERE = re.compile(r"\s+(?:in|on) (?:this|the) (?:image|picture|photo)(?:graph)?$", re.IGNORECASE)
_YES_NO = re.compile(
    r"\byes\b.{0,10}\bno\b|\b(?:right|correct|true|fit|fits|match|matches|describe|describes)\b", re.IGNORECASE
)
_TAGS = re.compile(r"\b(?:tag|tags|keyword|keywords|labels|hashtags)\b", re.IGNORECASE)
_ALT = re.compile(r"\balt(?:ernative)?\b", re.IGNORECASE)
_OTHER = re.compile(
    r"\b(?:how many|how much|count|why|who|where|when|translate|ocr|transcribe|read|poem|story|code|compare)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a prompt asks for."""

    wish: Wish
    statement: str = ""
    """The caption to be judged."""


def read_prompt(text: str) -> Request:
    """Return what a prompt asks for; one that says nothing else asks for a caption."""
    quoted, question = _QUOTED.search(text), _QUESTION.search(text)
    if quoted and _YES_NO.search(text):
        return Request("judge", quoted[1].strip())
    if question:
        return Request("judge", _WHERE.sub("", question[1])[:1000])
    if _TAGS.search(text):
        return Request("tags")
    if _ALT.search(text):
        return Request("alt")
    return Request("other" if _OTHER.search(text) else "caption")


def tell_caption(caption: Caption, wish: Wish) -> str:
    """Return a caption as an answer; an alt text stands alone, since programs put it into pages."""
    if wish == "alt":
        return caption.text
    sure = f" (I am not sure of this: {caption.confidence:.0%}.)" if caption.unsure and caption.confidence else ""
    return f"{CANNOT} What I can say of this picture: {caption.text}{sure}" if wish == "other" else caption.text + sure


def tell_tags(tags: Sequence[Tag]) -> str:
    """Return keywords as an answer."""
    return ", ".join(tag.text for tag in tags) or "I found no keyword that I am sure enough of."


def tell_judgement(statement: str, chance: float) -> str:
    """Return whether a caption is right, as an answer."""
    if chance >= UNSURE_BELOW:
        return f'Yes, "{statement}" is probably right ({chance:.0%} sure).'
    return f'No, "{statement}" is probably not right ({1 - chance:.0%} sure).'


def tell_json(caption: Caption, tags: Sequence[Tag]) -> str:
    """Return caption and keywords as a json object, for programs that ask for one."""
    values = {"caption": caption.text, "confidence": caption.confidence, "tags": [tag.text for tag in tags]}
    return json.dumps(values, ensure_ascii=False)
