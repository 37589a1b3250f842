"""Who may speak with the service, what browsers are told about its answers, and how much of a body is read.

Bodies are limited in length, in time, and in how much of all of them is held in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.server.config import ServerConfig
from recap.server.metrics import Metrics
from recap.server.problems import Problem

MAX_JSON = 256 * 1024
"""Bytes of a body that is no form: a hundred captions of a thousand characters, and room to spare."""

ACCOUNT = "recap.account"
"""Where a request's scope has its account of memory."""


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


class Account:
    """What one request holds."""

    def __init__(self, memory: Memory) -> None:
        self.size = 0
        self.open = True
        self._memory = memory

    def take(self, size: int) -> None:
        """Hold more; ``Problem`` when there is no room. May be called in any thread."""
        self._memory.take(self, size)


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
        # pictures come in forms; anything else is parsed as a whole, in the loop that serves everybody
        is_form = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self._config.max_body if is_form else min(self._config.max_body, MAX_JSON)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            await _too_large(limit).response()(scope, receive, send)
            return
        body = _Body(receive, self._config.body_timeout)

        async def guarded() -> Message:
            message = await body.next()
            if body.size > limit:
                raise _too_large(limit)
            account.take(len(message.get("body", b"")))
            return message

        with self._memory.account() as account:
            scope[ACCOUNT] = account
            await self.app(scope, guarded, send)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request is over the limit of {limit} bytes")


class _Body:
    """The body of one request as it arrives."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self.size = 0
        self._receive = receive
        self._seconds = seconds
        self._deadline: float | None = None
        self._complete = False

    async def next(self) -> Message:
        """Return the next message; before the body is complete, only until its time is over."""
        if self._complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._seconds
        try:
            message = await asyncio.wait_for(self._receive(), self._deadline - now)
        except TimeoutError as error:
            raise Problem(408, f"the request did not arrive within {self._seconds:g} seconds") from error
        self.size += len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


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

PROTECTED = ("/v1/", "/metrics")
"""Paths that need a key where keys are configured; the rest is the page, its documentation and health."""


class Keys:
    """Keys that open the service, compared in a time that says nothing about them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __contains__(self, given: str) -> bool:
        digest, found = _digest(given), False
        # no early end: how long it takes must not depend on which key fits
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


class Guard:
    """Middleware that turns away strangers: no key, another name than the service's, a page of another origin."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._keys = Keys(config.api_keys)
        self._hosts = config.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or say why not; every answer gets the security headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith("/v1/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        problem = self._refusal(scope["path"], Headers(scope=scope))
        if problem is None:
            await self.app(scope, receive, with_headers)
        else:
            await problem.response()(scope, receive, with_headers)

    def _refusal(self, path: str, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if self._hosts is not None and _without_port(host) not in self._hosts:
            return Problem(403, "this service does not answer to that name; recap serve --host-name allows it")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Problem(403, "requests from pages of other origins are not answered")
        if self._keys and path.startswith(PROTECTED) and _given_key(headers) not in self._keys:
            challenge = {"WWW-Authenticate": 'Bearer realm="recap"'}
            return Problem(401, "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY", headers=challenge)
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _given_key(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
