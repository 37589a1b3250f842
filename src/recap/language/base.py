"""What every language model promises: a prompt in, candidate sentences with log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from recap.errors import InputError
from recap.types import Draft, Prompt


@dataclass(frozen=True, slots=True)
class Decoding:
    """How sentences are drawn from a language model.

    ``temperature=0`` is greedy decoding and gives one sentence. Otherwise ``samples`` sentences are drawn,
    from the ``top_k`` likeliest tokens (0: all) and the smallest set holding ``top_p`` of the probability.
    """

    samples: int = 10
    temperature: float = 0.3
    top_k: int = 0
    top_p: float = 0.9
    max_tokens: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_tokens < 1 or self.top_k < 0:
            raise InputError("samples and max_tokens must be at least 1, and top_k at least 0")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise InputError("temperature must be at least 0, and top_p in (0, 1]")


@runtime_checkable
class LanguageModel(Protocol):
    """Anything that writes candidate captions.

    The drafts for a prompt depend on that prompt and the decoding only, never on its neighbours in the batch.
    """

    name: str
    """The name it can be loaded by again, such as ``hf:google/flan-t5-large``."""

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``."""
        ...
