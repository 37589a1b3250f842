"""``recap caption`` in parts: pictures go to whoever is free, captions come back and are kept as on one machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from tqdm import tqdm

from recap.batch.journal import Journal
from recap.batch.pipeline import Item, Pipeline
from recap.batch.run import BatchRun, Summary
from recap.datasets.shards import TAR_SUFFIXES
from recap.distributed import storage
from recap.distributed.parts import Part, Record, find_parts, picture_parts
from recap.distributed.runners import Runner
from recap.errors import ImageError, InputError
from recap.outputs.base import Sink

if TYPE_CHECKING:
    from recap.captioner import ReCap

SIZE = 32
"""So many pictures are in a part: it takes seconds, even with a language model."""
FETCHED = 64
"""So many pictures of a bucket or an archive are on this machine at a time."""


@dataclass(frozen=True, slots=True)
class Todo:
    """A part, and which of its pictures are done."""

    part: Part
    done: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Captioning:
    """Loads a captioner on the machine it finds itself on."""

    pack: str
    device: str = "cpu"
    language_model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Callable[[Todo], list[Item]]:
        """Return what captions the pictures of a part."""
        from recap.captioner import ReCap

        Image.MAX_IMAGE_PIXELS = None  # recap has a limit of its own, which the user can raise
        loaded = ReCap.from_pretrained(self.pack, language_model=self.language_model, device=self.device)
        captioner = loaded.configured(**self.settings)
        return lambda todo: list(_captioned(captioner, todo))


@dataclass(frozen=True, slots=True)
class CaptionInParts:
    """Stands in for ``recap.batch.caption_files``."""

    task: Captioning
    runner: Runner
    elsewhere: Sequence[Part] = ()
    """Pictures in buckets or archives; those on this machine are given with the call."""

    def __call__(
        self,
        captioner: ReCap,
        paths: Sequence[str],
        generated_by: Mapping[str, str],
        *,
        min_confidence: float | None = None,
        journal: Journal | None = None,
        sinks: Sequence[Sink] = (),
        failed: Callable[[str, str], None] = lambda path, reason: None,
        progress: bool | None = False,
        **_: Any,
    ) -> Summary:
        """Caption pictures, hand each record to the sinks, and close them.

        The arguments mean the same as those of ``caption_files``; each who does a part loads the captioner for itself.
        """
        run = BatchRun(journal, sinks, failed, generated_by, min_confidence)
        started = time.perf_counter()
        left = [Todo(part) for part in picture_parts((path for path in paths if not run.recall(path)), SIZE)]
        left += _left(self.elsewhere, journal, run)
        done = self.runner.map(self.task, left, self.task.device)
        for _number, items in tqdm(
            done, total=len(left), unit="part", disable=None if progress is None else not progress
        ):
            for item in items:
                run.take(item)
        for sink in sinks:
            sink.close()
        run.summary.files = run.summary.captioned + run.summary.known + run.summary.failed
        run.summary.seconds = time.perf_counter() - started
        run.summary.busy = {"the work of all": run.summary.seconds}
        return run.summary


def split_inputs(inputs: Sequence[str]) -> tuple[tuple[str, ...], list[Part]]:
    """Part the inputs of ``recap caption``: those on this machine, and what lies in buckets or archives, in parts."""
    here = tuple(given for given in inputs if not _is_elsewhere(given))
    return here, [part for given in inputs if _is_elsewhere(given) for part in find_parts(given, size=SIZE)]


def _is_elsewhere(given: str) -> bool:
    return storage.is_url(given) or given.lower().endswith((*TAR_SUFFIXES, ".parquet"))


def _left(parts: Sequence[Part], journal: Journal | None, run: BatchRun) -> list[Todo]:
    """Return what is left of parts that lie elsewhere; what the journal has is known by its name and handed on."""
    if journal is None or not parts:
        return [Todo(part) for part in parts]
    urls = {item.url for part in parts for item in part.listed}
    inside = tuple(f"{part.archive}/" for part in parts if part.archive)
    known = {record.path for record in journal.records() if record.path in urls or record.path.startswith(inside)}
    run.summary.known += len(known)
    if run.sinks:
        for record in [record for record in journal.records() if record.path in known]:
            for sink in run.sinks:
                sink.add(record)
    left = []
    for part in parts:
        listed = tuple(item for item in part.listed if item.url not in known)
        done = frozenset(path for path in known if part.archive and path.startswith(f"{part.archive}/"))
        if listed or part.archive:
            left.append(Todo(replace(part, listed=listed), done))
    return left


def _captioned(captioner: ReCap, todo: Todo) -> Iterator[Item]:
    """Yield the pictures of a part with their captions."""
    records = (record for record in todo.part.records() if _name(todo.part, record) not in todo.done)
    while some := list(islice(records, FETCHED)):
        with tempfile.TemporaryDirectory(prefix="recap-") as folder:
            names: dict[str, str] = {}
            for number, record in enumerate(some):
                name = _name(todo.part, record)
                try:
                    names[_local(record, Path(folder) / str(number))] = name
                except InputError as error:
                    yield Item(name, result=ImageError(str(error)))
            for item in Pipeline(captioner).run(names):
                yield _renamed(item, names[item.path], copied=item.path.startswith(folder))


def _name(part: Part, record: Record) -> str:
    """Return what a picture is called in the output: as it was given, a URL, or a path that goes on in an archive."""
    if storage.is_url(record.image) or (part.archive and record.image):
        return record.image
    return f"{part.archive}/{record.id.removeprefix(f'{storage.name(part.archive)}/')}" if part.archive else record.id


def _local(record: Record, target: Path) -> str:
    """Return a path of this machine for a picture."""
    if record.error:
        raise InputError(record.error)
    picture = record.picture()
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
