"""One token at a time: the logits of a model in, the chosen tokens and their log-probabilities out.

The order is temperature, then the ``top_k`` likeliest, then the nucleus. The randomness comes in as uniform numbers
made for one prompt alone, and a token is where such a number falls in the cumulated probabilities: so neither the
device nor the other prompts of a batch have a say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recap.language.base import Decoding, prompt_seed

if TYPE_CHECKING:
    from torch import Tensor

_NUCLEUS_WIDTH = 64
"""So many of the likeliest tokens are looked at first; they nearly always hold the nucleus."""


def uniforms(decoding: Decoding, text: str) -> npt.NDArray[np.float32]:
    """Return the random numbers for one prompt: a row for each step, a column for each sample."""
    generator = np.random.default_rng(prompt_seed(decoding.seed, text))
    return generator.random((decoding.max_tokens, decoding.samples), dtype=np.float32)


def choose(logits: Tensor, uniform: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Return for each row of logits a token and its log-probability before temperature and cuts."""
    logprobs = logits.float().log_softmax(-1)
    if decoding.temperature == 0:
        tokens = logprobs.argmax(-1)
    else:
        tokens = _draw((logprobs / decoding.temperature).softmax(-1), uniform, decoding)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _draw(probabilities: Tensor, uniform: Tensor, decoding: Decoding) -> Tensor:
    """Draw a token from what top-k and the nucleus leave of each row."""
    likeliest, tokens = _likeliest(probabilities, decoding)
    cumulated = likeliest.cumsum(-1)
    total = cumulated[:, -1:] if decoding.top_k else 1.0
    # a token belongs to the nucleus as long as those before it do not fill it
    inside = (cumulated - likeliest) < decoding.top_p * total
    kept = likeliest * inside
    cumulated = kept.cumsum(-1)
    place = (cumulated <= uniform[:, None] * cumulated[:, -1:]).sum(-1, keepdim=True)
    # rounding may lift a number that is almost one beyond the last token kept
    place = place.minimum(inside.sum(-1, keepdim=True) - 1)
    return tokens.gather(-1, place)[:, 0]


def _likeliest(probabilities: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens in descending order: ``top_k`` of them, or as many as hold the nucleus."""
    size = probabilities.shape[-1]
    if decoding.top_k:
        values, tokens = probabilities.topk(min(decoding.top_k, size))
        return values, tokens
    width = min(_NUCLEUS_WIDTH, size) if decoding.top_p < 1 else size
    values, tokens = probabilities.topk(width)
    if width < size and bool((values.sum(-1) <= decoding.top_p).any()):
        values, tokens = probabilities.topk(size)
    return values, tokens
