"""Metrics by name over one set of captions; what several of them need is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from recap.alignment import LinearAlignment
from recap.datasets.captions import Given
from recap.encoders.base import Encoder
from recap.errors import EncoderMismatchError, InputError, RecapError
from recap.metrics import clip
from recap.metrics.bleu import score_bleu
from recap.metrics.cider import Cider, CiderD
from recap.metrics.clip import PREFIX, Judged
from recap.metrics.corpus import Corpus, References
from recap.metrics.mid import mid
from recap.metrics.ngrams import Floats
from recap.metrics.rouge import score_rouge_l
from recap.metrics.softspice import soft_spice
from recap.metrics.statistics import MetricResult, mean_standard_error
from recap.types import Vectors

BLEU = ("bleu-1", "bleu-2", "bleu-3", "bleu-4")
METRICS: dict[str, str] = {
    **{name: name.upper() for name in BLEU},
    "rouge-l": "ROUGE-L",
    "meteor": "METEOR",
    "cider-d": "CIDEr-D",
    "cider-plain": "CIDEr",
    "spice": "SPICE-py",
    "spice-java": "SPICE",
    "softspice": "SoftSPICE",
    "chair": "CHAIR",
    "clip-s": "CLIP-S",
    "refclip-s": "RefCLIP-S",
    "clip+dn": "CLIP+DN",
    "clip+dn-ref": "CLIP+DN-Ref",
    "clip+dn*": "CLIP+DN*",
    "aclip-s": "aCLIP-S",
    "refaclip-s": "RefaCLIP-S",
    "acos": "aCos",
    "refacos": "RefaCos",
    "mid": "MID",
    "clipscore-100": "CLIPScore (100 cos)",
}
"""Every metric by the name it is asked for, with the name it has in a report."""


class NotAvailableError(Exception):
    """Why a metric cannot be computed here."""


class Judge:
    """Computes metrics by name; what several of them need is made once."""

    def __init__(
        self, given: Given, encoder: Encoder | None, alignment: LinearAlignment | None, progress: bool
    ) -> None:
        self._given, self._encoder, self._alignment, self._progress = given, encoder, alignment, progress
        self.looked = False
        """Whether any metric so far looked at the pictures."""
        if encoder and alignment:
            _check_encoder(encoder, alignment)

    def score(self, name: str) -> MetricResult:
        """Return a metric, or raise ``NotAvailableError`` with the reason."""
        try:
            result: MetricResult = self._scorers[name]()
        except RecapError as error:
            # what these parse with, or run in, may be missing in many ways: the other metrics go on
            if name not in ("meteor", "spice", "spice-java", "softspice"):
                raise
            raise NotAvailableError(str(error)) from error
        return replace(result, name=self.display_name(name, result.name))

    def display_name(self, name: str, known: str = "") -> str:
        """Return the name in a report: that of the family whose encoder it is."""
        shown = known or METRICS[name]
        return shown.replace("CLIP", "SigLIP") if self._encoder and "SigLIP" in self._encoder.name else shown

    @property
    def problems(self) -> tuple[str, ...]:
        """Pictures that are missing or could not be read."""
        if not self.looked:
            return ()
        missing = [
            image for image, picture in zip(self._image_names, self._given.images or (), strict=True) if not picture
        ]
        return (*(f"{image}: no picture found" for image in missing), *map(str, self.judged.problems))

    @cached_property
    def corpus(self) -> Corpus:
        """Candidates and references, tokenised."""
        return Corpus.of(self._given.candidates, self._references, self._given.image_index)

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
    def _references(self) -> References:
        if self._given.references is None:
            raise NotAvailableError("needs references")
        return References.of(self._given.references)

    @property
    def _image_names(self) -> Sequence[str]:
        given = self._given
        named = dict(zip(given.image_index.tolist(), given.ids, strict=True))
        return [named.get(image, str(image)) for image in range(len(given.images or ()))]

    @cached_property
    def _scorers(self) -> dict[str, Callable[[], MetricResult]]:
        return {
            **{name: partial(self._bleu, order) for order, name in enumerate(BLEU)},
            "rouge-l": lambda: score_rouge_l(self.corpus),
            "cider-d": lambda: CiderD(self._references).score_corpus(self.corpus),
            "cider-plain": lambda: Cider(self._references).score_corpus(self.corpus),
            "meteor": partial(self._other, "recap.metrics.java", "meteor"),
            "spice": partial(self._other, "recap.metrics.spice", "spice"),
            "spice-java": partial(self._other, "recap.metrics.java", "java_spice"),
            "softspice": self._softspice,
            "chair": partial(self._other, "recap.metrics.chair", "chair"),
            "clip-s": partial(self._shared, PREFIX, lambda i, t, r, f: clip.clip_s(i, t)),
            "refclip-s": partial(self._shared, PREFIX, clip.refclip_s, references=True),
            "clipscore-100": partial(self._shared, "", lambda i, t, r, f: clip.clip_score_100(i, t)),
            "clip+dn": partial(self._dn, references=False),
            "clip+dn-ref": partial(self._dn, references=True),
            "clip+dn*": self._dn_star,
            "aclip-s": partial(self._aligned, lambda i, t, r, f: clip.aligned_s(i, t)),
            "refaclip-s": partial(self._aligned, clip.ref_aligned_s, references=True),
            "acos": partial(self._aligned, lambda i, t, r, f: clip.cosines(i, t)),
            "refacos": partial(self._aligned, clip.ref_aligned_cosine, references=True),
            "mid": self._mid,
        }

    @cached_property
    def _bleus(self) -> list[MetricResult]:
        return score_bleu(self.corpus)

    def _bleu(self, order: int) -> MetricResult:
        return self._bleus[order]

    def _other(self, module: str, function: str) -> MetricResult:
        """Compute a metric of a module whose parts may not be there."""
        scorer, references = self._imported(module, function), self._given.references
        result: MetricResult = scorer(self._given.candidates, references, self._given.image_index.tolist())
        return result

    def _imported(self, module: str, function: str) -> Callable[..., Any]:
        if self._given.references is None:
            raise NotAvailableError("needs references")
        try:
            found: Callable[..., Any] = getattr(import_module(module), function)
        except ModuleNotFoundError as error:
            raise NotAvailableError(f"{error.name} is not installed") from error
        return found

    def _softspice(self) -> MetricResult:
        if self._encoder is None:
            raise NotAvailableError("needs a text encoder: name a pack or an encoder")
        phrases = self._imported("recap.metrics.scenegraph", "phrases")
        candidates, references = self._given.candidates, self._given.references or ()
        distinct = dict.fromkeys([*candidates, *(text for texts in references for text in texts)])
        of = dict(zip(distinct, phrases(list(distinct)), strict=True))
        pooled = [[phrase for text in texts for phrase in of[text]] for texts in references]
        theirs = [pooled[image] for image in self._given.image_index.tolist()]
        return soft_spice([of[text] for text in candidates], theirs, self._encoder.text, progress=self._progress)

    def _shared(self, prefix: str, scorer: clip.Scorer, *, references: bool = False) -> MetricResult:
        self._need(references=references, shared=True)
        return _result(self.judged.score(self.judged.images, self.judged.texts(prefix), scorer))

    def _dn(self, *, references: bool) -> MetricResult:
        """Take the means off that the alignment was fitted with; they are of plain captions, so these are plain too."""
        self._need(references=references, shared=True)
        alignment = self._fitted()
        means = {"image_mean": alignment.image_mean_, "text_mean": alignment.text_mean_}
        scorer = partial(_dn_ref if references else _dn_plain, **means)
        return _result(self.judged.score(self.judged.images, self.judged.texts(), scorer))

    def _dn_star(self) -> MetricResult:
        """Take the means of what is evaluated, captions prefixed, as the authors of CLIP+DN do in their code."""
        self._need(references=False, shared=True)
        means = {"image_mean": self.judged.images.mean(axis=0), "text_mean": self.judged.mean_text(PREFIX)}
        scored = self.judged.score(self.judged.images, self.judged.texts(PREFIX), partial(_dn_plain, **means))
        return _result(scored)

    def _aligned(self, scorer: clip.Scorer, *, references: bool = False) -> MetricResult:
        self._need(references=references, shared=False)
        images, texts = self._aligned_rows
        return _result(self.judged.score(images, texts, scorer))

    @cached_property
    def _aligned_rows(self) -> tuple[Vectors, Vectors]:
        alignment = self._fitted()
        return alignment.transform(self.judged.images), alignment.transform_texts(self.judged.texts())

    def _mid(self) -> MetricResult:
        self._need(references=True, shared=False)
        try:
            result = mid(*self.judged.candidate_pairs(), *self.judged.reference_pairs())
        except InputError as error:
            raise NotAvailableError(str(error)) from error
        values = np.full(len(self._given.candidates), np.nan)
        values[self.judged.scored] = result.per_image
        return _result(values)

    def _need(self, *, references: bool, shared: bool) -> None:
        if self._given.images is None:
            raise NotAvailableError("needs the pictures")
        if self._encoder is None:
            raise NotAvailableError("needs an encoder: name a pack or an encoder")
        if references and self._given.references is None:
            raise NotAvailableError("needs references")
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


def _dn_plain(images: Any, texts: Any, references: Any, first: Any, **means: Any) -> clip.Scores:
    return clip.clip_dn(images, texts, **means)


def _dn_ref(images: Any, texts: Any, references: Any, first: Any, **means: Any) -> clip.Scores:
    return clip.clip_dn_ref(images, texts, references, first, **means)


def _result(values: Floats) -> MetricResult:
    """Make a result of values of which some may be missing."""
    known = values[np.isfinite(values)]
    return MetricResult("", float(known.mean()), values, mean_standard_error(known))


def _check_encoder(encoder: Encoder, alignment: LinearAlignment) -> None:
    for side, made_by, here in (
        ("image", alignment.image_encoder_, encoder.image.fingerprint),
        ("text", alignment.text_encoder_, encoder.text.fingerprint),
    ):
        if made_by and made_by != here:
            raise EncoderMismatchError(
                f"the alignment was fitted with another {side} encoder than {encoder.name}: fit it again with this one"
            )
