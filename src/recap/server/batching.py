"""One worker that serves many requests at once.

Requests put tasks into a bounded queue. The worker takes what has come while it was busy, up to a batch, encodes the
pictures of all of them together, and then does for each group of like tasks what is left: one search, one call of the
language model. A caption does not depend on its batch, so nobody can tell, except by the time it takes. When one
request comes alone it does not wait for others.

Everything that touches the captioner happens in the worker's thread, so changes of the datastore need no lock.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recap.encoders.inputs import label
from recap.errors import ImageError
from recap.server.config import PIXEL_BUDGET
from recap.server.middleware import Metrics
from recap.server.problems import Problem, rename_error
from recap.types import Vectors

logger = logging.getLogger("recap.server")


@dataclass(frozen=True, slots=True)
class Picture:
    """What somebody sent, looked at but not decoded yet."""

    name: str
    content: bytes = field(repr=False)
    cost: int
    """How many pixels it counts for; see ``forms.decoding_cost``."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something a request wants done. Tasks with the same ``run`` and ``group`` are done together."""

    run: Callable[..., Sequence[Any]]
    """Called with the arguments of several tasks, the vectors of their pictures, and what is in ``group``."""
    argument: Any = None
    group: tuple[Hashable, ...] = ()
    picture: Picture | None = None
    """The picture whose vector is needed, if one is."""


@dataclass(eq=False, slots=True)
class _Job:
    task: Task
    future: Future[Any] = field(default_factory=Future)
    vector: Vectors | None = None


class Batcher:
    """A bounded queue and the thread that works it off; the limits are those of ``ServerConfig``.

    ``encode`` yields for each picture its vector or the reason why there is none. ``on_death`` is called when the
    worker dies of something that no request should be able to cause.
    """

    def __init__(
        self,
        encode: Callable[[Iterable[bytes]], Iterator[Vectors | ImageError]],
        metrics: Metrics,
        *,
        max_queue: int,
        max_batch: int,
        max_pixels: int,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._encode = encode
        self._on_death = on_death
        self._metrics = metrics
        self._max_queue, self._max_batch, self._max_pixels = max_queue, max_batch, max_pixels
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 0.1
        """What a task took lately, to say when there will be room again."""
        self._thread = threading.Thread()
        self.died = False
        """Whether the worker has ended though nobody asked it to."""

    def start(self) -> None:
        """Begin to work, or begin again."""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="recap-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what was accepted, accept nothing more, and return when the last is done."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def ready(self) -> bool:
        """Whether tasks are accepted."""
        return self._thread.is_alive() and not self._closing

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    def submit(self, tasks: Sequence[Task]) -> list[Future[Any]]:
        """Accept all tasks or none, and return where their results will be.

        A future that is cancelled takes its task with it, as far as that has not been done yet.
        """
        jobs = [_Job(task) for task in tasks]
        with self._changed:
            if self.died:
                raise _restart_problem()
            if not self.ready:
                raise Problem.busy("the service is stopping", 5)
            self._drop_cancelled()
            if len(self._waiting) + len(jobs) > self._max_queue:
                self._metrics.rejected.inc(len(jobs))
                seconds = min(60, math.ceil(len(self._waiting) * self._seconds) or 1)
                raise Problem.busy(f"{len(self._waiting)} pictures are waiting already; try again later", seconds)
            self._waiting.extend(jobs)
            self._metrics.accepted.inc(len(jobs))
            self._changed.notify()
        return [job.future for job in jobs]

    def _drop_cancelled(self) -> None:
        alive = [job for job in self._waiting if not job.future.cancelled()]
        self._waiting.clear()
        self._waiting.extend(alive)

    def _work(self) -> None:
        try:
            self._work_loop()
        except BaseException:
            logger.exception("the worker died")
            with self._changed:
                self.died = True
                jobs = [*self._waiting]
                self._waiting.clear()
            for job in jobs:
                _settle(job.future, _restart_problem())
            self._on_death()

    def _work_loop(self) -> None:
        while batch := self._next_batch():
            started = time.perf_counter()
            self._process(batch)
            seconds = time.perf_counter() - started
            self._seconds += 0.2 * (seconds / len(batch) - self._seconds)
            self._metrics.batch_size.observe(len(batch))
            self._metrics.batch_seconds.observe(seconds)

    def _next_batch(self) -> list[_Job]:
        """Return what waits, up to a batch; nothing when the service closes and all is done."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._waiting or self._closing:
                    break
                self._changed.wait()
            batch: list[_Job] = []
            pixels = 0
            while self._waiting and len(batch) < self._max_batch:
                picture = self._waiting[0].task.picture
                pixels += picture.cost if picture else 0
                if batch and pixels > PIXEL_BUDGET * self._max_pixels:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _process(self, batch: list[_Job]) -> None:
        try:
            self._encode_pictures(batch)
            groups: dict[Hashable, list[_Job]] = {}
            for job in batch:
                if not job.future.done():
                    groups.setdefault((job.task.run, job.task.group), []).append(job)
            for jobs in groups.values():
                self._run_group([job for job in jobs if not job.future.cancelled()])
        except BaseException as error:
            logger.exception("a batch failed")
            for job in batch:
                _settle(job.future, error if isinstance(error, Exception) else _restart_problem())
            if not isinstance(error, Exception):
                raise

    def _encode_pictures(self, batch: list[_Job]) -> None:
        jobs = [(job, job.task.picture) for job in batch if job.task.picture is not None]
        vectors = self._encode([picture.content for _, picture in jobs]) if jobs else ()
        for (job, picture), vector in zip(jobs, vectors, strict=True):
            if isinstance(vector, ImageError):
                _settle(job.future, rename_error(vector, label(picture.content), picture.name))
            else:
                job.vector = vector

    def _run_group(self, jobs: list[_Job]) -> None:
        """Do like tasks together, or one by one when that fails, so that nobody suffers for another's request."""
        if not jobs:
            return
        vectors = [job.vector for job in jobs if job.vector is not None]
        first = jobs[0].task
        try:
            arguments = [job.task.argument for job in jobs]
            results = first.run(arguments, np.stack(vectors) if vectors else None, *first.group)
        except Exception as error:
            if len(jobs) == 1:
                _settle(jobs[0].future, error)
                return
            for job in jobs:
                self._run_group([job])
            return
        for job, result in zip(jobs, results, strict=True):
            _settle(job.future, result)


def _restart_problem() -> Problem:
    return Problem(500, "the service has to be started again; its log says why")


def _settle(future: Future[Any], outcome: Any) -> None:
    """Give a future its result or its error; whoever has cancelled it does not want it."""
    try:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass
