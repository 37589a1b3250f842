"""From paths to captions in stages that overlap.

    reading      ``workers`` threads      hash a file, and see whether its content is known
    encoding     a thread                 the encoder decodes and encodes pictures in threads of its own
    captioning   a thread                 retrieve, write and judge for a batch at a time
    writing      the caller               whatever it does with what it is handed

Between the stages are bounded queues, so memory does not grow with the number of pictures. A caption does not depend
on the batch it was made in.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from recap.batch.formats import FileFacts
from recap.encoders.network import cores, unjoined_pool
from recap.errors import ImageError
from recap.packs.settings import BATCH
from recap.types import Caption, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap

T = TypeVar("T")


class BrokenChannelError(Exception):
    """Another stage has given up, so this one ends too."""


class Waits(dict[str, float]):
    """How long each thread has waited for the others, by its name; the rest of its time it worked."""

    def add(self, seconds: float) -> None:
        """Count seconds for the thread that calls."""
        name = threading.current_thread().name
        self[name] = self.get(name, 0.0) + seconds


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


DEPTH = 2 * BATCH
"""Capacity of the queue between two stages, in pictures."""

CaptionFile = Callable[[Path], Caption]
"""Captions a file that is no picture, such as a video, or raises ``ImageError``."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file on its way through the stages."""

    path: str
    file: FileFacts | None = None
    """None if it could not be read."""
    known: int | None = None
    """The place of its content in the journal, if it is there."""
    result: Caption | ImageError | None = None


class Pipeline:
    """Captions many files, which ``workers`` threads read: by default as many as there are cores.

    ``known`` returns for the sha256 of a file a number if it need not be captioned, and is called in several threads;
    ``others`` has what captions files that are no pictures, by their suffix in lower case.
    """

    def __init__(
        self,
        captioner: ReCap,
        *,
        workers: int | None = None,
        known: Callable[[str], int | None] = lambda sha256: None,
        others: Mapping[str, CaptionFile] | None = None,
    ) -> None:
        self.captioner = captioner
        self.workers = workers or cores()
        self.known = known
        self.others = others or {}
        self.busy: dict[str, float] = {}
        """Seconds each stage has worked in the last run, not counting what it waited for the others."""

    def run(self, paths: Iterable[str]) -> Generator[Item, None, None]:
        """Yield each file with its result, or with its place among what is known, in no fixed order."""
        run = _Run(self, paths)
        self.busy = run.busy
        return run.items()


class _Run:
    """One run: its queues and threads."""

    def __init__(self, pipeline: Pipeline, paths: Iterable[str]) -> None:
        self.pipeline = pipeline
        self.paths = iter(paths)
        self.busy = {"reading": 0.0, "encoding": 0.0, "captioning": 0.0, "writing": 0.0}
        self._waits = Waits()
        self._encoded: Channel[tuple[Item, Vectors | None]] = Channel(DEPTH, self._waits)
        self._done: Channel[Item] = Channel(DEPTH, self._waits)
        self._failures: list[BaseException] = []
        self._reading = threading.Lock()

    def items(self) -> Generator[Item, None, None]:
        """Start the stages and yield what comes out of the last."""
        stages = [("encoding", self._encode, self._encoded), ("captioning", self._caption, self._done)]
        threads = [threading.Thread(target=self._stage, name=f"recap-{stage[0]}", args=stage) for stage in stages]
        for thread in threads:
            thread.start()
        try:
            for item in self._done:
                started = time.perf_counter()
                yield item
                self.busy["writing"] += time.perf_counter() - started
        except BrokenChannelError:
            raise self._failures[0] from None
        finally:
            self._break_off()
            for thread in threads:
                thread.join()

    def _stage(self, name: str, work: Callable[[], None], output: Channel[Any]) -> None:
        started = time.perf_counter()
        try:
            work()
            output.close()
        except BrokenChannelError:
            pass
        except BaseException as error:
            self._failures.append(error)
            self._break_off()
        self.busy[name] = time.perf_counter() - started - self._waits.get(threading.current_thread().name, 0.0)

    def _break_off(self) -> None:
        self._encoded.break_off()
        self._done.break_off()

    def _encode(self) -> None:
        """Send pictures through the encoder; what needs no encoding goes past it."""
        waiting: deque[Item] = deque()

        def pictures() -> Iterator[Path]:
            for item in self._looked():
                if item.known is not None:
                    self._done.put(item)
                elif Path(item.path).suffix.lower() in self.pipeline.others:
                    self._encoded.put((item, None))
                else:
                    waiting.append(item)
                    yield Path(item.path)

        for vector in self.pipeline.captioner.encode_each(pictures()):
            item = waiting.popleft()
            if isinstance(vector, ImageError):
                self._done.put(replace(item, result=vector))
            elif item.file is None:
                self._done.put(replace(item, result=ImageError(f"{item.path}: changed while it was read")))
            else:
                self._encoded.put((item, vector))

    def _caption(self) -> None:
        """Caption what was encoded, a batch at a time."""
        encoded = iter(self._encoded)
        while batch := list(islice(encoded, BATCH)):
            vectors = [vector for _, vector in batch if vector is not None]
            captions = iter(self.pipeline.captioner.caption_vectors(np.stack(vectors)) if vectors else ())
            for item, vector in batch:
                result = self._caption_other(item) if vector is None else next(captions)
                self._done.put(replace(item, result=result))

    def _caption_other(self, item: Item) -> Caption | ImageError:
        path = Path(item.path)
        if item.file is None:
            return ImageError(f"{path}: {'cannot be read' if path.exists() else 'there is no such file'}")
        try:
            return self.pipeline.others[path.suffix.lower()](path)
        except ImageError as error:
            return error

    def _looked(self) -> Iterator[Item]:
        """Yield the files in order, looked at by threads, a few ahead."""
        workers = self.pipeline.workers
        ahead: deque[Future[Item]] = deque()
        with unjoined_pool(workers, "recap-read") as pool:
            ahead.extend(pool.submit(self._look, path) for path in islice(self.paths, 4 * workers))
            while ahead:
                started = time.perf_counter()
                item = ahead.popleft().result()
                self._waits.add(time.perf_counter() - started)
                ahead.extend(pool.submit(self._look, path) for path in islice(self.paths, 1))
                yield item

    def _look(self, path: str) -> Item:
        """Hash a file and see whether it is known. One that cannot be read goes on, so that the encoder says why."""
        started = time.perf_counter()
        file = file_facts(path)
        known = None if file is None else self.pipeline.known(file.sha256)
        with self._reading:
            self.busy["reading"] += (time.perf_counter() - started) / self.pipeline.workers
        return Item(path, file, known)


def file_facts(path: str) -> FileFacts | None:
    """Return what tells a file from others, read in small pieces; None if it is no file that can be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - half a million Path objects cost memory
            return None
        with open(path, "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            return FileFacts(hashlib.file_digest(file, "sha256").hexdigest(), status.st_size, status.st_mtime_ns)
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return None
