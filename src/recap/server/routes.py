"""Routes: caption, retrieve, score, map; and packs, health, metrics, documentation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from recap import __version__
from recap.alignment.mapping import METHODS
from recap.errors import ImageError
from recap.server import forms
from recap.server.batching import Picture
from recap.server.metrics import MEDIA_TYPE
from recap.server.problems import Problem
from recap.server.schemas import (
    CaptionBody,
    CaptionForm,
    CaptionResponse,
    EvidenceBody,
    Health,
    LimitsBody,
    MapBody,
    MapForm,
    MapResponse,
    PackBody,
    PacksResponse,
    PictureResult,
    Point,
    RetrieveForm,
    RetrieveResponse,
    ScoreBody,
    ScoreForm,
    ScoreResponse,
)
from recap.server.service import PROBLEMS, Service, as_finished, finished, form_body, reason, service_of
from recap.server.tasks import CaptionTask, MapTask, Plane, RetrieveTask, ScoreTask
from recap.types import Caption, Evidence

captions_router = APIRouter(prefix="/v1", tags=["captions"], responses=PROBLEMS)
Here = Annotated[Service, Depends(service_of)]


@captions_router.post("/caption", openapi_extra=form_body(CaptionForm, several=True))
async def caption(request: Request, service: Here) -> CaptionResponse:
    """Caption one picture or several. What cannot be read is named; if nothing can, the answer is 422."""
    found, form = await service.read(request, CaptionForm)
    tasks = _tasks(service, found, form)
    done = iter(await finished(request, service.batcher.submit(tasks), service.config.timeout) if tasks else ())
    outcomes = [item if isinstance(item, ImageError) else next(done) for item in found]
    results = [_result(number, *pair) for number, pair in enumerate(zip(found, outcomes, strict=True))]
    if not any(isinstance(outcome, Caption) for outcome in outcomes):
        for outcome in outcomes:
            if not isinstance(outcome, ImageError):
                raise outcome
        errors = [{"field": result.name, "detail": result.error or ""} for result in results]
        raise Problem(422, errors[0]["detail"], errors=errors)
    return CaptionResponse(results=results)


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events: `picture` with a result, as each is done; `done` with their number; `problem` if the "
        "work had to stop.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "description": "One event; its data is json.",
                    "properties": {"event": {"enum": ["picture", "done", "problem"]}, "data": {"type": "string"}},
                    "required": ["event", "data"],
                }
            }
        },
    }
}


@captions_router.post(
    "/caption/stream",
    openapi_extra=form_body(CaptionForm, several=True),
    response_class=StreamingResponse,
    responses=STREAM,
)
async def caption_stream(request: Request, service: Here) -> StreamingResponse:
    """Caption pictures, and send each result as it is done, as server-sent events."""
    found, form = await service.read(request, CaptionForm)
    tasks = _tasks(service, found, form)
    work = service.batcher.submit(tasks) if tasks else []
    places = [place for place, item in enumerate(found) if isinstance(item, Picture)]

    async def events() -> AsyncIterator[str]:
        count = 0
        for number, item in enumerate(found):
            if isinstance(item, ImageError):
                count += 1
                yield _event("picture", _progress(_result(number, item, item), count, len(found)))
        try:
            async for number, outcome in as_finished(work, service.config.timeout):
                count += 1
                place = places[number]
                yield _event("picture", _progress(_result(place, found[place], outcome), count, len(found)))
        except Problem as problem:
            yield _event("problem", problem.as_dict())
            return
        yield _event("done", {"total": len(found)})

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@captions_router.post("/retrieve", openapi_extra=form_body(RetrieveForm, several=False))
async def retrieve(request: Request, service: Here) -> RetrieveResponse:
    """Find the captions nearest to a picture."""
    found, form = await service.read(request, RetrieveForm)
    picture = forms.only(found)
    evidence = await service.one(request, RetrieveTask(service.engine, picture, form.k, form.aligned, form.method))
    return RetrieveResponse(name=picture.name, aligned=form.aligned, evidence=_evidence(evidence))


@captions_router.post("/score", openapi_extra=form_body(ScoreForm, several=False))
async def score(request: Request, service: Here) -> ScoreResponse:
    """Judge captions of a picture: aligned cosine and aCLIP-S, and RefaCLIP-S where references are given."""
    found, form = await service.read(request, ScoreForm)
    picture = forms.only(found)
    task = ScoreTask(service.engine, picture, tuple(form.caption), tuple(form.reference), form.method)
    judged = await service.one(request, task)
    with_references = judged.refaclip_s if judged.refaclip_s is not None else [None] * len(form.caption)
    rows = zip(form.caption, judged.cosines, judged.aclip_s, with_references, strict=True)
    scores = [ScoreBody(caption=c, cosine=cosine, aclip_s=a, refaclip_s=r) for c, cosine, a, r in rows]
    return ScoreResponse(name=picture.name, method=judged.method, scores=scores)


@captions_router.post("/map", openapi_extra=form_body(MapForm, several=False))
async def chart(request: Request, service: Here) -> MapResponse:
    """Draw a picture among the captions nearest to it, in two dimensions, before and after alignment."""
    found, form = await service.read(request, MapForm)
    picture = forms.only(found)
    drawn = await service.one(request, MapTask(service.engine, picture, form.k, form.method))
    return MapResponse(
        name=picture.name,
        evidence=_evidence(drawn.evidence),
        aligned=_map(drawn.aligned),
        unaligned=_map(drawn.unaligned) if drawn.unaligned else None,
    )


def _tasks(service: Service, found: Sequence[Picture | ImageError], form: CaptionForm) -> list[CaptionTask]:
    settings, exclude = form.settings(), frozenset(form.exclude)
    service.engine.captioner.settings.but(**dict(settings))  # what cannot be is refused before it is queued
    return [CaptionTask(service.engine, item, settings, exclude) for item in found if isinstance(item, Picture)]


def _result(number: int, item: Picture | ImageError, outcome: Any) -> PictureResult:
    name = item.name if isinstance(item, Picture) else str(item).partition(": ")[0]
    if isinstance(outcome, Caption):
        return PictureResult(index=number, name=name, result=CaptionBody.of(outcome))
    return PictureResult(index=number, name=name, error=reason(outcome))


def _progress(result: PictureResult, done: int, total: int) -> dict[str, Any]:
    return {**result.model_dump(), "done": done, "total": total}


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _evidence(items: Sequence[Evidence]) -> list[EvidenceBody]:
    return [EvidenceBody.model_validate(asdict(item)) for item in items]


def _map(plane: Plane) -> MapBody:
    points = [Point(x=x, y=y) for x, y in plane.points.tolist()]
    return MapBody(picture=points[0], captions=points[1:], explained=plane.explained)


status_router = APIRouter()


@status_router.get("/v1/packs", tags=["status"], responses=PROBLEMS)
async def packs(service: Here) -> PacksResponse:
    """Tell which pack is served, by which version, within which limits."""
    captioner, config = service.engine.captioner, service.config
    model = captioner.language_model
    square = captioner.encoder.image.dimension == captioner.encoder.text.dimension
    methods = [name for name in METHODS if square or name not in ("identity", "beta-procrustes")]
    served = PackBody(
        name=config.pack,
        encoder=without_folders(captioner.encoder.name),
        method=captioner.settings.method,
        methods=methods,
        shares_space=captioner.encoder.shares_space,
        captions=len(captioner.datastore),
        sources=captioner.datastore.sources(),
        language_model=without_folders(model.name) if model else None,
        calibrated=captioner.calibration is not None,
        settings=captioner.settings.as_dict(),
        about=captioner.about.as_dict(),
    )
    limits = LimitsBody(
        bytes=config.max_body, pixels=config.max_pixels, pictures=config.max_pictures, urls=config.allow_urls
    )
    return PacksResponse(version=__version__, editable=config.editable, limits=limits, packs=[served])


def without_folders(name: str) -> str:
    """Return the name of an encoder or a model; of one that lies in a local file, only the last part of its path."""
    kind, colon, place = name.partition(":")
    return f"{kind}:{Path(place).name}" if colon and Path(place).is_absolute() else name


@status_router.get("/healthz", tags=["status"], responses={500: {"description": "It has to be started again."}})
async def health(service: Here) -> Health:
    """Tell that the process is there and can work."""
    if service.batcher.died:
        raise Problem(500, "the worker has died; start the service again")
    return Health(status="ok", version=__version__)


@status_router.get("/readyz", tags=["status"], responses={503: PROBLEMS[503]})
async def ready(request: Request, service: Here) -> Health:
    """Tell whether requests are accepted."""
    if request.app.state.stopping or not service.batcher.ready:
        raise Problem.busy("the service is stopping", 5)
    return Health(status="ok", version=__version__)


@status_router.get(
    "/metrics",
    tags=["status"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: PROBLEMS[401]},
)
async def metrics(service: Here) -> Response:
    """Return counters for Prometheus."""
    service.metrics.waiting.set(service.batcher.waiting)
    return Response(service.metrics.text(), media_type=MEDIA_TYPE)


@status_router.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> HTMLResponse:
    """List what the service answers to: one page that loads nothing else."""
    schema = request.app.openapi()
    rows = [
        f"<li><code>{method.upper()} {escape(path)}</code> {escape(_what(operation))}</li>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>recap</title>'
        '<meta name="viewport" content="width=device-width"><h1>recap</h1>'
        f"<p>Version {escape(__version__)}. The whole description: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"<ul>{''.join(rows)}</ul></html>"
    )


def _what(operation: dict[str, Any]) -> str:
    return str(operation.get("description", ""))
