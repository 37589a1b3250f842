"""Errors as ``application/problem+json`` (RFC 9457), with the words that the command line uses."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from recap.errors import ImageError, InputError, RecapError
from recap.server.config import MAX_ERRORS

MEDIA_TYPE = "application/problem+json"
CLIENT_GONE = 499
"""Nobody reads this status; it tells abandoned requests apart in the log and in the metrics."""

logger = logging.getLogger("recap.server")


class Problem(HTTPException):
    """An error of a request: a status and a sentence."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.errors = errors

    @classmethod
    def busy(cls, detail: str, seconds: int) -> Problem:
        """Return a 503 that says when to come again."""
        return cls(503, detail, headers={"Retry-After": str(seconds)})

    @classmethod
    def of(cls, error: RecapError) -> Problem:
        """Return the problem for an error of recap."""
        return cls(422 if isinstance(error, InputError) else 500, str(error))

    def as_dict(self) -> dict[str, Any]:
        """Return the body: type, title, status, detail, and what is wrong in particular."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": _phrase(self.status_code),
            "status": self.status_code,
            "detail": self.detail,
        }
        return body if self.errors is None else {**body, "errors": self.errors}

    def response(self, path: str = "") -> Response:
        """Return the response; clients of OpenAI and Ollama look for the sentence under ``error``."""
        values = self.as_dict()
        if path.startswith("/api/"):
            values["error"] = self.detail
        elif path.startswith(("/v1/chat/", "/v1/models")):
            values["error"] = {"message": self.detail, "type": values["title"], "param": None, "code": None}
        # ASCII only: texts from a request may hold what UTF-8 has no form for
        body = json.dumps(values, ensure_ascii=True).encode()
        return Response(body, self.status_code, headers=self.headers, media_type=MEDIA_TYPE)


def rename_error(error: Exception, old: str, new: str) -> ImageError:
    """Return an error about a picture under the name its sender knows it by."""
    return ImageError(f"{new}: {str(error).removeprefix(f'{old}: ')}")


def validation_problem(error: RequestValidationError | ValidationError) -> Problem:
    """Return what is wrong with the fields of a request, never what was in them."""
    found = error.errors()
    errors = [
        {"field": ".".join(map(str, item["loc"]))[:200] or "body", "detail": str(item["msg"])[:500]}
        for item in found[:MAX_ERRORS]
    ]
    first = errors[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem(422, f"{first['field']}: {first['detail']}{more}", errors=errors)


async def answer(request: Request, error: Exception) -> Response:
    """Return a response for any error: the handler of the application's exceptions."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, RequestValidationError | ValidationError):
        return validation_problem(error).response(request.url.path)
    if isinstance(error, RecapError):
        problem = Problem.of(error)
        if problem.status_code >= 500:
            logger.error("%s: %s", type(error).__name__, error)
        return problem.response(request.url.path)
    if isinstance(error, Problem):
        return error.response(request.url.path)
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=error.headers).response(request.url.path)
    return Problem(500, "something went wrong inside the service; its log says what").response(request.url.path)


HANDLERS: dict[int | type[Exception], Any] = dict.fromkeys(
    (HTTPException, RequestValidationError, ValidationError, RecapError, ClientDisconnect, Exception), answer
)
"""Exceptions of the application, and what answers them."""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
