"""BLEU-1 to BLEU-4 (Papineni et al. 2002) as coco-caption computes them.

Counts are clipped to the largest count in any one reference; the length compared with is that of the closest reference,
the shorter one when two are equally close. Corpus BLEU comes from summed counts and is not the mean over images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recap.metrics.corpus import Corpus, MetricResult, bootstrap_sums
from recap.metrics.ngrams import MAX_N, Floats, Ints

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
