"""What the worker does for each kind of request. Everything here runs in its one thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from recap.captioner import ReCap
from recap.errors import InputError
from recap.metrics.clip import aligned_s, cosines, ref_aligned_s
from recap.packs.folder import read_own_datastore
from recap.server.batching import Picture
from recap.types import Caption, Evidence, Vectors

Settings = tuple[tuple[str, Any], ...]
"""Settings of a request by name, in a form that can be compared."""


class Engine:
    """A captioner, and its variants with other maps, each solved once."""

    def __init__(self, captioner: ReCap) -> None:
        self.captioner = captioner
        self._by_method: dict[str, ReCap] = {captioner.settings.method: captioner}

    def reload(self, folder: Path) -> None:
        """Take the captions of the pack in a folder anew; what was changed in memory only is gone."""
        captioner = self.captioner
        captioner.datastore = read_own_datastore(folder).centred_by(captioner.alignment.text_mean_)
        captioner.__dict__.pop("_uncentred", None)
        self._by_method = {captioner.settings.method: captioner}

    def configured(self, settings: Settings) -> ReCap:
        """Return the captioner with some settings of a request."""
        given = dict(settings)
        base = self.with_method(given.pop("method", None))
        return base.configured(**given) if given else base

    def with_method(self, method: str | None) -> ReCap:
        """Return the captioner with another map, or with its own."""
        wanted = method or self.captioner.settings.method
        if wanted not in self._by_method:
            self._by_method[wanted] = self.captioner.configured(method=wanted)
        return self._by_method[wanted]


@dataclass(frozen=True, slots=True)
class CaptionTask:
    """Caption a picture."""

    engine: Engine
    picture: Picture
    settings: Settings
    exclude: frozenset[str]

    @property
    def group(self) -> Hashable:
        """The settings."""
        return self.settings

    def run(self, tasks: Sequence[CaptionTask], vectors: Sequence[Vectors]) -> list[Caption]:
        """Retrieve, write and choose for all of them together."""
        captioner = self.engine.configured(self.settings)
        return captioner.caption_vectors(np.stack(vectors), exclude_texts=[task.exclude for task in tasks])


@dataclass(frozen=True, slots=True)
class RetrieveTask:
    """Find the captions nearest to a picture."""

    engine: Engine
    picture: Picture
    k: int
    aligned: bool
    method: str | None

    @property
    def group(self) -> Hashable:
        """All that decides about the search."""
        return self.k, self.aligned, self.method

    def run(self, tasks: Sequence[RetrieveTask], vectors: Sequence[Vectors]) -> list[tuple[Evidence, ...]]:
        """Search for all of them together."""
        captioner = self.engine.with_method(self.method)
        return captioner.retrieve_vectors(np.stack(vectors), self.k, aligned=self.aligned)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well captions fit a picture."""

    method: str
    cosines: Vectors
    aclip_s: Vectors
    refaclip_s: Vectors | None


@dataclass(frozen=True, slots=True)
class ScoreTask:
    """Judge captions of a picture."""

    engine: Engine
    picture: Picture
    captions: tuple[str, ...]
    references: tuple[str, ...]
    method: str | None

    @property
    def group(self) -> Hashable:
        """The map."""
        return self.method

    def run(self, tasks: Sequence[ScoreTask], vectors: Sequence[Vectors]) -> list[Judgement]:
        """Encode the texts of all of them together, each once, and compare."""
        captioner = self.engine.with_method(self.method)
        distinct = list(dict.fromkeys(text for task in tasks for text in (*task.captions, *task.references)))
        rows = captioner.alignment.transform_texts(captioner.encoder.encode_texts(distinct))
        vector_of = dict(zip(distinct, rows, strict=True))
        images = captioner.alignment.transform(captioner.vectors_of(np.stack(vectors)))
        return [task._judge(captioner, image, vector_of) for task, image in zip(tasks, images, strict=True)]

    def _judge(self, captioner: ReCap, image: Vectors, vector_of: dict[str, Vectors]) -> Judgement:
        texts = np.stack([vector_of[text] for text in self.captions])
        images = np.repeat(image[None], len(texts), axis=0)
        with_references = None
        if self.references:
            references = np.stack([vector_of[text] for text in self.references])
            count = len(references)
            first = np.arange(0, (len(texts) + 1) * count, count)
            with_references = ref_aligned_s(images, texts, np.tile(references, (len(texts), 1)), first)
        return Judgement(captioner.settings.method, cosines(images, texts), aligned_s(images, texts), with_references)


@dataclass(frozen=True, slots=True)
class Plane:
    """Points in the two directions in which they differ most."""

    points: Vectors
    """(n, 2): the picture first, then the captions."""
    explained: float

    @classmethod
    def of(cls, rows: Vectors) -> Plane:
        """Return the principal plane of rows; the sign of each axis is such that its largest value is positive."""
        centred = rows - rows.mean(axis=0)
        left, sizes, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
        points = (left * sizes)[:, :2]
        points *= np.where(points[np.abs(points).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
        total = float((sizes**2).sum())
        return cls(points.astype(np.float32), float((sizes[:2] ** 2).sum()) / total if total else 1.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """The captions around a picture, before and after alignment."""

    evidence: tuple[Evidence, ...]
    aligned: Plane
    unaligned: Plane | None


@dataclass(frozen=True, slots=True)
class MapTask:
    """Draw a picture among the captions nearest to it."""

    engine: Engine
    picture: Picture
    k: int
    method: str | None

    @property
    def group(self) -> Hashable:
        """All that decides about the search."""
        return self.k, self.method

    def run(self, tasks: Sequence[MapTask], vectors: Sequence[Vectors]) -> list[Chart]:
        """Search for all of them together, and draw each."""
        captioner = self.engine.with_method(self.method)
        store, rows = captioner.datastore, captioner.vectors_of(np.stack(vectors))
        queries = captioner.alignment.transform(rows)
        found = store.search(queries, self.k)
        charts = []
        for row, query, ids, similarities in zip(rows, queries, found.ids, found.similarities, strict=True):
            there = ids[ids >= 0]
            if len(there) < 2:
                raise InputError(f"a map needs at least two captions, and the datastore has {len(there)}")
            unaligned = None
            if captioner.encoder.shares_space:
                unaligned = Plane.of(np.concatenate([row[None], store.raw_vectors(there)]))
            aligned = Plane.of(np.concatenate([query[None], store.vectors(there)]))
            charts.append(Chart(store.evidence(ids, similarities), aligned, unaligned))
        return charts


class DatastoreTask:
    """Do something with the datastore, alone."""

    picture = None

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    @cached_property
    def group(self) -> Hashable:
        """Its own: no two changes are made at once."""
        return id(self)

    def run(self, tasks: Sequence[DatastoreTask], vectors: Sequence[Vectors]) -> list[Any]:
        """Do it."""
        return [self._action()]
