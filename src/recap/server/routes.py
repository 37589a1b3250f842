"""Routes: caption, retrieve, score, map, search; packs, health, metrics, documentation; and the page for people."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi import Path as PathParameter
from starlette.responses import Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from recap import __version__
from recap.alignment.mapping import METHODS
from recap.batch.report import thumbnail
from recap.datasets.records import printable
from recap.errors import ImageError
from recap.packs.search import PictureIndex
from recap.server import schemas
from recap.server.batching import Picture, Task
from recap.server.middleware import MEDIA_TYPE
from recap.server.problems import Problem
from recap.server.service import (
    PROBLEMS,
    Service,
    describe_error,
    describe_form,
    iterate_results,
    service_of,
    wait_for_results,
)
from recap.types import Caption, Evidence

captions_router = APIRouter(prefix="/v1", tags=["captions"], responses=PROBLEMS)
Here = Annotated[Service, Depends(service_of)]


@captions_router.post("/caption", openapi_extra=describe_form(schemas.CaptionForm, several=True))
async def caption(request: Request, service: Here) -> schemas.CaptionResponse:
    """Caption one picture or several. What cannot be read is named; if nothing can, the answer is 422."""
    found, form = await service.read(request, schemas.CaptionForm)
    tasks = _tasks(service, found, form)
    done = iter(await wait_for_results(request, service.batcher.submit(tasks), service.config.timeout) if tasks else ())
    outcomes = [item if isinstance(item, ImageError) else next(done) for item in found]
    results = [_result(number, *pair) for number, pair in enumerate(zip(found, outcomes, strict=True))]
    if not any(isinstance(outcome, Caption) for outcome in outcomes):
        for outcome in outcomes:
            if not isinstance(outcome, ImageError):
                raise outcome
        errors = [{"field": result.name, "detail": result.error or ""} for result in results]
        raise Problem(422, errors[0]["detail"], errors=errors)
    return schemas.CaptionResponse(results=results)


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
    openapi_extra=describe_form(schemas.CaptionForm, several=True),
    response_class=StreamingResponse,
    responses=STREAM,
)
async def caption_stream(request: Request, service: Here) -> StreamingResponse:
    """Caption pictures, and send each result as it is done, as server-sent events."""
    found, form = await service.read(request, schemas.CaptionForm)
    tasks = _tasks(service, found, form)
    work = service.batcher.submit(tasks) if tasks else []
    places = [place for place, item in enumerate(found) if isinstance(item, Picture)]

    async def events() -> AsyncIterator[str]:
        count = 0

        def event(place: int, outcome: Any) -> str:
            nonlocal count
            count += 1
            result = _result(place, found[place], outcome).model_dump()
            return _event("picture", {**result, "done": count, "total": len(found)})

        for place, item in enumerate(found):
            if isinstance(item, ImageError):
                yield event(place, item)
        try:
            async for number, outcome in iterate_results(work, service.config.timeout):
                yield event(places[number], outcome)
        except Problem as problem:
            yield _event("problem", problem.as_dict())
            return
        yield _event("done", {"total": len(found)})

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@captions_router.post("/retrieve", openapi_extra=describe_form(schemas.RetrieveForm, several=False))
async def retrieve(request: Request, service: Here) -> schemas.RetrieveResponse:
    """Find the captions nearest to a picture."""
    picture, form = await service.read_one(request, schemas.RetrieveForm)
    common = (form.k, form.aligned, form.method)
    evidence = await service.run_task(request, Task(service.engine.retrieve, None, common, picture))
    return schemas.RetrieveResponse(name=picture.name, aligned=form.aligned, evidence=_evidence(evidence))


@captions_router.post("/tags", openapi_extra=describe_form(schemas.TagForm, several=False))
async def tags(request: Request, service: Here) -> schemas.TagResponse:
    """Find the keywords of a picture."""
    picture, form = await service.read_one(request, schemas.TagForm)
    keywords = await service.run_task(request, Task(service.engine.tag, None, (form.min_score,), picture))
    return schemas.TagResponse(name=picture.name, tags=[schemas.TagBody(**asdict(tag)) for tag in keywords])


@captions_router.post("/score", openapi_extra=describe_form(schemas.ScoreForm, several=False))
async def score(request: Request, service: Here) -> schemas.ScoreResponse:
    """Judge captions of a picture: aligned cosine and aCLIP-S, and RefaCLIP-S where references are given."""
    picture, form = await service.read_one(request, schemas.ScoreForm)
    texts = (form.caption, form.reference)
    scores = await service.run_task(request, Task(service.engine.score, texts, (form.method,), picture))
    method = form.method or service.engine.captioner.settings.method
    return schemas.ScoreResponse(name=picture.name, method=method, scores=scores)


@captions_router.post("/map", openapi_extra=describe_form(schemas.MapForm, several=False))
async def chart(request: Request, service: Here) -> schemas.MapResponse:
    """Draw a picture among the captions nearest to it, in two dimensions, before and after alignment."""
    picture, form = await service.read_one(request, schemas.MapForm)
    task = Task(service.engine.chart, None, (form.k, form.method), picture)
    evidence, aligned, unaligned = await service.run_task(request, task)
    return schemas.MapResponse(name=picture.name, evidence=_evidence(evidence), aligned=aligned, unaligned=unaligned)


def _tasks(service: Service, found: Sequence[Picture | ImageError], form: schemas.CaptionForm) -> list[Task]:
    settings, exclude = form.settings(), frozenset(form.exclude)
    service.engine.captioner.settings.but(**dict(settings))  # what cannot be is refused before it is queued
    return [Task(service.engine.caption, exclude, (settings,), item) for item in found if isinstance(item, Picture)]


def _result(number: int, item: Picture | ImageError, outcome: Any) -> schemas.PictureResult:
    name = item.name if isinstance(item, Picture) else str(item).partition(": ")[0]
    if isinstance(outcome, Caption):
        return schemas.PictureResult(index=number, name=name, result=schemas.CaptionBody.of(outcome))
    return schemas.PictureResult(index=number, name=name, error=describe_error(outcome))


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _evidence(items: Sequence[Evidence]) -> list[schemas.EvidenceBody]:
    return [schemas.EvidenceBody.model_validate(asdict(item)) for item in items]


packs_router, health_router, metrics_router = (APIRouter(tags=["status"]) for _ in range(3))


@packs_router.get("/v1/packs", responses=PROBLEMS)
async def packs(service: Here) -> schemas.PacksResponse:
    """Tell which pack is served, by which version, within which limits."""
    captioner, config = service.engine.captioner, service.config
    model = captioner.language_model
    square = captioner.encoder.image.dimension == captioner.encoder.text.dimension
    methods = [name for name in METHODS if square or name not in ("identity", "beta-procrustes")]
    served = schemas.PackBody(
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
    limits = schemas.LimitsBody(
        bytes=config.max_body,
        pixels=config.max_pixels,
        pictures=config.max_pictures,
        urls=config.allow_urls,
        search=len(service.engine.index.paths) if service.engine.index else None,
    )
    return schemas.PacksResponse(version=__version__, editable=config.editable, limits=limits, packs=[served])


def without_folders(name: str) -> str:
    """Return the name of an encoder or a model; of one that lies in a local file, only the last part of its path."""
    kind, colon, place = name.partition(":")
    return f"{kind}:{Path(place).name}" if colon and Path(place).is_absolute() else name


@health_router.get("/healthz", responses={500: {"description": "It has to be started again."}})
async def health(service: Here) -> schemas.Health:
    """Tell that the process is there and can work."""
    if service.batcher.died:
        raise Problem(500, "the worker has died; start the service again")
    return schemas.Health(status="ok", version=__version__)


@health_router.get("/readyz", responses={503: PROBLEMS[503]})
async def ready(request: Request, service: Here) -> schemas.Health:
    """Tell whether requests are accepted."""
    if request.app.state.stopping or not service.batcher.ready:
        raise Problem.busy("the service is stopping", 5)
    return schemas.Health(status="ok", version=__version__)


@metrics_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: PROBLEMS[401]},
)
async def metrics(service: Here) -> Response:
    """Return counters for Prometheus."""
    service.metrics.waiting.set(service.batcher.waiting)
    return Response(service.metrics.text(), media_type=MEDIA_TYPE)


PAGE = Path(__file__).parent / "page"
SAMPLES = next(
    (place for place in (PAGE / "samples", PAGE.parents[3] / "examples" / "pictures") if place.is_dir()), None
)
"""Where pictures to try are: in an installed package, or in a checkout."""

page_router = APIRouter(include_in_schema=False)
page_files = StaticFiles(directory=PAGE)
swagger_files = StaticFiles(packages=[("fastapi_offline", "static")])
sample_files = StaticFiles(directory=SAMPLES, check_dir=False)


@page_router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return await _file(page_files, "index.html", request)


@page_router.get("/docs")
async def documentation(request: Request) -> Response:
    """Return the page about the service's API, on which it can be tried: Swagger UI, from an installed package."""
    return await _file(page_files, "docs.html", request)


@page_router.get("/static/swagger/{name}")
async def swagger(request: Request, name: str) -> Response:
    """Return a file of Swagger UI."""
    return await _file(swagger_files, name, request)


@page_router.get("/static/samples.json")
async def samples() -> list[str]:
    """List the pictures to try."""
    return sorted(path.name for path in SAMPLES.glob("*.jpg")) if SAMPLES else []


@page_router.get("/static/samples/{name}")
async def sample(request: Request, name: str) -> Response:
    """Return a picture to try."""
    return await _file(sample_files, name, request)


@page_router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Return a file of the page."""
    return await _file(page_files, name, request)


async def _file(files: StaticFiles, name: str, request: Request) -> Response:
    """Return a file; browsers keep it and ask each time, so that after an update they have the new page as a whole."""
    response = await files.get_response(name, request.scope)
    response.headers["Cache-Control"] = "no-cache"
    return response


search_router = APIRouter(prefix="/v1/search", tags=["search"], responses=PROBLEMS)


async def searched_pictures(request: Request) -> PictureIndex:
    """Return the pictures that can be searched, if there are any."""
    index = (await service_of(request)).engine.index
    if index is None:
        raise Problem(403, "no pictures can be searched here; recap serve --search FOLDER allows it")
    return index


Pictures = Annotated[PictureIndex, Depends(searched_pictures)]


@search_router.post("")
async def search(
    query: schemas.SearchQuery, request: Request, service: Here, pictures: Pictures
) -> schemas.SearchResponse:
    """Find the pictures of the served folder that a text describes."""
    ranked = await service.run_task(request, Task(service.engine.search, query.text, (query.k,)))
    folder = service.config.search or Path()
    results = [
        schemas.FoundPicture(
            id=place,
            name=printable(Path(pictures.paths[place]).relative_to(folder).as_posix()),
            similarity=similarity,
        )
        for place, similarity in ranked
    ]
    return schemas.SearchResponse(text=query.text, total=len(pictures.paths), results=results)


@search_router.get(
    "/{id}",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def found_thumbnail(pictures: Pictures, id: Annotated[int, PathParameter(ge=0, le=10**9)]) -> Response:
    """Return a small picture of one that can be found, by its number."""
    if id >= len(pictures.paths):
        raise Problem(404, f"there is no picture {id}; the last is {len(pictures.paths) - 1}")
    shown = await asyncio.to_thread(thumbnail, pictures.paths[id])
    if shown is None:
        raise Problem(404, f"picture {id} cannot be read any more")
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=72)
    return Response(buffer.getvalue(), media_type="image/jpeg")
