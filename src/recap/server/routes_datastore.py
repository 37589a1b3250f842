"""Routes: the captions of the pack, looked at and changed while it is served.

Changes are in effect at once. They last as long as the service, unless it was started with ``--save-edits``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path as FolderPath
from typing import Annotated, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request

from recap.datastore import MutableStore
from recap.errors import InputError, PackError, RecapError
from recap.packs import folder as pack
from recap.server import schemas
from recap.server.batching import Task
from recap.server.problems import Problem
from recap.server.service import PROBLEMS, Service, service_of

logger = logging.getLogger("recap.server")
datastore_router = APIRouter(prefix="/v1/datastore", tags=["datastore"], responses=PROBLEMS)


async def editable_service(request: Request) -> Service:
    """Return the service, if its datastore may be looked at and changed."""
    service = await service_of(request)
    if not service.config.editable:
        raise Problem(403, "the datastore cannot be looked at or changed here; recap serve --editable allows it")
    return service


Here = Annotated[Service, Depends(editable_service)]
Result = TypeVar("Result")


@datastore_router.get("")
async def list_captions(
    request: Request,
    service: Here,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    contains: Annotated[str, Query(max_length=200, description="Only captions with this in them.")] = "",
    source: Annotated[str | None, Query(max_length=200, description="Only captions of this source.")] = None,
) -> schemas.DatastorePage:
    """List captions in the order they came."""

    def page() -> schemas.DatastorePage:
        store = _store(service)
        ids = store.find(source=source)
        if contains:
            wanted = contains.casefold()
            ids = np.array([row.id for row in store.rows(ids) if wanted in row.text.casefold()], dtype=np.int64)
        shown = store.rows(ids[offset : offset + limit])
        return schemas.DatastorePage(total=len(ids), captions=[schemas.StoredCaption(**asdict(row)) for row in shown])

    return await _done(service, request, page)


@datastore_router.get("/search")
async def search_captions(
    request: Request,
    service: Here,
    text: Annotated[str, Query(min_length=1, max_length=1000, pattern=r"\S")],
    k: Annotated[int, Query(ge=1, le=100)] = 10,
) -> schemas.DatastoreHits:
    """Find the captions nearest to a text."""

    def search() -> schemas.DatastoreHits:
        captioner, store = service.engine.captioner, _store(service)
        query = captioner.alignment.transform_texts(captioner.encoder.encode_texts([text]))
        found = store.search(query, k)
        valid = found.ids[0] >= 0
        rows = zip(store.rows(found.ids[0][valid]), found.similarities[0][valid].tolist(), strict=True)
        return schemas.DatastoreHits(
            captions=[schemas.FoundCaption(**asdict(row), similarity=value) for row, value in rows]
        )

    return await _done(service, request, search)


@datastore_router.post("", status_code=201)
async def add_captions(request: Request, service: Here, new: schemas.NewCaptions) -> schemas.DatastoreChange:
    """Add captions; those that are there already, of the same source and image, are added again."""
    return await _done(service, request, lambda: _change(service, lambda store: _append(service, store, new.captions)))


@datastore_router.delete("/{id}")
async def remove_caption(
    request: Request, service: Here, id: Annotated[int, Path(ge=0, le=2**53)]
) -> schemas.DatastoreChange:
    """Remove a caption."""
    return await _done(service, request, lambda: _change(service, lambda store: _remove(store, id)))


async def _done(service: Service, request: Request, action: Callable[[], Result]) -> Result:
    """Have the worker do something alone: no two of these functions are the same, so they have no group."""
    result: Result = await service.run_task(request, Task(lambda arguments, vectors: [action()]))
    return result


def _append(service: Service, store: MutableStore, rows: list[schemas.NewCaption]) -> list[int]:
    texts = [" ".join(row.text.split()) for row in rows]
    ids = store.add(
        texts,
        service.engine.captioner.encoder.encode_texts(texts),
        source=[row.source for row in rows],
        synthetic=[row.synthetic for row in rows],
        image_ids=[row.image_id for row in rows],
    )
    return [int(number) for number in ids]


def _remove(store: MutableStore, id: int) -> list[int]:
    if len(store) == 1 and id in store.ids:
        raise Problem(422, "the last caption cannot be removed: there would be nothing to retrieve")
    try:
        store.remove([id])
    except InputError as error:
        raise Problem(404, f"there is no caption with the id {id}") from error
    return [id]


def _change(service: Service, change: Callable[[MutableStore], list[int]]) -> schemas.DatastoreChange:
    """Make a change, and write it to the pack's folder, where that was asked for.

    A change that cannot be saved is not made. Where another process has changed the pack, it is made to what is there.
    """
    folder = service.config.save_edits
    ids = change(_store(service)) if folder is None else _save_change(service, change, folder)
    return schemas.DatastoreChange(ids=ids, size=len(_store(service)), saved=folder is not None)


def _save_change(service: Service, change: Callable[[MutableStore], list[int]], folder: FolderPath) -> list[int]:
    with pack.changing(folder):
        for attempt in (1, 2):
            try:
                ids = change(_store(service))
                _store(service).commit()
                pack.refresh_card(folder, _store(service))
                return ids
            except InputError:
                raise
            except (RecapError, OSError) as error:
                logger.warning("a change of the datastore was not saved: %s", error)
                service.engine.reload(folder)
                if attempt == 2 or not isinstance(error, PackError):
                    raise Problem(500, "the change could not be saved, and was not made; the log says why") from error
    raise AssertionError("the second attempt returns or raises")


def _store(service: Service) -> MutableStore:
    store = service.engine.captioner.datastore
    if not isinstance(store, MutableStore):
        raise InputError("several datastores are served as one here; they cannot be changed")
    return store
