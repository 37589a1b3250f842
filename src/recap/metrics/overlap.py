"""BLEU and ROUGE-L as coco-caption computes them: words that a caption has in common with references.

BLEU-1 to BLEU-4 (Papineni et al. 2002) count n-grams, clipped to the largest count in any one reference; the length
compared with is that of the closest reference, the shorter one when two are equally close. Corpus BLEU comes from
summed counts and is not the mean over images.

ROUGE-L (Lin 2004) is the longest common subsequence of words. The best precision and the best recall are taken over the
references apart, and may come from different ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recap.metrics.corpus import Corpus, MetricResult, Pairs, bootstrap_sums, mean_result
from recap.metrics.ngrams import MAX_N, Floats, Ints, Sentences, ranges

_TINY, _SMALL = 1e-15, 1e-9

REPLICATES = 200
"""Bootstrap samples behind a standard error: it is then known to about 5 %."""


def bleu(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> list[MetricResult]:
    """Return BLEU-1, BLEU-2, BLEU-3 and BLEU-4 of one candidate for each image.

    ``replicates`` bootstrap samples of images give the standard errors; 0 leaves them out (NaN).
    """
    return score_bleu(Corpus.of(candidates, references), replicates=replicates, seed=seed)


def score_bleu(corpus: Corpus, *, replicates: int = REPLICATES, seed: int = 0) -> list[MetricResult]:
    """Return BLEU-1 to BLEU-4 of candidates that are tokenised already."""
    counts = bleu_counts(corpus).astype(np.float64)
    per_image = bleu_of_counts(counts)
    values = bleu_of_counts(counts.sum(axis=0, keepdims=True))[0]
    errors = np.full(MAX_N, np.nan)
    if replicates > 1 and len(corpus) > 1:
        errors = bootstrap_sums(counts, bleu_of_counts, replicates=replicates, seed=seed).std(axis=0, ddof=1)
    return [
        MetricResult(f"BLEU-{n + 1}", float(values[n]), per_image[:, n].copy(), float(errors[n])) for n in range(MAX_N)
    ]


def bleu_counts(corpus: Corpus) -> Ints:
    """Return for each candidate: n-grams that match, n-grams it has (n = 1..4), its length, the closest length."""
    lengths = corpus.words.lengths
    matches = [_matches(corpus, n) for n in range(MAX_N)]
    guesses = [np.maximum(lengths - n, 0) for n in range(MAX_N)]
    return np.column_stack([*matches, *guesses, lengths, _closest_lengths(corpus, lengths)])


def _matches(corpus: Corpus, n: int) -> Ints:
    counts, grouped = corpus.counts[n], corpus.references.counts[n]
    found, group = corpus.found[n]
    clipped = np.minimum(counts.count[found], grouped.maximum[group])
    return np.bincount(counts.sentence[found], clipped, len(corpus)).astype(np.int64)


def _closest_lengths(corpus: Corpus, lengths: Ints) -> Ints:
    pairs = corpus.pairs
    of_references = corpus.references.words.lengths[pairs.reference]
    # one number that sorts by distance, then by length
    stride = int(of_references.max()) + 1
    rank = np.abs(of_references - lengths[pairs.candidate]) * stride + of_references
    return np.minimum.reduceat(rank, pairs.starts) % stride


def bleu_of_counts(counts: Floats) -> Floats:
    """Return BLEU-1..4 of each row of counts."""
    matches, guesses = counts[:, :MAX_N], counts[:, MAX_N : 2 * MAX_N]
    products = np.cumprod((matches + _TINY) / (guesses + _SMALL), axis=1)
    ratio = (counts[:, -2] + _TINY) / (counts[:, -1] + _SMALL)
    brevity = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return products ** (1 / np.arange(1, MAX_N + 1)) * brevity[:, np.newaxis]


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
