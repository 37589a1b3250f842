"""Who does the parts: this process, one after the other, or the machines of a Ray cluster.

Ray is imported here and nowhere else, when a cluster is asked for. Parts that need an encoder or a captioner go through
Ray Data to a pool of actors, one for each device; each loads what it needs once. Sums are taken by tasks in a tree. Ray
does again elsewhere what was lost with a machine.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from recap.errors import InputError, MissingExtraError, RecapError

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
    return RayRunner(address, **options)


OBJECT_STORE = 500_000_000
"""Bytes of memory for what a cluster that is started here passes between processes: names, captions and sums."""

LOCAL = "local"
"""The address of a cluster that is started here, even where another one runs."""

FAN_IN = 8
"""Number of sums that a task adds."""

ANSWER_SECONDS = 5
"""Timeout of a cluster that does not answer."""

RETRIES = 5
"""Retries of a task whose machine is lost."""
RESTARTS = 20
"""Restarts of an actor; more often, and a part that it was given is to blame."""
ANY = -1
"""Parts of an actor that is being started again are given to it until it answers: each attempt would count."""


class RayRunner:
    """Does parts on a cluster.

    Args:
        address: of a running cluster: ``auto`` for the one of this machine, ``HOST:PORT``, or ``ray://HOST:PORT``;
            ``local`` for one that is started on this machine for as long as this process lives; empty for the one
            that RAY_ADDRESS names, or else as ``local``.
        cpus: how many cores a cluster that is started here has; by default all.
    """

    remote = True

    def __init__(self, address: str = "", *, cpus: int | None = None) -> None:
        self._ray = connect(address, cpus=cpus)

    def map(
        self, prepare: Prepare[Item, Result], items: Sequence[Item], device: str = "cpu"
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number of each item with its result, as they come."""
        if not items:
            return
        rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
        asked = rows, pickle.dumps(prepare), min(len(items), self.devices(device)), device
        with _explained(self._ray):
            for number, content in self._driven(*asked) if self._ray.util.client.ray.is_connected() else _drive(*asked):
                result = pickle.loads(content)
                if isinstance(result, RecapError):
                    raise result
                yield number, result

    def _driven(self, *asked: Any) -> Iterator[tuple[int, bytes]]:
        """Do as ``_drive`` for a client of ``ray://``, in which Ray Data cannot work: in an actor of the cluster."""
        driver = self._ray.remote(num_cpus=0)(_Driver).remote(*asked)
        while (found := self._ray.get(driver.go_on.remote())) is not None:
            yield found

    def total(self, work: Callable[[Item], Result], items: Sequence[Item], add: Callable[..., Result]) -> Result:
        """Return the sum of the results, added by tasks in a tree of ``FAN_IN`` branches."""
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)
        one, some = task(work), task(add)
        level = [one.remote(item) for item in items]
        while len(level) > 1:
            level = [some.remote(*level[start : start + FAN_IN]) for start in range(0, len(level), FAN_IN)]
        with _explained(self._ray):
            total: Result = self._ray.get(level[0])
            return total

    def devices(self, device: str = "cpu") -> int:
        """Return how many there are in the cluster: graphics cards, or cores."""
        there = self._ray.cluster_resources()
        count = int(there.get("GPU" if device == "cuda" else "CPU", 0))
        if count < 1:
            raise InputError(f"the Ray cluster has no {'GPU' if device == 'cuda' else 'CPU'} to work with")
        return count


def _drive(rows: list[dict[str, Any]], prepare: bytes, size: int, device: str) -> Iterator[tuple[int, bytes]]:
    """Have ``size`` actors do parts; yield their numbers with what ``_Actor`` made of them."""
    import ray.data

    # a block for each item, so that a task has one
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Actor,
        fn_constructor_args=(prepare,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=size),
        num_cpus=1,
        num_gpus=1 if device == "cuda" else 0,
        max_task_retries=ANY,
        max_restarts=RESTARTS,
    )
    for row in done.iter_rows():
        yield int(row["number"]), row["result"]


class _Driver:
    """``_drive`` on the cluster, a part at a time."""

    def __init__(self, *asked: Any) -> None:
        self._found = _drive(*asked)

    def go_on(self) -> tuple[int, bytes] | None:
        """Return the next part, and None after the last."""
        return next(self._found, None)


class _Actor:
    """Does parts on one device, as Ray Data calls it."""

    def __init__(self, prepare: bytes) -> None:
        self._prepare = prepare
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"number": batch["number"], "result": [self._done(item) for item in batch["item"]]}

    def _done(self, item: bytes) -> bytes:
        try:
            # not in __init__: Ray takes an error there for a lost machine, and tries again for minutes
            if self._work is None:
                self._work = pickle.loads(self._prepare)()
            return pickle.dumps(self._work(pickle.loads(item)))
        except RecapError as error:
            return pickle.dumps(_plain(error))


def connect(address: str = "", *, cpus: int | None = None) -> Any:
    """Connect to a cluster, or start one on this machine, and return the module of Ray."""
    given = address or os.environ.get("RAY_ADDRESS") or LOCAL
    check_reachable(given)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read when Ray is loaded
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("working on a Ray cluster", "ray") from error
    # what the cluster does again by itself is no news for the user
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if ray.is_initialized():
        return ray
    own: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    # what this process was told about caches and limits holds for the others, too
    settings = {name: value for name, value in os.environ.items() if name.startswith("RECAP_")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                given,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": settings} if settings else None,
                **(own if given == LOCAL else {}),
            )
    except Exception as error:  # Ray raises nearly anything, and some of it as plain exceptions
        if given == LOCAL:
            raise InputError(f"Ray cannot be started on this machine: {error}") from error
        raise InputError(f"the Ray cluster at {given} cannot be reached: {error}") from error
    return ray


def check_reachable(address: str) -> None:
    """Raise ``InputError`` if nobody answers at the host and port of an address; Ray would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\s]+?)\]?:(\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:  # OverflowError: no such port
        raise InputError(f"the Ray cluster at {address} cannot be reached: {error}") from error


@contextmanager
def _explained(ray: Any) -> Iterator[None]:
    """Turn what Ray raises into what the part raised, or into an error that says what to look at."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RecapError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        raise RecapError(
            f"the Ray cluster gave up: workers were lost again and again; the logs of Ray say more ({error})"
        ) from error


def _plain(error: RecapError) -> RecapError:
    """Return an error that can travel: those with arguments of their own become the general one."""
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:
        return RecapError(str(error))
    return error
