"""Metrics by name, and the judge who computes them over one set of captions; what several need is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from recap.alignment import LinearAlignment
from recap.datasets.captions import Given
from recap.encoders.base import Encoder
from recap.errors import EncoderMismatchError, InputError, UnknownNameError
from recap.metrics import clip
from recap.metrics.cider import Cider, CiderD
from recap.metrics.clip import PREFIX, Judged, mid
from recap.metrics.corpus import Corpus, MetricResult, References, known_mean, mean_result
from recap.metrics.java import java_spice, meteor
from recap.metrics.overlap import score_bleu, score_rouge_l
from recap.metrics.scenegraph import phrases
from recap.metrics.spice import chair, soft_spice, spice
from recap.registry import Entry, Registry
from recap.types import Vectors


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


class NotAvailableError(Exception):
    """Why a metric cannot be computed here."""


class Judge:
    """Computes metrics; what several of them need is made once."""

    def __init__(
        self, given: Given, encoder: Encoder | None, alignment: LinearAlignment | None, progress: bool
    ) -> None:
        self._given, self._encoder, self._alignment, self._progress = given, encoder, alignment, progress
        self.looked = False
        """Whether any metric so far looked at the pictures."""
        if encoder and alignment:
            _check_encoder(encoder, alignment)

    def display_name(self, title: str) -> str:
        """Return a metric's name in a report: that of the family whose encoder it is."""
        return title.replace("CLIP", "SigLIP") if self._encoder and "SigLIP" in self._encoder.name else title

    @property
    def problems(self) -> tuple[str, ...]:
        """Pictures that are missing or could not be read."""
        if not self.looked:
            return ()
        missing = [
            image for image, picture in zip(self._image_names, self._given.images or (), strict=True) if picture is None
        ]
        return (*(f"{image}: no picture found" for image in missing), *map(str, self.judged.problems))

    @cached_property
    def corpus(self) -> Corpus:
        """Candidates and references, tokenised."""
        return Corpus.of(self._given.candidates, self.references, self._given.image_index)

    @cached_property
    def judged(self) -> Judged:
        """Candidates, references and pictures as vectors."""
        given, encoder = self._given, self._encoder
        assert encoder is not None
        assert given.images is not None
        self.looked = True
        return Judged(
            encoder, given.candidates, given.image_index, given.images, given.references, progress=self._progress
        )

    @cached_property
    def references(self) -> References:
        """The references, tokenised."""
        return References.of(self._known_references)

    @property
    def _known_references(self) -> Sequence[Sequence[str]]:
        if self._given.references is None:
            raise NotAvailableError("needs references")
        return self._given.references

    @property
    def _image_names(self) -> Sequence[str]:
        given = self._given
        named = dict(zip(given.image_index.tolist(), given.ids, strict=True))
        return [named.get(image, str(image)) for image in range(len(given.images or ()))]

    @cached_property
    def bleus(self) -> list[MetricResult]:
        """BLEU of one to four words."""
        return score_bleu(self.corpus)

    def score_texts(self, function: Callable[..., MetricResult], *, bar: bool = False) -> MetricResult:
        """Compute a metric by a function of captions, references, and the image of each; ``bar`` if it can show one."""
        options = {"progress": self._progress} if bar else {}
        return function(self._given.candidates, self._known_references, self._given.image_index.tolist(), **options)

    def score_own(self, function: Callable[..., Any], title: str) -> MetricResult:
        """Compute a user's metric: a function of the captions, and the references of each or None."""
        candidates, known = list(self._given.candidates), self._given.references
        references = None if known is None else [list(known[image]) for image in self._given.image_index.tolist()]
        found = function(candidates, references)
        if isinstance(found, MetricResult):
            return found
        if np.ndim(found) == 0:
            return MetricResult(title, float(found), np.full(len(candidates), np.nan), float("nan"))
        scores = np.asarray(found, dtype=np.float64)
        if scores.shape != (len(candidates),):
            raise InputError(f"{title} gave {scores.shape} scores for {len(candidates)} captions")
        return mean_result(title, scores)

    def score_softspice(self) -> MetricResult:
        """Compute SoftSPICE."""
        if self._encoder is None:
            raise NotAvailableError("needs a text encoder: name a pack or an encoder")
        candidates, references = self._given.candidates, self._known_references
        distinct = dict.fromkeys([*candidates, *(text for texts in references for text in texts)])
        of = dict(zip(distinct, phrases(list(distinct), progress=self._progress), strict=True))
        pooled = [[phrase for text in texts for phrase in of[text]] for texts in references]
        theirs = [pooled[image] for image in self._given.image_index.tolist()]
        return soft_spice([of[text] for text in candidates], theirs, self._encoder.text, progress=self._progress)

    def score_shared(self, prefix: str, scorer: clip.Scorer, *, references: bool = False) -> MetricResult:
        """Compute a metric of vectors as the encoder made them, captions prefixed."""
        self._need(references=references, shared=True)
        return known_mean("", self.judged.score(self.judged.images, self.judged.texts(prefix), scorer))

    def score_dn(self, *, references: bool) -> MetricResult:
        """Take the means off that the alignment was fitted with; they are of plain captions, so these are plain too."""
        self._need(references=references, shared=True)
        alignment = self._fitted()
        return self._score_dn("", alignment.image_mean_, alignment.text_mean_, references=references)

    def score_dn_star(self) -> MetricResult:
        """Take the means of what is evaluated, captions prefixed, as the authors of CLIP+DN do in their code."""
        self._need(references=False, shared=True)
        return self._score_dn(PREFIX, self.judged.images.mean(axis=0), self.judged.mean_text(PREFIX))

    def _score_dn(self, prefix: str, *means: Vectors, references: bool = False) -> MetricResult:
        def scorer(images: Vectors, texts: Vectors, *others: Any) -> clip.Scores:
            return (
                clip.clip_dn_ref(images, texts, *others, *means) if references else clip.clip_dn(images, texts, *means)
            )

        return self.score_shared(prefix, scorer, references=references)

    def score_aligned(self, scorer: clip.Scorer, *, references: bool = False) -> MetricResult:
        """Compute a metric of aligned vectors."""
        self._need(references=references, shared=False)
        images, texts = self._aligned_rows
        return known_mean("", self.judged.score(images, texts, scorer))

    @cached_property
    def _aligned_rows(self) -> tuple[Vectors, Vectors]:
        alignment = self._fitted()
        return alignment.transform(self.judged.images), alignment.transform_texts(self.judged.texts())

    def score_mid(self) -> MetricResult:
        """Compute mutual information divergence."""
        self._need(references=True, shared=False)
        try:
            result = mid(*self.judged.candidate_pairs(), *self.judged.reference_pairs())
        except InputError as error:
            raise NotAvailableError(str(error)) from error
        values = np.full(len(self._given.candidates), np.nan)
        values[self.judged.scored] = result.per_image
        return known_mean("", values)

    def _need(self, *, references: bool, shared: bool) -> None:
        if self._given.images is None:
            raise NotAvailableError("needs the pictures")
        if self._encoder is None:
            raise NotAvailableError("needs an encoder: name a pack or an encoder")
        if references:
            self._known_references  # noqa: B018 - raises where there are none
        if shared and not self._encoder.shares_space:
            raise NotAvailableError(
                f"not available with this encoder: images and texts of {self._encoder.name} share no space; "
                "use a CLIP encoder such as open_clip:ViT-B-32/openai"
            )
        if not len(self.judged.scored):
            raise NotAvailableError("none of the pictures could be found and read")

    def _fitted(self) -> LinearAlignment:
        if self._alignment is None:
            raise NotAvailableError("needs an alignment: name a pack, or pairs to fit one to")
        return self._alignment


def _check_encoder(encoder: Encoder, alignment: LinearAlignment) -> None:
    for side, made_by, here in (
        ("image", alignment.image_encoder_, encoder.image.fingerprint),
        ("text", alignment.text_encoder_, encoder.text.fingerprint),
    ):
        if made_by and made_by != here:
            raise EncoderMismatchError(
                f"the alignment was fitted with another {side} encoder than {encoder.name}: fit it again with this one"
            )
