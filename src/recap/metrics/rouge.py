"""ROUGE-L (Lin 2004) as coco-caption computes it: the longest common subsequence of words.

The best precision and the best recall are taken over the references apart, and may come from different ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recap.metrics.corpus import Corpus, MetricResult, Pairs, mean_result
from recap.metrics.ngrams import Floats, Ints, Sentences, ranges

BETA = 1.2
"""How much more recall weighs than precision."""

_WORD_BITS = 64
_BLOCK = 16384


def rouge_l(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricResult:
    """Return ROUGE-L of one candidate for each image."""
    return score_rouge_l(Corpus.of(candidates, references))


def score_rouge_l(corpus: Corpus) -> MetricResult:
    """Return ROUGE-L of candidates that are tokenised already."""
    pairs = corpus.pairs
    common = _common_subsequences(corpus.tokens, corpus.references.tokens, pairs)
    # coco-caption splits the empty sentence into one empty word
    lengths = np.maximum(corpus.tokens.lengths, 1)[pairs.candidate]
    reference_lengths = np.maximum(corpus.references.tokens.lengths, 1)[pairs.reference]
    precision = np.maximum.reduceat(common / lengths, pairs.starts)
    recall = np.maximum.reduceat(common / reference_lengths, pairs.starts)
    return mean_result("ROUGE-L", _f_measure(precision, recall))


def _f_measure(precision: Floats, recall: Floats) -> Floats:
    below = recall + BETA**2 * precision
    return np.divide((1 + BETA**2) * precision * recall, below, out=np.zeros_like(below), where=below > 0)


def _common_subsequences(candidates: Sentences, references: Sentences, pairs: Pairs) -> Ints:
    """Return the length of the longest common subsequence of every pair."""
    lengths = candidates.lengths[pairs.candidate]
    reference_lengths = references.lengths[pairs.reference]
    common: Ints = ((lengths == 0) & (reference_lengths == 0)).astype(np.int64)
    short = np.flatnonzero((lengths > 0) & (reference_lengths > 0) & (lengths <= _WORD_BITS))
    for start in range(0, len(short), _BLOCK):
        block = short[start : start + _BLOCK]
        common[block] = _bit_parallel(candidates, references, pairs.candidate[block], pairs.reference[block])
    for pair in np.flatnonzero(lengths > _WORD_BITS).tolist():
        candidate, reference = int(pairs.candidate[pair]), int(pairs.reference[pair])
        common[pair] = _long_subsequence(candidates[candidate].tolist(), references[reference].tolist())
    return common


def _bit_parallel(candidates: Sentences, references: Sentences, candidate: Ints, reference: Ints) -> Ints:
    """Walk through the references of many pairs at once; a machine word holds one row of the usual table.

    Bit i of the row is 0 where the common subsequence grows at word i of the candidate (Crochemore et al. 2001).
    """
    lengths = references.lengths[reference]
    places = ranges(references.offsets[reference], references.offsets[reference] + lengths)
    masks = _positions(candidates, candidate, lengths, references.words[places])
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    starts, falling = starts[order], -lengths[order]
    rows = np.full(len(candidate), ~np.uint64(0))
    for step in range(int(lengths.max(initial=0))):
        active = int(np.searchsorted(falling, -step))
        row = rows[:active]
        same = row & masks[starts[:active] + step]
        rows[:active] = (row + same) | (row - same)
    common = np.empty(len(candidate), np.int64)
    common[order] = _zero_bits(rows, candidates.lengths[candidate[order]])
    return common


def _positions(candidates: Sentences, candidate: Ints, lengths: Ints, word: Ints) -> npt.NDArray[np.uint64]:
    """Return bit masks of where each word stands in a candidate; ``lengths[i]`` words are for ``candidate[i]``."""
    distinct, nearest = np.unique(candidate, return_inverse=True)
    sizes = candidates.lengths[distinct]
    places = ranges(candidates.offsets[distinct], candidates.offsets[distinct] + sizes)
    sentence = np.repeat(np.arange(len(distinct)), sizes)
    position = places - candidates.offsets[distinct][sentence]
    stride = int(max(candidates.words[places].max(initial=0), word.max(initial=0))) + 1
    packed = np.sort((sentence * stride + candidates.words[places]) * _WORD_BITS + position)
    keys, position = packed // _WORD_BITS, packed % _WORD_BITS
    heads = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    masks = np.bitwise_or.reduceat(np.left_shift(np.uint64(1), position.astype(np.uint64)), heads)
    keys = keys[heads]
    wanted = np.repeat(nearest, lengths) * stride + word
    rank = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[rank] == wanted, masks[rank], np.uint64(0))


def _zero_bits(rows: npt.NDArray[np.uint64], lengths: Ints) -> Ints:
    """Count the zeros among the lowest ``lengths`` bits of each row."""
    bits = np.unpackbits(rows.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    zeros: Ints = ((bits == 0) & (np.arange(_WORD_BITS) < lengths[:, np.newaxis])).sum(axis=1)
    return zeros


def _long_subsequence(candidate: list[int], reference: list[int]) -> int:
    """Do the same for one pair whose candidate does not fit into a machine word."""
    positions: dict[int, int] = {}
    for index, word in enumerate(candidate):
        positions[word] = positions.get(word, 0) | 1 << index
    full = (1 << len(candidate)) - 1
    row = full
    for word in reference:
        same = row & positions.get(word, 0)
        row = (row + same | row - same) & full
    return len(candidate) - row.bit_count()
