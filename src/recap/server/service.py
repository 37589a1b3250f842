"""What the routes share: the captioner's worker and what it does, the configuration, and what is asked of every form.

``Engine`` runs in the worker's one thread. Requests wait for it, and may be abandoned or take too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from fastapi import Request
from starlette.requests import ClientDisconnect

from recap.batch.tags import tag_vectors
from recap.captioner import ReCap, raise_error
from recap.encoders.fetching import Fetcher
from recap.errors import ImageError, InputError, RecapError
from recap.metrics.clip import aligned_s, cosines, ref_aligned_s
from recap.packs.folder import read_own_datastore
from recap.packs.search import PictureIndex
from recap.packs.settings import Settings
from recap.server import forms
from recap.server.batching import Batcher, Picture, Task
from recap.server.config import ServerConfig
from recap.server.middleware import ACCOUNT, Metrics
from recap.server.problems import Problem
from recap.server.schemas import Form, MapBody, Point, ProblemBody, ScoreBody
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


async def wait_for_results(request: Request, work: Sequence[Future[Any]], timeout: float) -> list[Any]:
    """Return the result or the error of each future; if nobody waits any more, what is left of the work is dropped."""
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    with _wrap_futures(work) as futures:
        waiting = asyncio.gather(*futures, return_exceptions=True)
        try:
            both: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return list(waiting.result())
            if gone.done():
                raise ClientDisconnect
            raise timeout_problem(timeout)
        finally:
            gone.cancel()
            # what becomes of abandoned work interests nobody, so asyncio need not complain that nobody asked
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            waiting.cancel()


async def iterate_results(work: Sequence[Future[Any]], timeout: float) -> AsyncIterator[tuple[int, Any]]:
    """Yield the number of each future with its result or error, as they come."""
    with _wrap_futures(work) as futures:
        places = {future: place for place, future in enumerate(futures)}
        pending = set(futures)
        deadline = asyncio.get_running_loop().time() + timeout
        while pending:
            left = deadline - asyncio.get_running_loop().time()
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise timeout_problem(timeout)
            for future in sorted(done, key=places.__getitem__):
                yield places[future], future.exception() or future.result()


def timeout_problem(timeout: float) -> Problem:
    """Return the problem of a request whose time is over."""
    return Problem.busy(f"the answer took longer than {timeout:g} seconds; try again later", 5)


@contextmanager
def _wrap_futures(work: Sequence[Future[Any]]) -> Iterator[list[asyncio.Future[Any]]]:
    """Make futures of the worker awaitable here, and cancel those that are left over."""
    futures = [asyncio.wrap_future(future) for future in work]
    try:
        yield futures
    finally:
        for future in futures:
            future.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has gone away; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


AnyForm = TypeVar("AnyForm", bound=Form)
USUAL: dict[str, Any] = {**asdict(Settings().decoding), **asdict(Settings()), "selection": "likely"}
"""Settings as most packs have them."""

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/problem+json": {"schema": ProblemBody.model_json_schema()}}}
    for status, what in {
        400: "The request cannot be read.",
        401: "A key is needed.",
        403: "Not allowed here.",
        404: "There is no such thing.",
        405: "Not done that way here.",
        408: "The request took too long to arrive.",
        413: "Too large, or too many.",
        415: "Not of a kind that is read here.",
        422: "Something in the request cannot be used.",
        503: "Too busy; Retry-After says when to come again.",
    }.items()
}
"""What any route may answer besides its result."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a running service."""

    config: ServerConfig
    engine: Engine
    batcher: Batcher
    metrics: Metrics
    fetcher: Fetcher | None

    async def read(self, request: Request, form: type[AnyForm]) -> tuple[list[Picture | ImageError], AnyForm]:
        """Return the pictures and the settings of a request."""
        received = await forms.parse_body(request, self.config)
        settings = forms.parse_settings(received, form)
        return await forms.read_pictures(received, self.config, self.fetcher, request.scope[ACCOUNT].take), settings

    async def read_one(self, request: Request, form: type[AnyForm]) -> tuple[Picture, AnyForm]:
        """Return the picture and the settings of a request that takes one."""
        found, settings = await self.read(request, form)
        if len(found) != 1:
            raise Problem(422, f"{len(found)} pictures were sent; one at a time is taken here")
        return raise_error(found[0]), settings

    async def run_task(self, request: Request, task: Task) -> Any:
        """Return the result of one task."""
        return (await self.run_tasks(request, [task]))[0]

    async def run_tasks(self, request: Request, tasks: Sequence[Task]) -> list[Any]:
        """Return the results of tasks, or raise the first of their errors."""
        results = await wait_for_results(request, self.batcher.submit(tasks), self.config.timeout)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


async def service_of(request: Request) -> Service:
    """Return the service that a request is for; not awaiting anything, but a plain function would get a thread."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def describe_error(error: BaseException) -> str:
    """Return the message about a picture that failed."""
    return str(error) if isinstance(error, RecapError) else "something went wrong inside the service"


def describe_form(form: type[Form], *, several: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a form with pictures."""
    schema = form.model_json_schema()
    picture = {"type": "string", "format": "binary", "description": "A picture."}
    listed = {"type": "array", "items": picture, **({} if several else {"maxItems": 1})}
    address = {"type": "array", "items": {"type": "string"}, "description": "Addresses, with --allow-urls."}
    schema["properties"] = {forms.IMAGE: listed, **schema["properties"], forms.URL: address}
    for name, value in schema["properties"].items():
        # a field that is left out is not sent as null; forms to try it out begin with the usual values
        if "anyOf" in value:
            value.update(next(kind for kind in value.pop("anyOf") if kind.get("type") != "null"))
            value.pop("default", None)
            if (usual := USUAL.get(name)) is not None:
                value["example"] = usual
    encoded = {"type": "string", "format": "byte", "description": "A picture in base64."}
    fields = {**schema["properties"], forms.IMAGE: {**listed, "items": encoded}}
    content = {
        "multipart/form-data": {"schema": schema},
        "application/json": {"schema": {**schema, "properties": fields}},
        "application/octet-stream": {"schema": picture},
    }
    return {"requestBody": {"required": True, "content": content}}
