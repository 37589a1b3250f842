"""Waiting for the worker on behalf of a request that may be abandoned or take too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

from recap.server.problems import Problem


async def finished(request: Request, work: Sequence[Future[Any]], timeout: float) -> list[Any]:
    """Return the result or the error of each future; if nobody waits any more, what is left of the work is dropped."""
    gone = asyncio.ensure_future(_disconnected(request))
    with _awaitable(work) as futures:
        waiting = asyncio.gather(*futures, return_exceptions=True)
        try:
            both: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return list(waiting.result())
            if gone.done():
                raise ClientDisconnect
            raise too_late(timeout)
        finally:
            gone.cancel()
            # what becomes of abandoned work interests nobody, so asyncio need not complain that nobody asked
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            waiting.cancel()


async def as_finished(work: Sequence[Future[Any]], timeout: float) -> AsyncIterator[tuple[int, Any]]:
    """Yield the number of each future with its result or error, as they come."""
    with _awaitable(work) as futures:
        places = {future: place for place, future in enumerate(futures)}
        pending = set(futures)
        deadline = asyncio.get_running_loop().time() + timeout
        while pending:
            left = deadline - asyncio.get_running_loop().time()
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise too_late(timeout)
            for future in sorted(done, key=places.__getitem__):
                yield places[future], future.exception() or future.result()


def too_late(timeout: float) -> Problem:
    """Return what a request is told whose time is over."""
    return Problem.busy(f"the answer took longer than {timeout:g} seconds; try again later", 5)


@contextmanager
def _awaitable(work: Sequence[Future[Any]]) -> Iterator[list[asyncio.Future[Any]]]:
    """Make futures of the worker awaitable here, and cancel those that are left over."""
    futures = [asyncio.wrap_future(future) for future in work]
    try:
        yield futures
    finally:
        for future in futures:
            future.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has gone away; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
