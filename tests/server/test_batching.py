from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from recap.errors import ImageError, InputError
from recap.server.batching import Batcher, Picture, Task
from recap.server.middleware import Metrics
from recap.server.problems import Problem


@dataclass(eq=False)
class Log:
    """What the worker has done, and a gate at which it waits while it encodes."""

    encoded: list[list[bytes]] = field(default_factory=list)
    groups: list[list[bytes]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def encode(self, contents: Iterable[bytes]) -> Iterator[Any]:
        batch = list(contents)
        self.encoded.append(batch)
        self.begun.set()
        assert self.gate.wait(10)
        for content in batch:
            broken = content.startswith(b"broken")
            yield ImageError(f"<{len(content)} bytes>: broken") if broken else np.float32([len(content)])

    def double(self, contents: Sequence[bytes], vectors: Any, group: Hashable) -> list[float]:
        self.groups.append(list(contents))
        if any(content.startswith(b"refused") for content in contents):
            raise InputError("refused")
        return [2 * float(vector[0]) for vector in vectors]


def task(log: Log, content: bytes, group: Hashable = "", cost: int = 1) -> Task:
    return Task(log.double, content, (group,), Picture(content.decode(), content, cost))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def batcher(log: Log) -> Iterator[Batcher]:
    made = Batcher(log.encode, Metrics(), max_queue=8, max_batch=6, max_pixels=10)
    made.start()
    yield made
    log.gate.set()
    made.close()


def hold(batcher: Batcher, log: Log) -> None:
    """Keep the worker busy with a first picture until the gate opens."""
    batcher.submit([task(log, b"first")])
    assert log.begun.wait(10)


def test_what_comes_while_the_worker_is_busy_is_one_batch(batcher: Batcher, log: Log):
    hold(batcher, log)
    futures = [batcher.submit([task(log, content)])[0] for content in (b"a", b"bb", b"ccc")]
    log.gate.set()
    assert [future.result(10) for future in futures] == [2, 4, 6]
    assert log.encoded == [[b"first"], [b"a", b"bb", b"ccc"]]
    assert log.groups == [[b"first"], [b"a", b"bb", b"ccc"]]


def test_groups_are_worked_on_apart_but_encoded_together(batcher: Batcher, log: Log):
    hold(batcher, log)
    futures = batcher.submit([task(log, b"a", "x"), task(log, b"bb", "y"), task(log, b"ccc", "x")])
    log.gate.set()
    assert [future.result(10) for future in futures] == [2, 4, 6]
    assert log.encoded[1] == [b"a", b"bb", b"ccc"]
    assert log.groups[1:] == [[b"a", b"ccc"], [b"bb"]]


def test_a_batch_is_bounded_in_number_and_in_pixels(batcher: Batcher, log: Log):
    hold(batcher, log)
    futures = batcher.submit([task(log, b"%d" % n, cost=9 if n == 1 else 3) for n in range(8)])
    log.gate.set()
    for future in futures:
        future.result(10)
    assert [len(batch) for batch in log.encoded[1:]] == [4, 4]


def test_one_is_not_harmed_by_another(batcher: Batcher, log: Log):
    hold(batcher, log)
    good, broken, refused = batcher.submit([task(log, name) for name in (b"good", b"broken", b"refused")])
    log.gate.set()
    assert good.result(10) == 8
    with pytest.raises(ImageError, match=r"^broken: broken$"):
        broken.result(10)
    with pytest.raises(InputError, match="refused"):
        refused.result(10)


def test_a_full_queue_says_when_to_come_again_and_takes_nothing(batcher: Batcher, log: Log):
    hold(batcher, log)
    batcher.submit([task(log, b"a")] * 6)
    with pytest.raises(Problem, match="waiting already") as caught:
        batcher.submit([task(log, b"b")] * 3)
    assert caught.value.status_code == 503
    assert int(dict(caught.value.headers or {})["Retry-After"]) >= 1
    assert batcher.waiting == 6
    batcher.submit([task(log, b"b")] * 2)


def test_cancelled_work_is_not_done_and_makes_room(batcher: Batcher, log: Log):
    hold(batcher, log)
    gone = batcher.submit([task(log, b"gone")] * 8)
    assert all(future.cancel() for future in gone)
    (kept,) = batcher.submit([task(log, b"kept")])
    log.gate.set()
    assert kept.result(10) == 8
    assert log.encoded == [[b"first"], [b"kept"]]


def test_work_that_is_cancelled_while_it_is_encoded_goes_no_further(batcher: Batcher, log: Log):
    (future,) = batcher.submit([task(log, b"first")])
    assert log.begun.wait(10)
    assert future.cancel()
    log.gate.set()
    (after,) = batcher.submit([task(log, b"after")])
    assert after.result(10) == 10
    assert log.groups == [[b"after"]]
    with pytest.raises(CancelledError):
        future.result(0)


def test_closing_finishes_what_was_accepted_and_accepts_no_more(batcher: Batcher, log: Log):
    hold(batcher, log)
    futures = batcher.submit([task(log, b"a")] * 8)
    threading.Timer(0.05, log.gate.set).start()
    batcher.close()
    assert [future.result(0) for future in futures] == [2] * 8
    with pytest.raises(Problem, match="stopping"):
        batcher.submit([task(log, b"late")])


def test_a_worker_that_dies_says_so(log: Log) -> None:
    ended = threading.Event()

    def fatal(_: Iterable[bytes]) -> Iterator[Any]:
        raise SystemExit

    made = Batcher(fatal, Metrics(), max_queue=8, max_batch=6, max_pixels=10, on_death=ended.set)
    made.start()
    (future,) = made.submit([task(log, b"a")])
    with pytest.raises(Problem, match="started again"):
        future.result(10)
    assert ended.wait(10)
    assert made.died
    with pytest.raises(Problem, match="started again"):
        made.submit([task(log, b"a")])
