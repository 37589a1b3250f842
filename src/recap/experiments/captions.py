"""Captions for encoded pictures, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from recap.selection import RULES, is_degenerate
from recap.settings import Settings
from recap.types import Draft, Evidence, Vectors

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


def unimodal_captions(
    train: Split,
    store: Datastore,
    images: Vectors,
    *,
    language_model: LanguageModel | None = None,
    settings: Settings | None = None,
) -> list[str]:
    """Return captions from those of the pictures that look alike (UM in the paper).

    There is no map, so nothing can be compared with the picture: among retrieved and written sentences the consensus of
    the retrieved ones decides, with and without a language model.
    """
    chosen = settings or Settings()
    found = unimodal_evidence(train, store, images)
    drafts: list[list[Draft]] = [[] for _ in found]
    if language_model is not None:
        template = chosen.template(completes=language_model.completes)
        prompts = [
            replace(template.render(texts[: chosen.k]), pool=texts[: chosen.pool])
            for texts in ([item.text for item in evidence] for evidence in found)
        ]
        drafts = language_model.write(prompts, chosen.decoding)
    return [_by_consensus(*row) for row in zip(found, drafts, strict=True)]


def unimodal_evidence(
    train: Split, store: Datastore, images: Vectors, pictures: int = POOL_IMAGES
) -> list[tuple[Evidence, ...]]:
    """Return for each picture the captions of the training pictures that look most like it."""
    mean = train.images.mean(axis=0)
    table = ImageTable(train.images.shape[1], center=mean)
    table.add_images(train.ids, train.images)
    queries = images - mean
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
    found = table.search_captions(store, queries, pictures)
    return [store.evidence(*row) for row in zip(found.ids, found.similarities, strict=True)]


def _by_consensus(evidence: Sequence[Evidence], drafts: Sequence[Draft]) -> str:
    nearest = {item.text: item.similarity for item in reversed(evidence)}
    written = {draft.text for draft in drafts if not is_degenerate(draft.text)}
    texts = sorted(nearest.keys() | written)
    scores = RULES["consensus"](texts, np.array([nearest.get(text, 0) for text in texts], np.float32), evidence)
    return texts[int(scores.argmax())]


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
