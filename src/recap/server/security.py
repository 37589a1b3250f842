"""Who may speak with the service, and what browsers are told about its answers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.server.config import ServerConfig
from recap.server.problems import Problem

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
