"""Counters for Prometheus, one set for each application.

One line in the log and one count in the metrics for each request: never its content, its query or its sender.
"""

from __future__ import annotations

import logging
import time
import uuid
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap import __version__

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
