"""How a pack captions: what can be changed without fitting anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

from recap.errors import InputError, check_name
from recap.language.base import Decoding
from recap.language.prompt import PromptTemplate, WorkedExample
from recap.selection import RULES
from recap.types import check_kinds

Candidates = Literal["lm", "retrieved", "both"]

EXAMPLES = 3
"""Number of worked examples that a pack keeps."""

EXAMPLE_CAPTIONS = 8
"""Number of retrieved captions in a worked example."""

BATCH = 32
"""Batch size: images that are retrieved for, written about and judged at a time."""

LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


class SettingChanges(TypedDict, total=False):
    """What ``ReCap.caption``, ``configured`` and ``fit`` take beside their own arguments, so that editors know it."""

    method: str
    k: int
    pool: int
    candidates: Candidates
    selection: str | None
    decoding: Decoding
    language: str
    prompt: PromptTemplate | None
    examples: tuple[WorkedExample, ...]
    samples: int
    temperature: float
    top_k: int
    top_p: float
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides which caption comes out, apart from map, datastore and language model."""

    method: str = "procrustes"
    """The map that carries images into caption space."""
    k: int = 13
    """How many retrieved captions a language model reads, and how many are shown as evidence."""
    pool: int = 100
    """How many retrieved captions may themselves become the caption, and take part in the consensus."""
    candidates: Candidates = "both"
    """Where candidates come from; without a language model always ``retrieved``."""
    selection: str | None = None
    """How the best candidate is chosen: one of ``recap.selection.RULES``; ``cosine`` is the paper's. None takes what
    suits the candidates: ``likely`` for those of the writer, ``consensus`` for others."""
    decoding: Decoding = field(default_factory=Decoding)
    language: str = "en"
    """The language of the captions, and so of the prompt: a tag such as ``de`` or ``pt-BR``."""
    prompt: PromptTemplate | None = None
    """None takes what suits the model: the paper's, or worked examples for one that only continues a text."""
    examples: tuple[WorkedExample, ...] = ()
    """Worked examples, taken from the pairs the pack was fitted with."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.pool < 1:
            raise InputError(f"k and pool must be at least 1, not {self.k} and {self.pool}")
        check_name("candidates", self.candidates, get_args(Candidates))
        if not LANGUAGE_TAG.fullmatch(self.language):
            raise InputError(f"a language is given by its tag, such as en, de or pt-BR, not {self.language!r}")
        if self.selection is not None:
            check_name("selection", self.selection, RULES.names())

    def but(self, **changes: Any) -> Self:
        """Return these settings with some changed; those of ``Decoding`` are named as if they were here."""
        own = {name: value for name, value in changes.items() if name in _names(Settings)}
        decoding = {name: value for name, value in changes.items() if name in _names(Decoding)}
        unknown = changes.keys() - own.keys() - decoding.keys()
        if unknown:
            known = sorted(_names(Settings) | _names(Decoding))
            raise InputError(f"unknown setting {', '.join(sorted(unknown))}; known: {', '.join(known)}")
        changed = replace(self, **own)
        return replace(changed, decoding=replace(changed.decoding, **decoding)) if decoding else changed

    def template(self, *, completes: bool) -> PromptTemplate:
        """Return the prompt template for a model that only continues a text, or for one that follows instructions."""
        if self.prompt is not None:
            return self.prompt
        if completes and self.examples:
            return PromptTemplate.worked(self.examples, self.language)
        return PromptTemplate.paper(self.language)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, ready for json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that ``as_dict`` described; what is left out has its default."""
        try:
            decoding = Decoding(**values.get("decoding", {}))
            prompt = values.get("prompt")
            examples = tuple(WorkedExample(tuple(e["captions"]), e["caption"]) for e in values.get("examples", ()))
            given = {"decoding": decoding, "prompt": prompt and PromptTemplate.from_dict(prompt), "examples": examples}
            made = cls(**{**values, **given})
            for part in (made, made.decoding, *([made.prompt] if made.prompt else []), *made.examples):
                check_kinds(part)
            return made
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"a setting is unknown to this version, or has a value of the wrong kind ({error})"
            ) from error


def _names(kind: type[Settings] | type[Decoding]) -> set[str]:
    return {known.name for known in fields(kind)}
