"""Captions for encoded pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recap.alignment import LinearAlignment
from recap.captioner import ReCap
from recap.datastore import CaptionStore, Datastore, ImageTable
from recap.encoders import Encoder
from recap.experiments.data import Split
from recap.language import LanguageModel
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

    There is no map, so nothing can be compared with the picture: the consensus of the retrieved captions decides, with
    and without a language model, among those that the settings allow.
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
    alone = chosen.candidates == "lm"
    return [_by_consensus(*row, alone=alone) for row in zip(found, drafts, strict=True)]


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


def _by_consensus(evidence: Sequence[Evidence], drafts: Sequence[Draft], *, alone: bool) -> str:
    """Return the sentence most like the evidence; ``alone``: one that was written, if any is of use."""
    nearest = {item.text: item.similarity for item in reversed(evidence)}
    written = {draft.text for draft in drafts if not is_degenerate(draft.text)}
    texts = sorted(written if alone and written else nearest.keys() | written)
    scores = RULES["consensus"](texts, np.array([nearest.get(text, 0) for text in texts], np.float32), evidence)
    return texts[int(scores.argmax())]
