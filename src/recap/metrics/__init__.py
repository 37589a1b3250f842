"""Caption metrics, exact and without Java, and their agreement with people."""

from __future__ import annotations

from recap.metrics.cider import Cider, CiderD, DocumentFrequencies, cider, cider_d
from recap.metrics.clip import aclip_s, clip_dn, clip_dn_ref, clip_s, mid, refaclip_s, refclip_s
from recap.metrics.corpus import Corpus, MetricResult, MetricWarning, References
from recap.metrics.correlation import correlate, kendall_tau
from recap.metrics.evaluate import evaluate
from recap.metrics.overlap import bleu, rouge_l, score_bleu, score_rouge_l
from recap.metrics.report import Report
from recap.metrics.significance import compare
from recap.metrics.spice import chair, soft_spice
from recap.metrics.tokenizer import tokenize

__all__ = [
    "Cider",
    "CiderD",
    "Corpus",
    "DocumentFrequencies",
    "MetricResult",
    "MetricWarning",
    "References",
    "Report",
    "aclip_s",
    "bleu",
    "chair",
    "cider",
    "cider_d",
    "clip_dn",
    "clip_dn_ref",
    "clip_s",
    "compare",
    "correlate",
    "evaluate",
    "kendall_tau",
    "mid",
    "refaclip_s",
    "refclip_s",
    "rouge_l",
    "score_bleu",
    "score_rouge_l",
    "soft_spice",
    "tokenize",
]
