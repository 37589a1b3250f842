"""Retrieved captions in, the text a language model continues out.

A template is a string with the place ``{captions}``. Two are at hand in each of a dozen languages: the one of the
paper, for models that follow instructions (FLAN-T5), and one with worked examples, for small models that only continue
a text. Another language is another line of ``PHRASES`` here, or a template of your own in the config of a pack. The
writer reads no text but words by their numbers, and writes in the style of the captions.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from recap.errors import InputError, check_name
from recap.language.base import Decoding, LanguageModel, PromptTooLongError
from recap.language.words import join_words, surface_words
from recap.types import Draft, Prompt, Vectors

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Order = Literal["worst-to-best", "best-to-worst", "random"]

PLACE = "{captions}"

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")

SLOTS = 32
"""Number of words outside the vocabulary that can be told apart in one prompt."""
SEQUENCES = 8
"""Number of captions that are read word by word."""
LENGTH = 18
"""Number of words of them that are read."""
BAG = 40
"""Number of words that are read for their votes."""
VOTERS = 100
"""Number of captions that vote."""
ENTRIES = SEQUENCES * LENGTH + BAG
"""Number of words that are read at most."""

_RANK_OFFSET = 20

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


@dataclass(frozen=True)
class Style:
    """How the captions of a prompt are written, so that new ones look like them."""

    captions: Sequence[str]

    def sentence(self, lower: Sequence[str]) -> str:
        """Return words in lower case as a sentence in this style."""
        written = [self._forms.get(word, word) for word in lower]
        capital, stop = self._habits
        if written and capital:
            written[0] = written[0][:1].upper() + written[0][1:]
        return join_words(written) + ("." if written and stop else "")

    @cached_property
    def _habits(self) -> tuple[bool, bool]:
        """Whether most captions begin with a capital, and end in a full stop."""
        half, captions = len(self.captions) / 2, self.captions
        return sum(c[:1].isupper() for c in captions) > half, sum(c.rstrip().endswith(".") for c in captions) > half

    @cached_property
    def _forms(self) -> dict[str, str]:
        """Return words that are mostly not in lower case inside a sentence, such as names, as they are written."""
        # somebody who shouts says nothing about names
        inside = [w for caption in self.captions if not caption.isupper() for w in surface_words(caption)[1:]]
        seen: dict[str, Counter[str]] = {word.casefold(): Counter() for word in inside if word != word.casefold()}
        for word in inside:
            if (lower := word.casefold()) in seen:
                seen[lower][word] += 1
        usual = {word: forms.most_common(1)[0][0] for word, forms in seen.items()}
        return {word: form for word, form in usual.items() if form != word}


@dataclass(frozen=True, slots=True)
class Reading:
    """The memory of one prompt, an entry for each word read."""

    tokens: Ints
    """Words by their number in the vocabulary; slots come after it."""
    shares: Floats
    """Each word's share of the votes."""
    places: Ints
    """Where in its caption each word stands; ``LENGTH`` for words read for their votes alone."""
    ranks: Ints
    """Which caption each word stands in, the nearest is 0; ``SEQUENCES`` for words read for their votes alone."""
    outside: tuple[int, ...]
    """The numbers, beyond the vocabulary, of the words in the slots."""

    def find_doubled(self) -> frozenset[int]:
        """Return the words that stand twice in a row in a caption that was read."""
        together = (self.ranks[1:] == self.ranks[:-1]) & (self.ranks[1:] < SEQUENCES)
        return frozenset(self.tokens[1:][together & (self.tokens[1:] == self.tokens[:-1])].tolist())

    def find_twice(self) -> frozenset[int]:
        """Return the words that stand more than once in a caption that was read."""
        counts = Counter(zip(self.ranks.tolist(), self.tokens.tolist(), strict=True))
        return frozenset(word for (rank, word), count in counts.items() if count > 1 and rank < SEQUENCES)


def read(captions: Sequence[Sequence[int]], vocabulary: int) -> Reading:
    """Return the memory for retrieved captions, nearest first.

    Args:
        captions: the words of each as numbers. Those below ``vocabulary`` are known, and all others stand for words
            outside it.
        vocabulary: the size of the vocabulary.
    """
    shares = _shares(captions[:VOTERS])
    voted = sorted(shares, key=lambda word: (-shares[word], word))
    outside = tuple(word for word in voted if word >= vocabulary)[:SLOTS]
    slot = {word: vocabulary + place for place, word in enumerate(outside)}
    rows = [
        (word, place, rank)
        for rank, caption in enumerate(captions[:SEQUENCES])
        for place, word in enumerate(caption[:LENGTH])
    ]
    rows += [(word, LENGTH, SEQUENCES) for word in voted[:BAG]]
    return Reading(
        tokens=np.array([word if word < vocabulary else slot.get(word, UNKNOWN) for word, _, _ in rows], np.int64),
        shares=np.array([shares[word] for word, _, _ in rows], np.float32),
        places=np.array([place for _, place, _ in rows], np.int64),
        ranks=np.array([rank for _, _, rank in rows], np.int64),
        outside=outside,
    )


def _shares(captions: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return for each word the share of the captions, nearer ones counting more, that use it."""
    weights = [1 / (rank + _RANK_OFFSET) for rank in range(len(captions))]
    votes: dict[int, float] = {}
    for weight, caption in zip(weights, captions, strict=True):
        for word in set(caption):
            votes[word] = votes.get(word, 0.0) + weight
    total = sum(weights)
    return {word: vote / total for word, vote in votes.items()}
