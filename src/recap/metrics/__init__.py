"""Caption metrics, exact and without Java."""

from __future__ import annotations

from recap.metrics.bleu import bleu, score_bleu
from recap.metrics.cider import Cider, CiderD, cider, cider_d
from recap.metrics.corpus import Corpus, References
from recap.metrics.frequencies import DocumentFrequencies
from recap.metrics.rouge import rouge_l, score_rouge_l
from recap.metrics.statistics import MetricResult, MetricWarning
from recap.metrics.tokenizer import tokenize

__all__ = [
    "Cider",
    "CiderD",
    "Corpus",
    "DocumentFrequencies",
    "MetricResult",
    "MetricWarning",
    "References",
    "bleu",
    "cider",
    "cider_d",
    "rouge_l",
    "score_bleu",
    "score_rouge_l",
    "tokenize",
]
