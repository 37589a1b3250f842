"""Retrieved captions in, the text a language model continues out.

A template is a string with the place ``{captions}``. Two are at hand in each of a dozen languages: the one of the
paper, for models that follow instructions (FLAN-T5), and one with worked examples, for small models that only continue
a text. Another language is another line of ``PHRASES`` here, or a template of your own in the config of a pack.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal, Self, get_args

from recap.errors import InputError, check_name
from recap.language.base import Decoding, LanguageModel, PromptTooLongError
from recap.types import Draft, Prompt, Vectors

Order = Literal["worst-to-best", "best-to-worst", "random"]

PLACE = "{captions}"

PHRASES = {
    "de": ("Ähnliche Bilder zeigen:", "Dieses Bild zeigt:"),
    "en": ("Similar images show:", "This image shows:"),
    "es": ("Imágenes similares muestran:", "Esta imagen muestra:"),
    "fr": ("Des images similaires montrent :", "Cette image montre :"),
    "it": ("Immagini simili mostrano:", "Questa immagine mostra:"),
    "ja": ("似た画像の説明：", "この画像の説明："),
    "ko": ("비슷한 이미지의 설명:", "이 이미지의 설명:"),
    "nl": ("Vergelijkbare afbeeldingen tonen:", "Deze afbeelding toont:"),
    "pl": ("Podobne obrazy przedstawiają:", "Ten obraz przedstawia:"),
    "pt": ("Imagens semelhantes mostram:", "Esta imagem mostra:"),
    "ru": ("Похожие изображения показывают:", "Это изображение показывает:"),
    "sv": ("Liknande bilder visar:", "Den här bilden visar:"),
    "tr": ("Benzer görsellerin açıklamaları:", "Bu görselin açıklaması:"),
    "zh": ("相似的图片显示：", "这张图片显示："),
}
"""What comes before the retrieved captions and before the caption to be written, by language."""

SEPARATORS = {"ja": "、", "zh": "；"}
"""What stands between two captions where it is not a comma and a space."""

PAPER = {language: f"{similar} {PLACE} {this}" for language, (similar, this) in PHRASES.items()}
"""The prompt of the paper, by language."""

WORKED = {language: f"{similar} {PLACE}\n{this}" for language, (similar, this) in PHRASES.items()}
"""The prompt of one worked example, and of the question after them, by language."""


def trim_caption(caption: str, *, final_stop: bool = False) -> str:
    """Return the caption on one line without outer whitespace and, unless wanted, without its final full stop."""
    text = " ".join(caption.split())
    return text if final_stop else text.rstrip(" .。")


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """What was retrieved for an image, most similar first, and what a person wrote about it."""

    captions: tuple[str, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How retrieved captions become a prompt.

    ``order`` says where the most similar caption stands: last (``worst-to-best``, nearest to where the model starts
    to write), first, or anywhere (``random``: always the same for the same captions).
    """

    text: str = PAPER["en"]
    separator: str = ", "
    order: Order = "worst-to-best"
    final_stop: bool = False
    """Whether retrieved captions keep their full stop; in a list with commas they should not."""
    examples: tuple[WorkedExample, ...] = ()

    def __post_init__(self) -> None:
        if self.text.count(PLACE) != 1:
            raise InputError(f"a prompt template must hold {PLACE} exactly once; this one reads {self.text!r}")
        check_name("order of captions", self.order, get_args(Order))

    @classmethod
    def paper(cls, language: str = "en", *, order: Order = "worst-to-best") -> Self:
        """Return the template of the paper."""
        return cls(*_in_language(PAPER, language), order=order)

    @classmethod
    def worked(cls, examples: Iterable[WorkedExample], language: str = "en", *, order: Order = "worst-to-best") -> Self:
        """Return the template that shows a completion model a few worked examples first."""
        return cls(*_in_language(WORKED, language), order=order, examples=tuple(examples))

    def render(self, captions_best_first: Sequence[str], vector: Vectors | None = None) -> Prompt:
        """Return the prompt for the captions retrieved for one image."""
        captions = self._arrange(captions_best_first)
        worked = [
            f"{self._ask(self._arrange(e.captions))} {trim_caption(e.caption, final_stop=True)}\n\n"
            for e in self.examples
        ]
        return Prompt(text="".join(worked) + self._ask(captions), captions=captions, vector=vector)

    def _ask(self, captions: Sequence[str]) -> str:
        """Put the captions into the template; braces inside a caption mean nothing."""
        before, after = self.text.split(PLACE)
        return before + self.separator.join(captions) + after

    def _arrange(self, captions_best_first: Sequence[str]) -> tuple[str, ...]:
        """Return the captions trimmed and in prompt order."""
        captions = [trim_caption(caption, final_stop=self.final_stop) for caption in captions_best_first]
        captions = [caption for caption in captions if caption]
        if not captions:
            raise InputError("a prompt needs at least one retrieved caption that is not empty")
        if self.order == "random":
            digest = hashlib.sha256("\n".join(captions).encode()).digest()
            random.Random(digest).shuffle(captions)
        elif self.order == "worst-to-best":
            captions.reverse()
        return tuple(captions)

    def as_dict(self) -> dict[str, Any]:
        """Return the template as plain values, ready for json."""
        values = asdict(self)
        values["examples"] = [{"captions": list(e.captions), "caption": e.caption} for e in self.examples]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the template that ``as_dict`` described; what is left out has its default."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InputError(f"unknown settings of a prompt template: {', '.join(sorted(unknown))}")
        try:
            examples = tuple(WorkedExample(tuple(e["captions"]), e["caption"]) for e in values.get("examples", ()))
        except (KeyError, TypeError) as error:
            raise InputError("every worked example of a prompt template needs 'captions' and 'caption'") from error
        return cls(**{**values, "examples": examples})


def _in_language(templates: Mapping[str, str], language: str) -> tuple[str, str]:
    """Return the template and the separator of a language; that of Brazil or Austria is the one of the language."""
    base = language.lower().partition("-")[0]
    if base not in templates:
        raise InputError(
            f"no prompt template in {language!r}; known: {', '.join(sorted(templates))}. "
            f"Give PromptTemplate a text of your own that holds {PLACE}"
        )
    return templates[base], SEPARATORS.get(base, ", ")


def write_drafts(
    model: LanguageModel, decoding: Decoding, prompt: Callable[[int, int], Prompt], counts: Sequence[int]
) -> list[list[Draft]]:
    """Return the drafts of a model for many images.

    ``prompt(row, k)`` gives the prompt with the k nearest captions of an image, ``counts`` how many each should have.
    Where prompts are too long for the model, the less similar half of the captions is left out until they fit.
    """
    try:
        return model.write([prompt(row, k) for row, k in enumerate(counts)], decoding)
    except PromptTooLongError:
        return [_write_what_fits(model, decoding, partial(prompt, row), k) for row, k in enumerate(counts)]


def _write_what_fits(model: LanguageModel, decoding: Decoding, prompt: Callable[[int], Prompt], k: int) -> list[Draft]:
    while k:
        try:
            return model.write([prompt(k)], decoding)[0]
        except PromptTooLongError:
            k //= 2
    return []
