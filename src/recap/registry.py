"""Tables of what users choose by name: encoders, language models, metrics, rules, output formats, experiments.

An entry is one line of a table. One named ``hf:NAME_OR_FOLDER`` stands for every name that begins with ``hf:``. Other
packages add entries to a table that has an entry point group::

    [project.entry-points."recap.encoders"]
    mine = "my_package:ENTRY"          # an entry named mine, or mine:ARGUMENT

They are imported when they are named or listed, and never take the place of one of recap's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from recap.errors import InputError, RecapWarning, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Loader = str | Callable[..., Any]
"""A function, or where it is imported from when it is needed: ``module:function``."""


@dataclass(frozen=True)
class Entry:
    """What all entries have; each table adds what its users call."""

    name: str
    help: str
    """A line for lists and help texts."""
    _: KW_ONLY
    licence: str = ""
    extra: str = ""
    """The extra of recap to install before it can be used."""
    requires: tuple[str, ...] = ()
    """The modules that this extra brings."""

    @property
    def missing_extra(self) -> str | None:
        """The extra that is not installed here; None when all is there."""
        return None if all(find_spec(module) for module in self.requires) else self.extra


AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Registry(Generic[AnyEntry]):
    """A table of entries by name.

    Args:
        what: what an entry is, for messages: ``encoder``.
        entries: recap's own, in the order in which they are listed.
        group: the entry point group by which other packages add theirs; they cannot where it is empty.
    """

    def __init__(self, what: str, entries: Iterable[AnyEntry], *, group: str = "") -> None:
        self.what = what
        self._group = group
        self._own = {_stem(entry.name): entry for entry in entries}

    def names(self) -> tuple[str, ...]:
        """Return the names of all entries; other packages are not imported for it."""
        return (*(entry.name for entry in self._own.values()), *self._plugins())

    def get(self, name: str) -> AnyEntry:
        """Return the entry for a name, or raise ``UnknownNameError``, which says what may have been meant."""
        stem = _stem(name)
        entry = self._own.get(stem)
        if entry is None and (plugin := self._plugins().get(stem)) is not None:
            entry = self._load(plugin)
        if entry is None or not _fits(name, entry.name):
            raise UnknownNameError(self.what, name, self.names())
        return entry

    def __contains__(self, name: str) -> bool:
        try:
            self.get(name)
        except UnknownNameError:
            return False
        return True

    def __iter__(self) -> Iterator[AnyEntry]:
        yield from self._own.values()
        for plugin in self._plugins().values():
            try:
                yield self._load(plugin)
            except InputError as error:
                warnings.warn(str(error), RecapWarning, stacklevel=2)

    def _plugins(self) -> dict[str, EntryPoint]:
        if not self._group:
            return {}
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self._group) if point.name not in self._own}

    def _load(self, plugin: EntryPoint) -> AnyEntry:
        where = f"the {self.what} {plugin.name!r} of the package {plugin.dist.name if plugin.dist else '?'}"
        kind = type(next(iter(self._own.values())))
        try:
            entry = plugin.load()
        except Exception as error:  # somebody else's code raises anything
            raise InputError(f"{where} cannot be imported: {error or type(error).__name__}") from error
        if not isinstance(entry, kind) or _stem(entry.name) != plugin.name:
            raise InputError(f"{where}: {plugin.value} is no {kind.__name__} of that name")
        return entry


def load(loader: Loader, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a loader; its first argument is what stands behind the colon of ``name``, where there is one."""
    function = resolve_name(loader) if isinstance(loader, str) else loader
    _, colon, behind = name.partition(":")
    return function(behind, *arguments, **options) if colon else function(*arguments, **options)


def _stem(name: str) -> str:
    return name.partition(":")[0]


def _fits(name: str, entry: str) -> bool:
    return bool(name.partition(":")[2]) if ":" in entry else name == entry
