"""Records of files, whatever a file calls their fields, and what is wrong with them.

Every reader of pairs, captions and judgements goes through ``read_records`` or ``scan_records``, which return flat
objects; the files of COCO and of Karpathy's splits are flattened on the way.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from recap.errors import InputError

IMAGE_FIELDS = ("image", "file_name", "filename", "path", "image_path")
"""What files call the picture itself."""
ID_FIELDS = ("image_id", "id", "seg_id")
"""What they call its id."""
CAPTION_FIELDS = ("captions", "caption", "text", "references", "refs", "report")
"""What they call its captions."""

KARPATHY_TRAIN = ("train", "restval")
"""The splits of a Karpathy file that are for fitting."""

TOKEN_LINE = "a line of IMAGE#N<tab>caption, as Flickr8k has them"

PARQUET_ROWS = 64
"""Rows of a Parquet file in memory at a time: a picture inside the table may have megabytes."""

PARQUET_BYTES = 256 << 20
"""Bytes that these rows may take: a value that is stored once may be that of every row."""
MAX_CAPTION = 100_000
"""Characters of a caption."""

OnBroken: TypeAlias = Callable[[InputError], None]
"""Called with what is wrong with a record."""


class MissingCaptionError(InputError):
    """A picture that nobody has described."""


@dataclass(frozen=True, slots=True)
class Record:
    """One object, row or entry of a file."""

    where: str
    """Its place, for messages."""
    values: Mapping[str, Any]

    def find(self, *names: str) -> Any:
        """Return the first of some fields that has a value, or None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)


def read_records(path: Path, *, splits: Collection[str] | None = None) -> Iterator[Record]:
    """Yield the records of a file; the first one that is broken raises."""
    for record in scan_records(path, splits=splits):
        if isinstance(record, InputError):
            raise record
        yield record


def scan_records(
    path: Path, *, splits: Collection[str] | None = None, named: bool = False
) -> Iterator[Record | InputError]:
    """Yield the records of a file, or what is wrong with one.

    Args:
        path: a file with one of ``SUFFIXES``.
        splits: which splits of a Karpathy file to take; by default all, of ``named`` pictures those for fitting.
        named: whether the names of the pictures' files are needed, and not just their ids.
    """
    return _READERS[path.suffix.lower()](path, splits, named)


def as_captions(value: Any, where: str, *, required: bool = True) -> list[str] | InputError:
    """Return one caption or several as folded texts without the blank ones, or what is wrong with them."""
    texts = value if isinstance(value, list | tuple) else [value]
    texts = [text for text in texts if text is not None]
    for text in texts:
        if not isinstance(text, str):
            return InputError(f"{where}: a caption must be text, not {text!r:.80}")
        if len(text) > MAX_CAPTION:
            return InputError(f"{where}: a caption of {len(text)} characters, over the limit of {MAX_CAPTION}")
    folded = [line for text in texts if (line := " ".join(text.split()))]
    return folded if folded or not required else MissingCaptionError(f"{where}: no caption")


def printable(name: str) -> str:
    """Return a file's name as text that can be written anywhere; bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def read_text(path: Path) -> str:
    """Return the text of a file, or say why there is none."""
    try:
        _check_file(path)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _check_file(path: Path) -> None:
    """Raise at a pipe, which would let us wait for somebody to write to it."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, numbered from 1; only a line feed ends a line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line


def read_table(path: Path) -> csv.DictReader[str]:
    """Return the rows of a ``.csv`` or ``.tsv`` file by column name; quoted cells may hold line breaks."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)


def read_rows(path: Path, columns: Callable[[list[str]], list[str] | None] = lambda names: None) -> Iterator[Record]:
    """Yield the rows of a Parquet file; ``columns`` chooses among the names of columns."""
    import pyarrow
    import pyarrow.parquet

    _check_file(path)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = columns(file.schema_arrow.names)
            for batch in file.iter_batches(rows_at_a_time(file.metadata), columns=wanted):
                for row in batch.to_pylist():
                    yield Record(f"{path}: row {number}", row)
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error


def rows_at_a_time(metadata: Any, most: int = PARQUET_ROWS, columns: Collection[str] = ()) -> int:
    """Return how many rows of a Parquet file are read together, by the largest value that some columns may hold."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    parts = (group.column(number) for group in groups for number in range(group.num_columns))
    meant = (part for part in parts if not columns or part.path_in_schema.partition(".")[0] in columns)
    largest = max((part.total_uncompressed_size for part in meant), default=0)
    return int(min(most, max(1, PARQUET_BYTES // max(1, largest))))


def parse_json(text: str, where: str) -> Any:
    """Return the value of json text, or say where it goes wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not valid json ({error.msg} at line {error.lineno}, column {error.colno})"
        ) from error
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"
        raise InputError(f"{where}: not valid json ({why})") from error


def _scan_lines(path: Path, splits: Collection[str] | None, named: bool) -> Iterator[Record | InputError]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            yield _record(where, parse_json(line, where))
        except InputError as error:
            yield error


def _scan_table(path: Path, splits: Collection[str] | None, named: bool) -> Iterator[Record | InputError]:
    rows = read_table(path)
    try:
        known = {*(rows.fieldnames or ())}
        missing = [names[0] for names in (("caption", *CAPTION_FIELDS), IMAGE_FIELDS) if known.isdisjoint(names)]
        if named and missing:
            raise InputError(
                f"{path}: the first line must name the columns image and caption, separated by "
                f"{'tabs' if path.suffix.lower() == '.tsv' else 'commas'}; missing: {', '.join(missing)}"
            )
        for row in rows:
            yield Record(f"{path}:{rows.line_num}", row)
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num}: not a readable table ({error})") from error


def _scan_tokens(path: Path, splits: Collection[str] | None, named: bool) -> Iterator[Record | InputError]:
    """Yield the lines of a token file of Flickr8k or Flickr30k: ``IMAGE#N<tab>caption``."""
    for number, line in read_lines(path):
        name, tab, caption = line.partition("\t")
        where, (image, mark, _) = f"{path}:{number}", name.rpartition("#")
        known = bool(tab and mark)
        yield Record(where, {"image": image, "caption": caption}) if known else InputError(f"{where}: not {TOKEN_LINE}")


def _scan_parquet(path: Path, splits: Collection[str] | None, named: bool) -> Iterator[Record | InputError]:
    return read_rows(path)


def _scan_json(path: Path, splits: Collection[str] | None, named: bool) -> Iterator[Record | InputError]:
    """Return the records of a json file: a list, COCO's captions, Karpathy's splits, or captions by id."""
    text = read_text(path)
    if _holds_lines(text):
        return _scan_lines(path, splits, named)
    content = parse_json(text, str(path))
    if isinstance(content, list):
        return (_record(f"{path}: entry {number}", item) for number, item in enumerate(content))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a list or an object of captions")
    images = content.get("images")
    if isinstance(images, list) and images and isinstance(images[0], dict) and "sentences" in images[0]:
        return _flatten_karpathy(path, images, splits, named)
    if _has_splits(content):
        return _flatten_splits(path, content, splits, named)
    whole = Record(str(path), content)
    if whole.find(*CAPTION_FIELDS) is not None and whole.find(*ID_FIELDS, *IMAGE_FIELDS) is not None:
        return iter([whole])
    if named or "annotations" in content:
        return _flatten_coco(path, content, named)
    return (Record(str(path), {"image_id": image, "captions": captions}) for image, captions in content.items())


def _has_splits(content: Mapping[str, Any]) -> bool:
    """Tell whether a json file has a list of entries for each split."""
    lists = all(isinstance(part, list) and part and isinstance(part[0], dict) for part in content.values())
    return bool(content) and lists and content.keys().isdisjoint(("images", "annotations"))


def _holds_lines(text: str) -> bool:
    """Tell whether a json file is JSON Lines: the first of several lines is an object by itself."""
    first, _, rest = text.strip().partition("\n")
    try:
        return bool(rest) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _wanted_splits(path: Path, there: Collection[Any], splits: Collection[str] | None, named: bool) -> set[Any]:
    """Return which splits of a file to take: those asked for, of named pictures those for fitting, or all."""
    fitting = {*there} & {*KARPATHY_TRAIN} if named else set()
    wanted = set(splits) if splits is not None else fitting or {*there}
    if not wanted & {*there}:
        known = ", ".join(sorted(map(str, there)))
        raise InputError(f"{path}: no split {', '.join(sorted(map(str, wanted)))}; there are {known}")
    return wanted


def _flatten_splits(
    path: Path, content: Mapping[str, list[Any]], splits: Collection[str] | None, named: bool
) -> Iterator[Record | InputError]:
    """Yield the entries of a file that has a list for each split; one with several pictures becomes a record each."""
    wanted = _wanted_splits(path, content, splits, named)
    for split in content:
        if split not in wanted:
            continue
        for number, item in enumerate(content[split]):
            record = _record(f"{path}: {split} {number}", item)
            pictures = record.find(*IMAGE_FIELDS)
            if not isinstance(pictures, list):
                yield record
                continue
            for picture in pictures:
                yield Record(record.where, {**record.values, "image": picture, "image_id": picture})


def _flatten_karpathy(
    path: Path, images: list[Any], splits: Collection[str] | None, named: bool
) -> Iterator[Record | InputError]:
    there = {image.get("split") for image in images if isinstance(image, dict)}
    wanted = _wanted_splits(path, there, splits, named)
    for number, image in enumerate(images):
        where = f"{path}: image {number}"
        try:
            if image.get("split") not in wanted:
                continue
            name = str(Path(image.get("filepath", "")) / image["filename"])
            captions = [sentence["raw"] for sentence in image["sentences"]]
            # the number of COCO where there is one, the file's name elsewhere
            image_id = image.get("cocoid", image["filename"])
        except (KeyError, TypeError, AttributeError) as error:
            yield InputError(f"{where}: expected filename, split and sentences ({type(error).__name__}: {error})")
            continue
        yield Record(where, {"image": name, "image_id": image_id, "captions": captions})


def _flatten_coco(path: Path, content: Mapping[str, Any], named: bool) -> Iterator[Record | InputError]:
    try:
        names = {str(image["id"]): image["file_name"] for image in content["images"]} if named else {}
        annotations = content["annotations"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f'{path}: not a COCO captions file: expected "images" with id and file_name, and "annotations" with '
            f"image_id and caption ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(annotations, list):
        raise InputError(f"{path}: annotations must be a list, not {annotations!r:.60}")
    for number, annotation in enumerate(annotations):
        record = _record(f"{path}: annotation {number}", annotation)
        name = names.get(str(record.values.get("image_id")))
        if named and name is None:
            yield InputError(f"{record.where}: expected a caption and the id of one of the images")
        else:
            yield Record(record.where, {**record.values, "image": name})


def _record(where: str, value: Any) -> Record:
    return Record(where, value if isinstance(value, dict) else {})


_Reader: TypeAlias = Callable[[Path, Collection[str] | None, bool], Iterator[Record | InputError]]

_READERS: dict[str, _Reader] = {
    ".json": _scan_json,
    ".jsonl": _scan_lines,
    ".csv": _scan_table,
    ".tsv": _scan_table,
    ".parquet": _scan_parquet,
    ".txt": _scan_tokens,
    ".token": _scan_tokens,
}

SUFFIXES = tuple(suffix for suffix in _READERS if _READERS[suffix] is not _scan_tokens)
TOKEN_SUFFIXES = tuple(suffix for suffix in _READERS if suffix not in SUFFIXES)
"""Of token files; elsewhere text is a caption a line."""
