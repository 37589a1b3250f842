"""The bounded queue between two stages that run in threads of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class BrokenChannelError(Exception):
    """Another stage has given up, so this one ends too."""


class Waits:
    """How long each thread has waited for the others; the rest of its time it worked."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, seconds: float) -> None:
        """Count seconds for the thread that calls."""
        name = threading.current_thread().name
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def of(self, name: str) -> float:
        """Return the seconds of the thread with this name."""
        return self._seconds.get(name, 0.0)


class Channel(Generic[T]):
    """Hands items from one thread to another, at most ``depth`` of them waiting between the two."""

    def __init__(self, depth: int, waits: Waits) -> None:
        self._depth = depth
        self._waits = waits
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._broken = False

    def put(self, item: T) -> None:
        """Hand over one item, when there is room for it."""
        with self._changed:
            self._wait(lambda: len(self._items) < self._depth)
            self._items.append(item)
            self._changed.notify_all()

    def close(self) -> None:
        """Say that no more items come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def break_off(self) -> None:
        """End the work of both sides, whatever is still waiting."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._wait(lambda: bool(self._items) or self._closed)
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not ready() and not self._broken:
            started = time.perf_counter()
            self._changed.wait_for(lambda: self._broken or ready())
            self._waits.add(time.perf_counter() - started)
        if self._broken:
            raise BrokenChannelError
