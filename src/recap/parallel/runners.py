"""Who does the parts: this process, one after the other, or the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Prepare = Callable[[], Callable[[Item], Result]]
"""Loads what the work needs, such as an encoder, and returns what does one part. It travels to other machines."""


class Runner(Protocol):
    """Does parts."""

    remote: bool
    """Whether other processes do the work; what they cannot see of this one they have to be told."""

    def map(
        self, prepare: Prepare[Item, Result], items: Sequence[Item], device: str = "cpu"
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number of each item with its result, in any order; every device prepares once."""
        ...

    def total(self, work: Callable[[Item], Result], items: Sequence[Item], add: Callable[..., Result]) -> Result:
        """Return the sum of the results; ``add`` takes some of them and returns theirs."""
        ...

    def devices(self, device: str = "cpu") -> int:
        """Return how many work side by side."""
        ...


class LocalRunner:
    """Does parts in this process, one after the other."""

    remote = False

    def map(
        self, prepare: Prepare[Item, Result], items: Sequence[Item], device: str = "cpu"
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number of each item with its result, in order."""
        if items:
            work = prepare()
            for number, item in enumerate(items):
                yield number, work(item)

    def total(self, work: Callable[[Item], Result], items: Sequence[Item], add: Callable[..., Result]) -> Result:
        """Return the sum of the results."""
        total = work(items[0])
        for item in items[1:]:
            total = add(total, work(item))
        return total

    def devices(self, device: str = "cpu") -> int:
        """Return how many work side by side."""
        return 1


def runner(address: str | None, **options: Any) -> Runner:
    """Return what does the parts: this process where ``address`` is None, otherwise the cluster there."""
    if address is None:
        return LocalRunner()
    from recap.parallel.ray import RayRunner

    return RayRunner(address, **options)
