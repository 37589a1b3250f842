"""Captions for encoded pictures, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recap.alignment import LinearAlignment
from recap.captioner import ReCap
from recap.datastore import CaptionStore, Datastore, ImageTable
from recap.encoders import Encoder
from recap.experiments.data import Split
from recap.experiments.table import Cell
from recap.language import LanguageModel
from recap.metrics.cider import cider_d
from recap.metrics.clip import aclip_s, refaclip_s
from recap.metrics.statistics import MetricResult, mean_result
from recap.selection import RULES
from recap.settings import Settings
from recap.types import Vectors

POOL_IMAGES = 20
"""Unimodal retrieval takes the captions of so many pictures: about as many as ``Settings.pool``."""


def recap_captions(
    encoder: Encoder,
    alignment: LinearAlignment,
    store: CaptionStore,
    images: Vectors,
    *,
    language_model: LanguageModel | None = None,
    settings: Settings | None = None,
) -> list[str]:
    """Return ReCap's captions with a map and a datastore."""
    captioner = ReCap(
        encoder, alignment.statistics_, store, language_model=language_model, settings=settings, alignment=alignment
    )
    return [caption.text for caption in captioner.caption_vectors(images)]


def unimodal_captions(train: Split, store: Datastore, images: Vectors) -> list[str]:
    """Return captions of the pictures that look alike (UM in the paper), chosen by the same consensus."""
    mean = train.images.mean(axis=0)
    table = ImageTable(train.images.shape[1], center=mean)
    table.add_images(train.ids, train.images)
    queries = images - mean
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
    found = table.search_captions(store, queries, POOL_IMAGES)
    captions = []
    for ids, similarities in zip(found.ids, found.similarities, strict=True):
        evidence = store.evidence(ids, similarities)
        nearest = {item.text: item.similarity for item in reversed(evidence)}
        texts = sorted(nearest)
        scores = RULES["consensus"](texts, np.array([nearest[text] for text in texts], np.float32), evidence)
        captions.append(texts[int(scores.argmax())])
    return captions


class Judge:
    """CIDEr-D, aCLIP-S and RefaCLIP-S of captions for one split, all in points, by one map for all systems."""

    METRICS = ("CIDEr-D", "aCLIP-S", "RefaCLIP-S")

    def __init__(self, encoder: Encoder, alignment: LinearAlignment, test: Split) -> None:
        self._encoder, self._alignment, self._test = encoder, alignment, test
        self._first = np.cumsum([0, *(len(texts) for texts in test.captions)])

    def cells(self, captions: Sequence[str]) -> tuple[Cell, ...]:
        """Return one cell for each of ``METRICS``."""
        texts = self._encoder.encode_texts(captions)
        images, references = self._test.images, self._test.texts
        free = aclip_s(images, texts, self._alignment).astype(np.float64)
        based = refaclip_s(images, texts, references, self._first, self._alignment).astype(np.float64)
        results = (
            cider_d(captions, self._test.captions),
            mean_result("aCLIP-S", free),
            mean_result("RefaCLIP-S", based),
        )
        return tuple(map(_points, results))


def _points(result: MetricResult) -> Cell:
    return Cell(100 * result.value, 100 * result.standard_error)
