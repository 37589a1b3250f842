"""What every language model promises: a prompt in, candidate sentences with log-probabilities out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from recap.errors import InputError
from recap.files import file_sha256
from recap.types import Draft, Prompt


@dataclass(frozen=True, slots=True)
class Decoding:
    """How sentences are drawn from a language model.

    ``temperature=0`` is greedy decoding and gives one sentence. Otherwise ``samples`` sentences are drawn,
    from the ``top_k`` likeliest tokens (0: all) and the smallest set holding ``top_p`` of the probability.
    """

    samples: int = 10
    temperature: float = 0.5
    top_k: int = 0
    top_p: float = 0.95
    max_tokens: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_tokens < 1 or self.top_k < 0:
            raise InputError("samples and max_tokens must be at least 1, and top_k at least 0")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise InputError("temperature must be at least 0, and top_p in (0, 1]")

    @property
    def sentences(self) -> int:
        """How many sentences a prompt gets: one when greedy."""
        return self.samples if self.temperature else 1


class PromptTooLongError(InputError):
    """A prompt and the sentence to come do not fit into the model's context. Nothing is ever cut silently."""

    def __init__(self, model: str, tokens: int, room: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens where {model} has room for {room}: give it fewer retrieved captions (k), "
            "fewer worked examples, or a model with a longer context"
        )
        self.tokens = tokens
        self.room = room


def prompt_seed(seed: int, text: str) -> int:
    """Return the seed for one prompt: it depends on the user's seed and the prompt's text, and on nothing else.

    It has 31 bits, because the largest unsigned 32-bit value means "any seed" to two of the backends.
    """
    digest = hashlib.sha256(f"{seed}\n{text}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def files_fingerprint(paths: Iterable[Path], *others: str) -> str:
    """Return the sha256 of what decides about a model's sentences: its files, by name and content, and ``others``."""
    digest = hashlib.sha256("\n".join(others).encode())
    for path in sorted(paths):
        status = path.stat()
        digest.update(f"\n{path.name} {_sha256(path, status.st_size, status.st_mtime_ns)}".encode())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, modified: int) -> str:
    """Return the sha256 of a file; one that has not changed is read once."""
    return file_sha256(path)


def model_fingerprint(model: LanguageModel | None) -> str:
    """Return the fingerprint of a language model; the name of one that has none, and nothing where there is none."""
    return "" if model is None else getattr(model, "fingerprint", model.name)


@runtime_checkable
class LanguageModel(Protocol):
    """Anything that writes candidate captions.

    The drafts for a prompt depend on that prompt and the decoding only, never on its neighbours in the batch.
    A sentence ends at the model's end token, at a newline or after ``max_tokens``; the token that ends it is not part
    of its log-probability.
    """

    name: str
    """The name it can be loaded by again, such as ``hf:google/flan-t5-large``."""
    completes: bool
    """Whether it only goes on with a text, so that worked examples help it, instead of following an instruction."""

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and all else that decides what it writes; models of one name may differ in it."""
        ...

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``.

        A prompt that does not fit raises ``PromptTooLongError``.
        """
        ...
