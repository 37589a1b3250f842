"""What every request passes: counters and the log, hosts, keys, security headers, and how much of a body is read.

There is one line in the log and one count in the metrics for each request: never its content, its query or its sender.
Bodies are limited in length, in time, and in how much of all of them is held in memory. Starlette's middleware for
bodies has one limit for all and no time; here forms may be larger than json.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from fastapi.security import APIKeyHeader, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap import __version__
from recap.server.config import MAX_JSON, ServerConfig
from recap.server.problems import Problem

MEDIA_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Everything that is counted."""

    def __init__(self, pack: str = "") -> None:
        self.registry = registry = CollectorRegistry()
        count, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        distribution = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        gauge("recap_build_info", "Version and pack.", ["version", "pack"]).labels(__version__, pack).set(1)
        self.requests = count("recap_requests", "Requests by route and status.", ["method", "route", "status"])
        self.seconds = distribution("recap_request_seconds", "Time from the first byte to the answer.", ["route"])
        self.accepted = count("recap_tasks_accepted", "Tasks that were put into the queue.")
        self.rejected = count("recap_tasks_rejected", "Tasks for which the queue had no room.")
        self.waiting = gauge("recap_tasks_waiting", "Tasks in the queue.")
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self.batch_size = distribution("recap_batch_size", "Tasks worked on together.", buckets=sizes)
        self.batch_seconds = distribution("recap_batch_seconds", "Time a batch took.")
        self.held = gauge("recap_body_bytes_held", "Bytes of requests in memory.")
        self.received = 0
        """Requests that came in."""
        self.answered = 0
        """Requests whose answer was sent to its end."""

    def text(self) -> bytes:
        """Return all values as Prometheus reads them."""
        return generate_latest(self.registry)


logger = logging.getLogger("recap.server")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Observer:
    """Middleware that measures requests and gives each a number, which its answer carries as ``X-Request-ID``."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and take note of the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number, started, status = uuid.uuid4().hex[:12], time.perf_counter(), 500
        self._metrics.received += 1

        async def count_answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = number
                if scope["app"].state.stopping:
                    # whoever sent the next request on this connection would lose it
                    headers["Connection"] = "close"
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._metrics.answered += 1

        try:
            await self.app(scope, receive, count_answer)
        finally:
            seconds = time.perf_counter() - started
            route, method = _route(scope), scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            logger.info("%s %s %s %d %.0f ms", number, method, route, status, 1000 * seconds)


def _route(scope: Scope) -> str:
    """Return the path as the application declares it, so that neither log nor metrics hold what a client made up."""
    return str(getattr(scope.get("route"), "path", "unknown"))


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

PROTECTED = ("/v1/", "/api/", "/metrics")
"""Paths that need a key where keys are configured; the rest is the page, its documentation and health."""

WITH_PICTURES = (
    *(f"/v1/{name}" for name in ("caption", "caption/stream", "retrieve", "tags", "score", "map", "chat/completions")),
    *("/api/generate", "/api/chat"),
)
"""Paths whose body may be json with pictures in it; it is parsed outside of the loop that serves everybody."""

BEARER = HTTPBearer(auto_error=False, description="A key of the service.")
KEY_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key, in a header of its own.")

ACCOUNT = "recap.account"
"""Where a request's scope has its account of memory."""


class Keys:
    """Keys that open the service, compared in a time that says nothing about them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __contains__(self, key: str) -> bool:
        digest, known = _digest(key), False
        # no early end: how long it takes must not depend on which key fits
        for other in self._digests:
            known |= hmac.compare_digest(digest, other)
        return known


class SecurityHeaders:
    """Middleware that adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if scope["path"].startswith(("/v1/", "/api/")):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self.app(scope, receive, send_with_headers)


class TrustedHosts:
    """Starlette's check of the Host header, with a refusal that says which option would allow the name."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None) -> None:
        self.app = app
        self._hosts = ["*"] if hosts is None else list(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""

        async def pass_on(scope: Scope, receive: Receive, _: Send) -> None:
            await self.app(scope, receive, send)

        async def refuse(message: Message) -> None:
            if message["type"] == "http.response.start":
                problem = Problem(403, "this service does not answer to that name; recap serve --host-name allows it")
                await problem.response(scope["path"])(scope, receive, send)

        await TrustedHostMiddleware(pass_on, self._hosts, www_redirect=False)(scope, receive, refuse)


class Guard:
    """Middleware that turns away pages of other origins, and whoever has no key."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], origins: Iterable[str] = ()) -> None:
        self.app = app
        self._keys = Keys(keys)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or say why not; the body is not read before."""
        problem = await self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (problem.response(scope["path"]) if problem else self.app)(scope, receive, send)

    async def _refusal(self, request: Request) -> Problem | None:
        origin = request.headers.get("origin")
        if origin is not None and not self._is_allowed(origin.lower(), request.headers.get("host", "").lower()):
            return Problem(403, "requests from pages of other origins are not answered; recap serve --cors allows one")
        if not self._keys or not request.scope["path"].startswith(PROTECTED):
            return None
        key = await _read_key(request)
        if not key:
            detail, error = "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY", ""
        elif key not in self._keys:
            detail, error = "this key is not one of the service's", ', error="invalid_token"'
        else:
            return None
        return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="recap"{error}'})

    def _is_allowed(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host or not self._origins.isdisjoint((origin, "*"))


class HeadRequests:
    """Middleware that answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)


async def _read_key(request: Request) -> str:
    bearer = await BEARER(request)
    return bearer.credentials.strip() if bearer else await KEY_HEADER(request) or ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Memory:
    """The bytes that all requests hold which are being answered: what was sent, and what was fetched for them."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._held = 0
        self._lock = threading.Lock()

    @contextmanager
    def account(self) -> Iterator[Account]:
        """Yield the account of a request, which is closed when the request has been answered."""
        account = Account(self)
        try:
            yield account
        finally:
            with self._lock:
                account.open = False
                self._change(-account.size)

    def take(self, account: Account, size: int) -> None:
        """Let a request hold more."""
        with self._lock:
            if not account.open:
                raise Problem.busy("the request is over", 2)
            account.size += size
            self._change(size)
            if self._held > self._limit:
                raise Problem.busy("the memory for requests is full; try again later", 2)

    def _change(self, size: int) -> None:
        self._held += size
        self._metrics.held.set(self._held)


@dataclass(slots=True)
class Account:
    """What one request holds."""

    memory: Memory
    size: int = 0
    open: bool = True

    def take(self, size: int) -> None:
        """Hold more; ``Problem`` when there is no room. May be called in any thread."""
        self.memory.take(self, size)


class BodyLimits:
    """Middleware that stops reading a body that is too large, too slow, or for which there is no memory now."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self.app = app
        self._config = config
        self._memory = Memory(config.max_held, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body under guard."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # a form is parsed part by part, a picture not at all, and a json body only where pictures are expected in one
        kind = headers.get("content-type", "").lower()
        has_pictures = kind.startswith(("multipart/", "image/")) or scope["path"] in WITH_PICTURES
        limit = self._config.max_body if has_pictures else min(self._config.max_body, MAX_JSON)
        too_large = Problem(413, f"the request is over the limit of {limit} bytes")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            await too_large.response(scope["path"])(scope, receive, send)
            return
        seconds, size, complete = self._config.body_timeout, 0, False
        deadline = asyncio.get_running_loop().time() + seconds

        async def receive_limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise Problem(408, f"the request did not arrive within {seconds:g} seconds") from error
            length = len(message.get("body", b""))
            size += length
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            if size > limit:
                raise too_large
            account.take(length)
            return message

        with self._memory.account() as account:
            scope[ACCOUNT] = account
            await self.app(scope, receive_limited, send)
