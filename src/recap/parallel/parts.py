"""An input cut into parts: each is done by one task and becomes one shard.

    a folder of pictures            parts of some pictures, with the .txt files beside them where there are any
    .jsonl .csv .tsv .json          parts of some pairs, as ``recap fit`` reads them
    .tar .parquet, folders of them  a part for each file
    .txt                            parts of some captions, one a line

The input may lie in a bucket. How large parts are depends on the input alone, so that the same input is cut in the same
way whoever does the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from recap.datasets.images import IMAGE_SUFFIXES
from recap.datasets.pairs import TAR_SUFFIXES, parquet_pairs, shard_pairs, stream_pairs, two_kinds
from recap.datasets.records import as_captions, printable, read_lines
from recap.encoders.inputs import is_web_address, read
from recap.errors import ImageError, InputError
from recap.parallel import storage
from recap.types import ImageLike, Pair

SMALLEST, LARGEST = 32, 2048
"""Limits of the size of a part, in pictures or captions,"""
PARTS = 64
"""and the number of parts that is aimed at between them."""

NAME = re.compile(r"\d{6,}-[0-9a-f]{16}\.parquet")
"""Of a shard of vectors."""

TABLES = (".jsonl", ".csv", ".tsv", ".json")


def read_picture(place: str) -> ImageLike:
    """Return a picture as encoders take it: a path as it is, otherwise the content; ``ImageError`` without one."""
    if not storage.is_url(place):
        return place
    if is_web_address(place):
        return read(place)
    try:
        return storage.read_bytes(place)
    except InputError as error:
        raise ImageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Listed:
    """A picture that is named, or a caption without one."""

    id: str
    url: str = ""
    captions: tuple[str, ...] = ()
    sidecar: str = ""
    """The .txt file with its captions."""
    error: str = ""
    """What is wrong with this place of a table."""


@dataclass(frozen=True, slots=True)
class Record:
    """A picture or a caption as a task finds it."""

    id: str
    captions: tuple[str, ...]
    image: str = ""
    """The path or URL; empty where there is no picture, or it lies in an archive."""
    content: ImageLike | None = None
    """A picture that is in no file of its own."""
    error: str = ""

    @property
    def has_picture(self) -> bool:
        """Whether there is a picture to read."""
        return not self.error and (bool(self.image) or self.content is not None)

    def picture(self) -> ImageLike:
        """Return the picture as encoders take it; ``ImageError`` where a bucket does not give it."""
        if self.content is not None:
            return self.content
        return read_picture(self.image)


@dataclass(frozen=True, slots=True)
class Part:
    """Some pictures or captions, or one archive of them."""

    listed: tuple[Listed, ...] = ()
    archive: str = ""
    token: str = ""
    """Changes when one of the files does, as far as known."""
    captions_required: bool = False
    """Whether a picture of an archive without a caption is a record with an error."""

    @property
    def digest(self) -> str:
        """A hash by which the same part is known again."""
        names = (text for item in self.listed for text in (item.id, item.url, item.sidecar, *item.captions))
        return storage.digest(self.archive, self.token, *names)[:16]

    def records(self) -> Iterator[Record]:
        """Yield what is in the part; a record that cannot be used has an error instead."""
        if self.archive:
            yield from _archived(self.archive, captions_required=self.captions_required)
        for item in self.listed:
            try:
                captions = item.captions or (_sidecar(item.sidecar) if item.sidecar else ())
            except InputError as error:
                yield Record(item.id, (), item.url, error=str(error))
            else:
                yield Record(item.id, captions, item.url, error=item.error)


def input_name(source: str, images: str | None = None, splits: Collection[str] = ()) -> str:
    """Return what an input is known by, for the folder of its vectors and for messages."""
    where = [f"--images {storage.absolute(images)}"] if images else []
    return " ".join([storage.absolute(source), *where, *(f"--split {name}" for name in sorted(splits))])


def find_parts(
    source: str,
    *,
    images: str | None = None,
    splits: Collection[str] | None = None,
    size: int | None = None,
    out: str | None = None,
    captions_required: bool = False,
) -> list[Part]:
    """Cut an input into parts.

    Args:
        source: a path, a pattern, or the URL of a file or folder in a bucket.
        images: the folder or URL that the names of pictures in a file are relative to; by default the file's own.
        splits: of a Karpathy file.
        size: how many pictures or captions are in a part; by default as many as suit the input.
        out: where vectors are written to; those that are there already are no input.
        captions_required: whether a picture of an archive that nobody has described is of no use.
    """
    source = storage.absolute(source)
    suffix = PurePosixPath(source).suffix.lower()
    if suffix == ".txt":
        parts = _cut(list(_lines(source)), size)
    elif suffix in TABLES:
        parts = _cut(list(_table(source, images, splits)), size, lambda item: storage.token(item.url))
    else:
        found = [file for file in storage.listing(source) if out is None or not _is_written(file, out)]
        parts = _found_parts(source, found, size, captions_required)
    if not parts:
        raise InputError(f"{source}: no pictures, captions or archives found")
    return parts


def _found_parts(source: str, found: Sequence[storage.Found], size: int | None, captions_required: bool) -> list[Part]:
    """Return the parts of a listing: archives, or pictures; nobody knows what is meant where there are both."""
    archives = [file for file in found if file.name.lower().endswith((*TAR_SUFFIXES, ".parquet"))]
    listed = list(_pictures(found, anything=not archives and not storage.is_folder(source)))
    if archives and listed:
        raise two_kinds(source, archives[0].name)
    if archives:
        return [Part((), file.url, file.token, captions_required) for file in archives]
    tokens = {file.url: file.token for file in found}
    return _cut(listed, size, lambda item: f"{tokens[item.url]} {tokens.get(item.sidecar, '')}")


def _is_written(file: storage.Found, out: str) -> bool:
    """Tell whether a file is a shard of vectors that was written before."""
    return bool(NAME.fullmatch(storage.name(file.url))) and storage.same(storage.parent(file.url), out)


def picture_parts(paths: Iterable[str], size: int) -> list[Part]:
    """Cut a list of pictures into parts; their ids are their names as they were given."""
    return _cut([Listed(path, storage.absolute(path)) for path in paths], size)


def _cut(listed: Sequence[Listed], size: int | None, token: Callable[[Listed], str] = lambda item: "") -> list[Part]:
    step = size or min(LARGEST, max(SMALLEST, len(listed) // PARTS))
    blocks = [tuple(listed[start : start + step]) for start in range(0, len(listed), step)]
    return [Part(block, token=storage.digest(*map(token, block))) for block in blocks]


def _pictures(found: Sequence[storage.Found], *, anything: bool) -> Iterator[Listed]:
    """Yield the pictures of a listing with their .txt files; a single file is meant whatever its suffix."""
    there = {file.url for file in found}
    for file in found:
        if anything or PurePosixPath(file.name).suffix.lower() in IMAGE_SUFFIXES:
            places = (f"{file.url}.txt", file.url.removesuffix(PurePosixPath(file.url).suffix) + ".txt")
            yield Listed(printable(file.name), file.url, sidecar=next(filter(there.__contains__, places), ""))


def _table(source: str, images: str | None, splits: Collection[str] | None) -> Iterator[Listed]:
    """Yield the pairs of a table; its pictures lie beside it, or where ``images`` says."""
    root = storage.absolute(images) if images else storage.parent(source)
    stand_in = Path("/recap-pictures")
    broken: list[InputError] = []
    with storage.local_copy(source) as path:
        for pair in stream_pairs(path, images=stand_in, splits=splits, on_broken=broken.append):
            name = str(pair.image)
            if name.startswith(f"{stand_in}/"):
                name = storage.joined(root, name.removeprefix(f"{stand_in}/"))
            yield Listed(pair.id, name, pair.captions)
        messages = [str(error).replace(str(path), source, 1) for error in broken]
    yield from (Listed(message.partition(": ")[0], error=message) for message in messages)


def _lines(source: str) -> Iterator[Listed]:
    with storage.local_copy(source) as path:
        for number, line in read_lines(path):
            yield Listed(f"{storage.name(source)}:{number}", captions=(" ".join(line.split()),))


def _sidecar(url: str) -> tuple[str, ...]:
    captions = as_captions(storage.read_bytes(url).decode("utf-8-sig", "replace").split("\n"), url)
    return () if isinstance(captions, InputError) else tuple(captions)


def _archived(url: str, *, captions_required: bool) -> Iterator[Record]:
    with storage.local_copy(url) as path:
        if path.name.lower().endswith(TAR_SUFFIXES):
            pairs = shard_pairs([path], captions_required=captions_required)
        else:
            pairs = parquet_pairs(path, path.parent, captions_required=captions_required)
        for pair in pairs:
            yield _record(pair, str(path), url)


def _record(pair: Pair | InputError, path: str, url: str) -> Record:
    """Return a record of an archive; names of the copy that was read are those of the archive."""
    if isinstance(pair, InputError):
        message = str(pair).replace(path, url, 1)
        return Record(message.partition(": ")[0], (), error=message)
    if isinstance(pair.image, bytes):
        return Record(pair.id, pair.captions, content=pair.image)
    folder = str(Path(path).parent)
    return Record(pair.id, pair.captions, str(pair.image).replace(folder, storage.parent(url), 1))
