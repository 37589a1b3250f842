"""What the worker does for each kind of request. Everything here runs in its one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from recap.batch.tags import tag_vectors
from recap.captioner import ReCap
from recap.errors import InputError
from recap.metrics.clip import aligned_s, cosines, ref_aligned_s
from recap.packs.folder import read_own_datastore
from recap.packs.search import PictureIndex
from recap.server.schemas import MapBody, Point, ScoreBody
from recap.types import Caption, Evidence, Tag, Vectors

Chart: TypeAlias = tuple[tuple[Evidence, ...], MapBody, MapBody | None]
"""The captions around a picture, and maps of them after and before alignment."""


class Engine:
    """A captioner, and its variants with other maps, each solved once.

    Its methods are what a ``Task`` runs: each takes the arguments of several tasks, the vectors of their pictures, and
    what the tasks have in common.
    """

    def __init__(self, captioner: ReCap, index: PictureIndex | None = None) -> None:
        self.captioner = captioner
        self.index = index
        """The pictures that can be searched, if there are any."""
        self._by_method: dict[str, ReCap] = {captioner.settings.method: captioner}

    def reload(self, folder: Path) -> None:
        """Take the captions of the pack in a folder anew; what was changed in memory only is gone."""
        captioner = self.captioner
        captioner.datastore = read_own_datastore(folder).centred_by(captioner.alignment.text_mean_)
        captioner.__dict__.pop("_uncentred", None)
        self._by_method = {captioner.settings.method: captioner}

    def with_method(self, method: str | None) -> ReCap:
        """Return the captioner with another map, or with its own."""
        wanted = method or self.captioner.settings.method
        if wanted not in self._by_method:
            self._by_method[wanted] = self.captioner.configured(method=wanted)
        return self._by_method[wanted]

    def caption(
        self, exclude: Sequence[frozenset[str]], vectors: Vectors, settings: tuple[tuple[str, Any], ...]
    ) -> list[Caption]:
        """Caption pictures; ``exclude`` has for each the captions that must not be evidence."""
        changes = dict(settings)
        captioner = self.with_method(changes.pop("method", None))
        captioner = captioner.configured(**changes) if changes else captioner
        return captioner.caption_vectors(vectors, exclude_texts=list(exclude))

    def tag(self, _: Sequence[None], vectors: Vectors, min_score: float) -> list[tuple[Tag, ...]]:
        """Find the keywords of pictures."""
        return tag_vectors(self.captioner, vectors, min_score=min_score)

    def retrieve(
        self, _: Sequence[None], vectors: Vectors, k: int, aligned: bool, method: str | None
    ) -> list[tuple[Evidence, ...]]:
        """Find the captions nearest to pictures."""
        return self.with_method(method).retrieve_vectors(vectors, k, aligned=aligned)

    def score(
        self, texts: Sequence[tuple[Sequence[str], Sequence[str]]], vectors: Vectors, method: str | None
    ) -> list[list[ScoreBody]]:
        """Judge the captions of pictures, given with their references; each distinct text is encoded once."""
        captioner = self.with_method(method)
        distinct = list(dict.fromkeys(text for both in texts for some in both for text in some))
        rows = captioner.alignment.transform_texts(captioner.encoder.encode_texts(distinct))
        vector_of = dict(zip(distinct, rows, strict=True))
        images = captioner.alignment.transform(captioner.vectors_of(vectors))
        return [_judge(image, *both, vector_of) for image, both in zip(images, texts, strict=True)]

    def search(self, texts: Sequence[str], _: None, k: int) -> list[list[tuple[int, float]]]:
        """Find the pictures that texts describe: their places in the index and how well they fit, best first."""
        assert self.index is not None
        rows = self.captioner.alignment.transform_texts(self.captioner.encoder.encode_texts(list(texts)))
        return [self.index.rank(row, k) for row in rows]

    def judge(self, texts: Sequence[str], vectors: Vectors) -> list[float]:
        """Say how probably captions are right: calibrated, or by how many of the retrieved captions fit no better."""
        captioner = self.captioner
        scores = self.score([((text,), ()) for text in texts], vectors, None)
        evidence = captioner.retrieve_vectors(vectors, captioner.settings.pool)
        chances = []
        for text, (score,), items in zip(texts, scores, evidence, strict=True):
            if captioner.calibration is not None:
                chances.append(captioner.calibration.confidence(text, score.cosine, items))
            else:
                chances.append(sum(score.cosine >= item.similarity for item in items) / max(1, len(items)))
        return chances

    def chart(self, _: Sequence[None], vectors: Vectors, k: int, method: str | None) -> list[Chart]:
        """Draw each picture among the captions nearest to it."""
        captioner = self.with_method(method)
        store, rows = captioner.datastore, captioner.vectors_of(vectors)
        queries = captioner.alignment.transform(rows)
        nearest = store.search(queries, k)
        charts = []
        for row, query, ids, similarities in zip(rows, queries, nearest.ids, nearest.similarities, strict=True):
            known = ids[ids >= 0]
            if len(known) < 2:
                raise InputError(f"a map needs at least two captions, and the datastore has {len(known)}")
            unaligned = None
            if captioner.encoder.shares_space:
                unaligned = draw_map(np.concatenate([row[None], store.raw_vectors(known)]))
            aligned = draw_map(np.concatenate([query[None], store.vectors(known)]))
            charts.append((store.evidence(ids, similarities), aligned, unaligned))
        return charts


def draw_map(rows: Vectors) -> MapBody:
    """Return the principal plane of a picture and captions; the largest value on each axis is positive."""
    left, sizes, _ = np.linalg.svd((rows - rows.mean(axis=0)).astype(np.float64), full_matrices=False)
    points = (left * sizes)[:, :2]
    points *= np.where(points[np.abs(points).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    total = float((sizes**2).sum())
    picture, *captions = (Point(x=x, y=y) for x, y in points.astype(np.float32).tolist())
    explained = float((sizes[:2] ** 2).sum()) / total if total else 1.0
    return MapBody(picture=picture, captions=captions, explained=explained)


def _judge(
    image: Vectors, captions: Sequence[str], references: Sequence[str], vector_of: Mapping[str, Vectors]
) -> list[ScoreBody]:
    texts = np.stack([vector_of[text] for text in captions])
    images = np.repeat(image[None], len(texts), axis=0)
    with_references: Sequence[float | None] = [None] * len(texts)
    if references:
        others = np.tile(np.stack([vector_of[text] for text in references]), (len(texts), 1))
        with_references = ref_aligned_s(images, texts, others, np.arange(len(texts) + 1) * len(references)).tolist()
    rows = zip(captions, cosines(images, texts), aligned_s(images, texts), with_references, strict=True)
    return [ScoreBody(caption=c, cosine=cosine, aclip_s=a, refaclip_s=r) for c, cosine, a, r in rows]
