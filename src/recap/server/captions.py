"""Routes: caption, retrieve, score, map."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import StreamingResponse

from recap.errors import ImageError
from recap.server import forms
from recap.server.batching import Picture
from recap.server.problems import Problem
from recap.server.schemas import (
    CaptionBody,
    CaptionForm,
    CaptionResponse,
    EvidenceBody,
    MapBody,
    MapForm,
    MapResponse,
    PictureResult,
    Point,
    RetrieveForm,
    RetrieveResponse,
    ScoreBody,
    ScoreForm,
    ScoreResponse,
)
from recap.server.service import PROBLEMS, Service, form_body, reason, service_of
from recap.server.tasks import CaptionTask, MapTask, Plane, RetrieveTask, ScoreTask
from recap.server.waiting import as_finished, finished
from recap.types import Caption, Evidence

router = APIRouter(prefix="/v1", tags=["captions"], responses=PROBLEMS)
Here = Annotated[Service, Depends(service_of)]


@router.post("/caption", openapi_extra=form_body(CaptionForm, several=True))
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


@router.post(
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


@router.post("/retrieve", openapi_extra=form_body(RetrieveForm, several=False))
async def retrieve(request: Request, service: Here) -> RetrieveResponse:
    """Find the captions nearest to a picture."""
    found, form = await service.read(request, RetrieveForm)
    picture = forms.only(found)
    evidence = await service.one(request, RetrieveTask(service.engine, picture, form.k, form.aligned, form.method))
    return RetrieveResponse(name=picture.name, aligned=form.aligned, evidence=_evidence(evidence))


@router.post("/score", openapi_extra=form_body(ScoreForm, several=False))
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


@router.post("/map", openapi_extra=form_body(MapForm, several=False))
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
