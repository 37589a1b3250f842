"""What the routes share: the captioner's worker, the configuration, and what is asked of every form.

Waiting for the worker on behalf of a request that may be abandoned or take too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from recap.encoders.fetching import Fetcher
from recap.errors import ImageError, RecapError
from recap.packs.settings import Settings
from recap.server import forms
from recap.server.batching import Batcher, Picture, Task
from recap.server.config import ServerConfig
from recap.server.metrics import Metrics
from recap.server.middleware import ACCOUNT
from recap.server.problems import Problem
from recap.server.schemas import Form, ProblemBody
from recap.server.tasks import Engine


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

    async def run_task(self, request: Request, task: Task) -> Any:
        """Return the result of one task."""
        (result,) = await wait_for_results(request, self.batcher.submit([task]), self.config.timeout)
        if isinstance(result, BaseException):
            raise result
        return result


def service_of(request: Request) -> Service:
    """Return the service that a request is for."""
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
