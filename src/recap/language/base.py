"""What every language model promises: a prompt in, candidate sentences with log-probabilities out.

One sampler goes from the probabilities of the next token to one token: temperature, then the ``top_k`` likeliest, then
the nucleus. The randomness comes in as uniform numbers made for one prompt alone, and a token is where such a number
falls in the cumulated probabilities: so neither the device nor the other prompts of a batch have a say. The arrays are
of numpy or of torch; llama.cpp and CTranslate2 sample inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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


NUCLEUS_WIDTH = 64
"""How many of the likeliest tokens torch sorts at first; they nearly always hold the nucleus."""

NUCLEUS_FLOORS = (1e-4, 1e-6, 0.0)
"""The least probability of the tokens that numpy sorts, lower and lower until they hold the nucleus."""


def uniforms(decoding: Decoding, text: str) -> npt.NDArray[np.float32]:
    """Return the random numbers for one prompt: a row for each step, a column for each sentence."""
    generator = np.random.default_rng(prompt_seed(decoding.seed, text))
    return generator.random((decoding.max_tokens, decoding.sentences), dtype=np.float32)


def draw_tokens(probabilities: Any, uniform: Any, decoding: Decoding, rows: Any = slice(None)) -> Any:
    """Return a token for each number; they belong to ``rows`` of probabilities, by default one to each."""
    if decoding.temperature == 0:
        return probabilities.argmax(1)[rows]
    return _draw(probabilities, uniform, decoding, rows)


def _temper(probabilities: Any, temperature: float) -> Any:
    """Return the probabilities at a temperature."""
    if not isinstance(probabilities, np.ndarray):  # powers take torch twice as long
        return (probabilities.log() / temperature).softmax(1)
    scaled = (probabilities / probabilities.max(1, keepdims=True)) ** (1 / temperature)
    return scaled / scaled.sum(1, keepdims=True)


def _draw(probabilities: Any, uniform: Any, decoding: Decoding, rows: Any) -> Any:
    """Draw a token from what top-k and the nucleus leave of each row."""
    likeliest, tokens = (found[rows] for found in _likeliest(probabilities, decoding))
    cumulated = likeliest.cumsum(1)
    total = cumulated[:, -1:] if decoding.top_k else 1
    # a token belongs to the nucleus as long as those before it do not fill it
    inside = (cumulated - likeliest) < decoding.top_p * total
    kept = (likeliest * inside).cumsum(1)
    place = (kept <= uniform[:, None] * kept[:, -1:]).sum(1)
    # rounding may lift a number that is almost one beyond the last token kept
    place = place.clip(max=inside.sum(1) - 1)
    return tokens[list(range(len(place))), place]


def _likeliest(probabilities: Any, decoding: Decoding) -> tuple[Any, Any]:
    """Return the likeliest tokens at a temperature, in descending order: ``top_k``, or as many as hold the nucleus."""
    size = probabilities.shape[1]
    tempered = _temper(probabilities, decoding.temperature)
    if decoding.top_k or not isinstance(probabilities, np.ndarray):
        values, tokens = _top(tempered, min(decoding.top_k or NUCLEUS_WIDTH, size))
        if not decoding.top_k and (values.sum(1) <= decoding.top_p).any():
            values, tokens = _top(tempered, size)
        return values, tokens
    for floor in NUCLEUS_FLOORS:
        values, tokens = _above(tempered, floor)
        if (values.sum(1) > decoding.top_p).all():
            break
    return values, tokens


def _above(probabilities: npt.NDArray[Any], floor: float) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the tokens above a probability in descending order, rows filled up with zeros."""
    row, token = np.divmod(np.flatnonzero(probabilities > floor), probabilities.shape[1])
    found = probabilities[row, token]
    order = np.lexsort((token, -found, row))
    counts = np.bincount(row, minlength=len(probabilities))
    place = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
    values = np.zeros((len(probabilities), max(counts.max(), 1)), probabilities.dtype)
    tokens = np.zeros(values.shape, np.int64)
    values[row, place], tokens[row, place] = found[order], token[order]
    return values, tokens


def _top(probabilities: Any, width: int) -> tuple[Any, Any]:
    if not isinstance(probabilities, np.ndarray):
        values, tokens = probabilities.topk(width)
        return values, tokens
    if width < probabilities.shape[1]:
        # sorting all tokens would take longer than computing their probabilities
        order = np.argpartition(-probabilities, width - 1, axis=1)[:, :width]
    else:
        order = np.broadcast_to(np.arange(width), probabilities.shape)
    values = np.take_along_axis(probabilities, order, 1)
    ranked = np.lexsort((order, -values), axis=1)
    return np.take_along_axis(values, ranked, 1), np.take_along_axis(order, ranked, 1)
