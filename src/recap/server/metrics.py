"""Counters for Prometheus, one set for each application."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from recap import __version__

MEDIA_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Everything that is counted."""

    def __init__(self, pack: str = "") -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge("recap_build_info", "Version and pack.", ["version", "pack"], registry=self.registry)
        build.labels(__version__, pack).set(1)
        self.requests = Counter(
            "recap_requests", "Requests by route and status.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "recap_request_seconds", "Time from the first byte to the answer.", ["route"], registry=self.registry
        )
        self.accepted = Counter("recap_tasks_accepted", "Tasks that were put into the queue.", registry=self.registry)
        self.rejected = Counter(
            "recap_tasks_rejected", "Tasks for which the queue had no room.", registry=self.registry
        )
        self.waiting = Gauge("recap_tasks_waiting", "Tasks in the queue.", registry=self.registry)
        self.batch_size = Histogram(
            "recap_batch_size", "Tasks worked on together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self.batch_seconds = Histogram("recap_batch_seconds", "Time a batch took.", registry=self.registry)
        self.received = 0
        """Requests that came in."""
        self.answered = 0
        """Requests whose answer was sent to its end."""
        self.held = Gauge("recap_body_bytes_held", "Bytes of requests in memory.", registry=self.registry)

    def text(self) -> bytes:
        """Return all values as Prometheus reads them."""
        return generate_latest(self.registry)
