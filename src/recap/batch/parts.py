"""``recap caption`` in parts: pictures go to whoever is free, captions come back and are kept as on one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from recap.batch.journal import Journal
from recap.batch.pipeline import CaptionFile, Item, Pipeline
from recap.datasets.pairs import TAR_SUFFIXES
from recap.datastore.collection import Address
from recap.datastore.view import MILVUS
from recap.encoders.inputs import is_web_address
from recap.errors import ImageError, InputError
from recap.packs.config import CONFIG, PackConfig
from recap.packs.folder import BUILTINS
from recap.parallel import storage
from recap.parallel.parts import Part, Record, find_parts, picture_parts
from recap.parallel.runners import Runner, runner

if TYPE_CHECKING:
    from recap.captioner import ReCap

SIZE = 32
"""Pictures in a part: seconds of work, even with a language model."""
FETCHED = 64
"""Pictures of a bucket or an archive on this machine at a time."""
FETCHERS = 8
"""Pictures that are fetched side by side."""


@dataclass(frozen=True, slots=True)
class Todo:
    """A part, and which of its pictures are done."""

    part: Part
    done: frozenset[str] = frozenset()
    """Those inside of an archive."""


@dataclass(frozen=True, slots=True)
class Captioning:
    """Loads a captioner on the machine it finds itself on."""

    pack: str
    device: str = "cpu"
    language_model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    """Pictures that an archive may name and that need not be captioned."""
    captioner: ReCap | None = None
    """The captioner itself, where it need not travel,"""
    others: Mapping[str, CaptionFile] = field(default_factory=dict)
    """and what captions files that are no pictures."""

    def __call__(self) -> Callable[[Todo], Iterable[Item]]:
        """Return what captions the pictures of a part; one of ``done`` comes without a caption."""
        Image.MAX_IMAGE_PIXELS = None  # recap has a limit of its own, which the user can raise
        if self.captioner is None:
            captioner = self._loaded()
            return lambda todo: list(_captioned(captioner, todo, self.done, self.others))
        here = self.captioner
        # one by one, so that a killed process loses nothing of a long archive
        return lambda todo: _captioned(here, todo, self.done, self.others)

    def _loaded(self) -> ReCap:
        from recap.captioner import ReCap

        loaded = ReCap.from_pretrained(self.pack, language_model=self.language_model, device=self.device)
        return loaded.configured(**self.settings)


@dataclass(frozen=True, slots=True)
class CaptionParts:
    """Captions pictures in parts: those of buckets and archives, and all where a cluster does the work."""

    task: Captioning
    runner: Runner
    elsewhere: Sequence[Part] = ()
    """Pictures in buckets or archives; those on this machine are given with the call."""

    def run(
        self, captioner: ReCap, paths: Sequence[str], journal: Journal | None, others: Mapping[str, CaptionFile]
    ) -> Generator[Item, None, None]:
        """Yield each picture with its caption; one whose caption is in the journal under its name comes without.

        Each who does a part in another process loads the captioner for itself, and has no ``others``.
        """
        before = Before.of(self.elsewhere, journal)
        known = before.known
        yield from map(Item, sorted(known))
        task = replace(self.task, done=before.named)
        if not self.runner.remote:
            task = replace(task, captioner=captioner, others=others)
        left = [*map(Todo, picture_parts(paths, SIZE)), *before.left(self.elsewhere)]
        for _, items in self.runner.map(task, left, task.device):
            for item in items:
                if item.result is not None:
                    yield item
                elif item.path not in known:  # an archive may name a picture twice
                    known.add(item.path)
                    yield item


def choose_parts(
    ray: str | None,
    elsewhere: Sequence[Part],
    pack: str,
    device: str,
    language_model: str | None,
    settings: Mapping[str, Any],
) -> CaptionParts | None:
    """Return what captions in parts; None for files of this machine without ``ray``, which need none."""
    if ray is None and not elsewhere:
        return None
    place = storage.absolute(pack) if Path(pack).is_dir() and pack not in BUILTINS else pack
    return CaptionParts(Captioning(place, device, language_model, settings), runner(ray), elsewhere)


def split_inputs(inputs: Sequence[str]) -> tuple[tuple[str, ...], list[Part]]:
    """Part the inputs of ``recap caption``: those on this machine, and what lies in buckets or archives, in parts."""
    here = tuple(given for given in inputs if not _is_elsewhere(given))
    web = [given for given in dict.fromkeys(inputs) if is_web_address(given) and not _is_archive(given)]
    others = [given for given in inputs if _is_elsewhere(given) and given not in web]
    return here, [*picture_parts(web, SIZE), *(part for given in others for part in find_parts(given, size=SIZE))]


def check_pack(pack: str) -> None:
    """Raise ``InputError`` if the captions of a pack cannot be searched by several processes."""
    if not (Path(pack) / CONFIG).is_file():
        return
    url = PackConfig.read(Path(pack)).datastore
    if url.startswith(MILVUS) and Address.parse(url).embedded:
        raise InputError(
            f"{pack}: its captions are in a file of Milvus Lite, which one process at a time can open; move them with "
            f"recap datastore move {pack} disk, or to a server of Milvus, or work without --ray"
        )


def _is_elsewhere(given: str) -> bool:
    return storage.is_url(given) or _is_archive(given)


def _is_archive(given: str) -> bool:
    return given.lower().endswith((*TAR_SUFFIXES, ".parquet"))


@dataclass(frozen=True, slots=True)
class Before:
    """What a journal has of pictures that lie elsewhere; they are known by their names."""

    urls: set[str] = field(default_factory=set)
    """Those that are listed."""
    inside: dict[str, set[str]] = field(default_factory=dict)
    """By their archive."""
    named: frozenset[str] = frozenset()
    """All others: a Parquet file may name pictures that lie anywhere, which is known when it is read."""

    @classmethod
    def of(cls, parts: Sequence[Part], journal: Journal | None) -> Before:
        """Look through a journal."""
        if journal is None or not parts:
            return cls()
        listed = {item.url for part in parts for item in part.listed}
        inside: dict[str, set[str]] = {part.archive: set() for part in parts if part.archive}
        urls, named = set(), set()
        for record in journal.records():
            if record.path in listed:
                urls.add(record.path)
            elif (archive := next(filter(inside.__contains__, _parents(record.path)), None)) is not None:
                inside[archive].add(record.path)
            elif inside and (storage.is_url(record.path) or journal.is_untouched(record.path)):
                named.add(record.path)
        return cls(urls, inside, frozenset(named))

    @property
    def known(self) -> set[str]:
        """The pictures of which it is certain that they were asked for."""
        return self.urls.union(*self.inside.values())

    def left(self, parts: Sequence[Part]) -> list[Todo]:
        """Return what is left to do of parts."""
        left = []
        for part in parts:
            listed = tuple(item for item in part.listed if item.url not in self.urls)
            if listed or part.archive:
                done = frozenset(self.inside.get(part.archive, ()))
                left.append(Todo(replace(part, listed=listed), done))
        return left


def _parents(path: str) -> Iterator[str]:
    """Yield what comes before each slash."""
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)


def _captioned(
    captioner: ReCap, todo: Todo, named: frozenset[str], others: Mapping[str, CaptionFile]
) -> Iterator[Item]:
    """Yield the pictures of a part with their captions."""
    records = (record for record in todo.part.records() if _name(todo.part, record) not in todo.done)
    while some := list(islice(records, FETCHED)):
        with tempfile.TemporaryDirectory(prefix="recap-") as folder:
            names: dict[str, str] = {}
            wanted = [(_name(todo.part, record), record) for record in some]
            known = [name for name, _ in wanted if todo.part.archive and name in named]
            yield from map(Item, known)
            wanted = [(name, record) for name, record in wanted if name not in known]
            for (name, _), place in zip(wanted, _local_paths(wanted, Path(folder)), strict=True):
                if isinstance(place, str):
                    names[place] = name
                else:
                    yield Item(name, result=ImageError(str(place)))
            for item in Pipeline(captioner, others=others).run(names):
                yield _renamed(item, names[item.path], copied=item.path.startswith(folder))


def _name(part: Part, record: Record) -> str:
    """Return what a picture is called in the output: as it was given, a URL, or a path that goes on in an archive."""
    if storage.is_url(record.image) or (part.archive and record.image):
        return record.image
    return f"{part.archive}/{record.id.removeprefix(f'{storage.name(part.archive)}/')}" if part.archive else record.id


def _local_paths(wanted: Sequence[tuple[str, Record]], folder: Path) -> list[str | InputError]:
    """Return a path of this machine for each picture, or the reason why there is none; several come at a time."""
    with ThreadPoolExecutor(FETCHERS, thread_name_prefix="recap-fetch") as pool:
        numbered = [(record, folder / str(number)) for number, (_, record) in enumerate(wanted)]
        return list(pool.map(lambda pair: _local(*pair), numbered))


def _local(record: Record, target: Path) -> str | InputError:
    if record.error:
        return InputError(record.error)
    try:
        picture = record.picture()
    except InputError as error:
        return error
    if isinstance(picture, str):
        return picture
    assert isinstance(picture, bytes)
    target.write_bytes(picture)
    return str(target)


def _renamed(item: Item, name: str, *, copied: bool) -> Item:
    result, file = item.result, item.file
    if isinstance(result, ImageError):
        result = ImageError(str(result).replace(item.path, name))
    if copied and file is not None:
        file = replace(file, modified=0)  # the time of a copy says nothing about the picture
    return replace(item, path=name, result=result, file=file)
