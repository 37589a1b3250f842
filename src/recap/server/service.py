"""What the routes share: the captioner's worker, the configuration, and what is asked of every form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from recap.errors import ImageError, RecapError
from recap.server import forms
from recap.server.batching import Batcher, Picture, Task
from recap.server.config import ServerConfig
from recap.server.fetching import Fetcher
from recap.server.limits import ACCOUNT
from recap.server.metrics import Metrics
from recap.server.schemas import Form, ProblemBody
from recap.server.tasks import Engine
from recap.server.waiting import finished

AnyForm = TypeVar("AnyForm", bound=Form)

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
        received = await forms.receive(request, self.config)
        settings = forms.settings(received, form)
        return await forms.pictures(received, self.config, self.fetcher, request.scope[ACCOUNT].take), settings

    async def one(self, request: Request, task: Task) -> Any:
        """Return the result of one task."""
        (result,) = await finished(request, self.batcher.submit([task]), self.config.timeout)
        if isinstance(result, BaseException):
            raise result
        return result


def service_of(request: Request) -> Service:
    """Return the service that a request is for."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def reason(error: BaseException) -> str:
    """Return what a picture's sender is told about a failure."""
    return str(error) if isinstance(error, RecapError) else "something went wrong inside the service"


def form_body(form: type[Form], *, several: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a form with pictures."""
    schema = form.model_json_schema()
    picture = {"type": "string", "format": "binary", "description": "A picture."}
    listed = {"type": "array", "items": picture, **({} if several else {"maxItems": 1})}
    address = {"type": "array", "items": {"type": "string"}, "description": "Addresses, with --allow-urls."}
    schema["properties"] = {forms.IMAGE: listed, **schema["properties"], forms.URL: address}
    for value in schema["properties"].values():
        # a field that is left out is not sent as null
        if "anyOf" in value:
            value.update(next(kind for kind in value.pop("anyOf") if kind.get("type") != "null"))
            value.pop("default", None)
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
