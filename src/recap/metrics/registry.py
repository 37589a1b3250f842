"""Metrics by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeAlias

from recap.errors import InputError, UnknownNameError
from recap.metrics import clip
from recap.metrics.cider import Cider, CiderD
from recap.metrics.clip import PREFIX
from recap.metrics.corpus import MetricResult
from recap.metrics.java import java_spice, meteor
from recap.metrics.judge import Judge
from recap.metrics.overlap import score_rouge_l
from recap.metrics.spice import chair, spice
from recap.registry import Entry, Registry


@dataclass(frozen=True)
class Metric(Entry):
    """A metric that users choose by name."""

    title: str
    """Its name in a report."""
    score: Callable[[Judge], MetricResult]
    """Computes it, or raises ``NotAvailableError``."""
    optional: bool = False
    """Whether what it runs in may be missing in many ways: any ``RecapError`` then means that it is not available."""


def _bleu(words: int) -> Metric:
    what = f"n-grams of up to {words} words" if words > 1 else "words that references have"
    return Metric(f"bleu-{words}", what, f"BLEU-{words}", lambda j: j.bleus[words - 1])


def _texts(function: Callable[..., MetricResult], *, bar: bool = False) -> Callable[[Judge], MetricResult]:
    """Return what computes a metric by a function of captions and references; ``bar`` if it can show one."""
    return lambda judge: judge.score_texts(function, bar=bar)


def _shared(scorer: clip.Scorer, prefix: str = PREFIX, **needs: Any) -> Callable[[Judge], MetricResult]:
    return lambda judge: judge.score_shared(prefix, scorer, **needs)


def _aligned(scorer: clip.Scorer, **needs: Any) -> Callable[[Judge], MetricResult]:
    return lambda judge: judge.score_aligned(scorer, **needs)


_parsed = partial(Metric, optional=True, extra="spice", requires=("spacy",))
_java = partial(Metric, optional=True)

BLEU = ("bleu-1", "bleu-2", "bleu-3", "bleu-4")
METRICS = Registry(
    "metric",
    (
        *map(_bleu, (1, 2, 3, 4)),
        Metric("rouge-l", "longest common subsequence", "ROUGE-L", lambda j: score_rouge_l(j.corpus)),
        _java("meteor", "METEOR 1.5, in Java", "METEOR", _texts(meteor, bar=True)),
        Metric("cider-d", "n-grams by rarity", "CIDEr-D", lambda j: CiderD(j.references).score_corpus(j.corpus)),
        Metric("cider-plain", "CIDEr as published", "CIDEr", lambda j: Cider(j.references).score_corpus(j.corpus)),
        _parsed("spice", "scene graphs", "SPICE-py", _texts(spice, bar=True)),
        _java("spice-java", "scene graphs, in Java", "SPICE", _texts(java_spice)),
        _parsed("softspice", "cosines of scene-graph phrases", "SoftSPICE", lambda j: j.score_softspice()),
        Metric("chair", "things no reference names", "CHAIR", _texts(chair)),
        Metric("clip-s", "cosine with the picture", "CLIP-S", _shared(lambda i, t, r, f: clip.clip_s(i, t))),
        Metric("refclip-s", "CLIP-S with references", "RefCLIP-S", _shared(clip.refclip_s, references=True)),
        Metric("clip+dn", "CLIP-S without the means", "CLIP+DN", lambda j: j.score_dn(references=False)),
        Metric("clip+dn-ref", "CLIP+DN with references", "CLIP+DN-Ref", lambda j: j.score_dn(references=True)),
        Metric("clip+dn*", "CLIP+DN, means of what is judged", "CLIP+DN*", lambda j: j.score_dn_star()),
        Metric("aclip-s", "aligned cosine: the paper's", "aCLIP-S", _aligned(lambda i, t, r, f: clip.aligned_s(i, t))),
        Metric("refaclip-s", "aCLIP-S with references", "RefaCLIP-S", _aligned(clip.ref_aligned_s, references=True)),
        Metric("acos", "aligned cosine, not clipped", "aCos", _aligned(lambda i, t, r, f: clip.cosines(i, t))),
        Metric("refacos", "aCos with references", "RefaCos", _aligned(clip.ref_aligned_cosine, references=True)),
        Metric("mid", "mutual information divergence", "MID", lambda j: j.score_mid()),
        Metric(
            "clipscore-100",
            "CLIP-S as some print it",
            "CLIPScore (100 cos)",
            _shared(lambda i, t, r, f: clip.clip_score_100(i, t), ""),
        ),
    ),
    group="recap.metrics",
)

ALIASES: dict[str, tuple[str, ...]] = {
    "bleu": BLEU,
    "rouge": ("rouge-l",),
    # what coco-caption prints under this name
    "cider": ("cider-d",),
}


OwnMetric: TypeAlias = Callable[..., Any]
"""A user's metric: captions and their references (lists, or None) to a score for each caption, or one for all."""


def own_metric(given: str | OwnMetric) -> Metric:
    """Return a metric that is a function of the user's, or where it is found: ``module:name``, ``file.py:name``."""
    function = _load_function(given) if isinstance(given, str) else given
    title = str(getattr(function, "__name__", type(function).__name__))
    return Metric(title, "a metric of your own", title, lambda judge: judge.score_own(function, title))


def _load_function(place: str) -> OwnMetric:
    module, _, name = place.rpartition(":")
    try:
        if module.endswith(".py"):
            spec = spec_from_file_location(Path(module).stem, module)
            assert spec is not None and spec.loader is not None  # noqa: PT018
            loaded = module_from_spec(spec)
            spec.loader.exec_module(loaded)
        else:
            loaded = import_module(module)
        found: OwnMetric = getattr(loaded, name)
    except (ImportError, AttributeError, OSError) as error:
        raise InputError(f"the metric {place!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InputError(f"the metric {place!r} is no function")
    return found


def choose_metrics(metrics: str | OwnMetric | Sequence[str | OwnMetric]) -> list[Metric]:
    """Return the metrics that are meant, in order: those of names, and functions of the user's."""
    given = metrics.split(",") if isinstance(metrics, str) else [metrics] if callable(metrics) else list(metrics)
    chosen: dict[str, Metric] = {}
    for item in given:
        if callable(item) or ":" in item:
            metric = own_metric(item.strip() if isinstance(item, str) else item)
            chosen[f"own {metric.name}"] = metric
        else:
            chosen.update((name, METRICS.get(name)) for name in parse_metrics(item))
    return list(chosen.values())


def parse_metrics(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names that are meant, in order, each once."""
    names = metrics.split(",") if isinstance(metrics, str) else list(metrics)
    known = ALIASES | {"all": METRICS.names()}
    found: list[str] = []
    for name in names:
        key = name.strip().lower().replace("siglip", "clip").replace("_", "-")
        if ":" in key:
            found.append(name.strip())
            continue
        if key not in known and key not in METRICS:
            raise UnknownNameError("metric", name.strip(), [*known, *METRICS.names()])
        found += known.get(key, (key,))
    return tuple(dict.fromkeys(found))
