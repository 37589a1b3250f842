"""Routes: the pictures of one folder, found by a text and shown. Nothing outside that folder can be named."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from recap.batch.report import thumbnail
from recap.packs.search import PictureIndex
from recap.server import schemas
from recap.server.batching import Task
from recap.server.problems import Problem
from recap.server.service import PROBLEMS, Service, service_of

search_router = APIRouter(prefix="/v1/search", tags=["search"], responses=PROBLEMS)


def searched_pictures(request: Request) -> PictureIndex:
    """Return the pictures that can be searched, if there are any."""
    index = service_of(request).engine.index
    if index is None:
        raise Problem(403, "no pictures can be searched here; recap serve --search FOLDER allows it")
    return index


Here = Annotated[Service, Depends(service_of)]
Pictures = Annotated[PictureIndex, Depends(searched_pictures)]


@search_router.post("")
async def search(
    query: schemas.SearchQuery, request: Request, service: Here, pictures: Pictures
) -> schemas.SearchResponse:
    """Find the pictures of the served folder that a text describes."""
    ranked = await service.run_task(request, Task(service.engine.search, query.text, (query.k,)))
    folder = service.config.search or FilePath()
    results = [
        schemas.FoundPicture(
            id=place, name=FilePath(pictures.paths[place]).relative_to(folder).as_posix(), similarity=similarity
        )
        for place, similarity in ranked
    ]
    return schemas.SearchResponse(text=query.text, total=len(pictures.paths), results=results)


@search_router.get(
    "/{id}",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def found_thumbnail(pictures: Pictures, id: Annotated[int, Path(ge=0, le=10**9)]) -> Response:
    """Return a small picture of one that can be found, by its number."""
    if id >= len(pictures.paths):
        raise Problem(404, f"there is no picture {id}; the last is {len(pictures.paths) - 1}")
    shown = await asyncio.to_thread(thumbnail, pictures.paths[id])
    if shown is None:
        raise Problem(404, f"picture {id} cannot be read any more")
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=72)
    return Response(buffer.getvalue(), media_type="image/jpeg")
