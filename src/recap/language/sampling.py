"""From the probabilities of the next token to one token: temperature, then the ``top_k`` likeliest, then the nucleus.

The randomness comes in as uniform numbers made for one prompt alone, and a token is where such a number falls in the
cumulated probabilities: so neither the device nor the other prompts of a batch have a say. The arrays are of numpy or
of torch; llama.cpp and CTranslate2 sample inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recap.language.base import Decoding, prompt_seed

NUCLEUS_WIDTH = 64
"""How many of the likeliest tokens are sorted at first; they nearly always hold the nucleus."""


def uniforms(decoding: Decoding, text: str) -> npt.NDArray[np.float32]:
    """Return the random numbers for one prompt: a row for each step, a column for each sentence."""
    generator = np.random.default_rng(prompt_seed(decoding.seed, text))
    return generator.random((decoding.max_tokens, decoding.sentences), dtype=np.float32)


def choose(probabilities: Any, uniform: Any, decoding: Decoding) -> Any:
    """Return a token for each row of probabilities."""
    if decoding.temperature == 0:
        return probabilities.argmax(1)
    return _draw(_temper(probabilities, decoding.temperature), uniform, decoding)


def _temper(probabilities: Any, temperature: float) -> Any:
    """Return the probabilities at a temperature."""
    if not isinstance(probabilities, np.ndarray):  # powers take torch twice as long
        return (probabilities.log() / temperature).softmax(1)
    scaled = (probabilities / probabilities.max(1, keepdims=True)) ** (1 / temperature)
    return scaled / scaled.sum(1, keepdims=True)


def _draw(probabilities: Any, uniform: Any, decoding: Decoding) -> Any:
    """Draw a token from what top-k and the nucleus leave of each row."""
    likeliest, tokens = _likeliest(probabilities, decoding)
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
    """Return the likeliest tokens in descending order: ``top_k`` of them, or as many as hold the nucleus."""
    size = probabilities.shape[1]
    values, tokens = _top(probabilities, min(decoding.top_k or NUCLEUS_WIDTH, size))
    if not decoding.top_k and (values.sum(1) <= decoding.top_p).any():
        values, tokens = _top(probabilities, size)
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
