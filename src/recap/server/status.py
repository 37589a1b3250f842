"""Routes: what is served, whether it is well, and how it is used."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from recap import __version__
from recap.alignment.mapping import METHODS
from recap.server.metrics import MEDIA_TYPE
from recap.server.problems import Problem
from recap.server.schemas import Health, LimitsBody, PackBody, PacksResponse
from recap.server.service import PROBLEMS, Service, service_of

router = APIRouter()
Here = Annotated[Service, Depends(service_of)]


@router.get("/v1/packs", tags=["status"], responses=PROBLEMS)
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


@router.get("/healthz", tags=["status"], responses={500: {"description": "It has to be started again."}})
async def health(service: Here) -> Health:
    """Tell that the process is there and can work."""
    if service.batcher.died:
        raise Problem(500, "the worker has died; start the service again")
    return Health(status="ok", version=__version__)


@router.get("/readyz", tags=["status"], responses={503: PROBLEMS[503]})
async def ready(request: Request, service: Here) -> Health:
    """Tell whether requests are accepted."""
    if request.app.state.stopping or not service.batcher.ready:
        raise Problem.busy("the service is stopping", 5)
    return Health(status="ok", version=__version__)


@router.get(
    "/metrics",
    tags=["status"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: PROBLEMS[401]},
)
async def metrics(service: Here) -> Response:
    """Return counters for Prometheus."""
    service.metrics.waiting.set(service.batcher.waiting)
    return Response(service.metrics.text(), media_type=MEDIA_TYPE)


@router.get("/docs", include_in_schema=False)
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
