"""Writes that a crash cannot tear: the old file or the new one, never a part of either.

Long work is done in steps: what is finished is kept, and a run that was killed goes on from there. Its progress is
shown as a bar, its results as tables in csv, markdown, LaTeX or HTML.
"""

from __future__ import annotations

import csv
import ctypes
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, BinaryIO

from recap.errors import DiskFullError, InputError, PackError

TEMPORARY_SUFFIX = ".tmp"
"""The end of every temporary name, so that leftovers of a killed process can be told apart."""

CHECKSUM = "checksum"
"""The name of a json file's checksum among its values."""

MAX_JSON_BYTES = 64 << 20
"""Of a file that describes something."""

_held = threading.local()
"""The locks that a thread holds."""


@contextmanager
def atomic_write(path: str | Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Yield a binary file that takes the place of ``path`` when the block ends, and vanishes if it raises.

    The content is on the disk before the name changes. A library that wants a path finds one in the file's ``name``.
    Of a symbolic link the file it leads to is replaced, or with ``follow=False`` the link itself.
    """
    target = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(Path(path).parent), Path(path).name)
    temporary = _temporary_beside(target)
    with writing_to(target):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any, *, follow: bool = True) -> None:
    """Write ``value`` to ``path`` as readable json, atomically; see ``atomic_write``."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    with atomic_write(path, follow=follow) as file:
        file.write(text.encode())


def read_json(path: Path) -> Any:
    """Return the value of a json file; ``ValueError`` if it is none, ``OSError`` if it is no file that can be read."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a file")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"larger than {MAX_JSON_BYTES >> 20} MiB")
    text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\ud" in text.lower():  # halves of a character cannot be written again
        json.dumps(value, ensure_ascii=False).encode()
    return value


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Return values for a json file with a checksum of the others among them, so that damage shows."""
    return {**values, CHECKSUM: _checksum(values)}


def check_seal(path: Path) -> None:
    """Raise ``PackError`` if a json file has a checksum that is not that of its other values."""
    values = read_json(path)
    if CHECKSUM in values and values[CHECKSUM] != _checksum(values):
        raise PackError(f"{path} is damaged, or was changed by hand: its checksum is that of other values")


def _checksum(values: dict[str, Any]) -> str:
    others = {name: value for name, value in values.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file that nobody will write to a second name, or copy it where the file system cannot do that."""
    with writing_to(target):
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
            _sync_file(target)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``path`` when the block ends, and vanishes if it raises.

    Where the system cannot exchange two names in one step, a kill between two renames leaves the old folder
    beside the path, under a hidden name ending in ``.tmp``.
    """
    target = Path(os.path.realpath(path))
    temporary = _temporary_beside(target)
    with writing_to(target):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                _sync_folder(file) if file.is_dir() else _sync_file(file)
            _sync_folder(temporary)
            _put_in_place(temporary, target)
            _sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def exclusive(path: str | Path) -> Iterator[None]:
    """Let one process at a time into the block, and one of its threads, which may enter it again.

    ``path`` is the lock's file and may stay.
    """
    key, held = os.path.realpath(path), _held.__dict__.setdefault("paths", set())
    if key in held:
        yield
        return
    if Path(path).is_symlink():  # opening it would empty the file it leads to
        raise PackError(f"{path} is a symbolic link, where a lock should be: delete it")
    from filelock import FileLock

    with FileLock(path):
        held.add(key)
        try:
            yield
        finally:
            held.discard(key)


def leftovers(target: Path) -> list[Path]:
    """Return what killed processes have left of ``target`` beside it, and what others are writing at this moment."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}{re.escape(TEMPORARY_SUFFIX)}")
    try:
        with os.scandir(target.parent) as entries:
            return sorted(Path(entry.path) for entry in entries if ours.fullmatch(entry.name))
    except OSError:
        return []


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _temporary_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")


@contextmanager
def writing_to(target: Path) -> Iterator[None]:
    """Let errors of writing name the file that the caller knows; those of a full disk say so."""
    try:
        yield
    except (OSError, DiskFullError) as error:
        if isinstance(error, DiskFullError) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"no room left on the disk to write {target}; free some space and try again") from error
        if error.errno and error.filename is None:
            error.filename = str(target)
        raise


def _put_in_place(new: Path, target: Path) -> None:
    """Rename ``new`` to ``target``; what was there before ends up under the name ``new``."""
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        old = _temporary_beside(target)
        target.rename(old)
        new.rename(target)
        old.rename(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step where the kernel can (Linux); say whether it did."""
    if not sys.platform.startswith("linux"):
        return False
    at_current_folder, exchange = -100, 2
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(at_current_folder, os.fsencode(one), at_current_folder, os.fsencode(other), exchange) == 0)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Bring a rename to the disk; Windows has no such call and needs none."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RUN = "run.json"


@dataclass(frozen=True, slots=True)
class Steps:
    """The finished steps of one run, each a file in a folder that is there as a whole or not at all.

    Without a folder nothing is kept.
    """

    folder: Path | None

    @classmethod
    def opened(cls, folder: Path | None, description: dict[str, Any], *, unnoted: Sequence[str] = ()) -> Steps:
        """Return the steps in a folder; those of a run with another description raise ``InputError``.

        What is in ``unnoted`` may be missing from the description of a run that an older version began.
        """
        if folder is None:
            return cls(None)
        folder.mkdir(parents=True, exist_ok=True)
        path, wanted = folder / RUN, json.loads(json.dumps(description))
        if not path.exists():
            write_json(path, wanted)
        there = _read(path, f"delete the folder {folder}, and the run begins anew")
        if not isinstance(there, dict):
            raise InputError(f"{path} describes no run: delete the folder {folder}, and the run begins anew")
        noted = {name: wanted[name] for name in unnoted if name in wanted} | there
        differ = [name for name in sorted(noted.keys() | wanted.keys()) if noted.get(name) != wanted.get(name)]
        if differ:
            raise InputError(
                f"{folder} holds steps of a run with other {', '.join(differ)}: give another folder, or delete it"
            )
        if noted != there:
            write_json(path, noted)
        return cls(folder)

    def done(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what ``work`` gave when it was done before, or do it now; it gives what json can hold."""
        if self.folder is None:
            return work()
        path = self.folder / f"{name}.json"
        if not path.exists():
            write_json(path, work())
        return _read(path, "delete it, and this step is done again")


def _read(path: Path, remedy: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from error


LOG_SECONDS = 30.0
"""Time between two lines about progress where there is no terminal."""


def progress_bar(items: Iterable[Any] | None = None, *, progress: bool | None, **options: Any) -> Any:
    """Return tqdm's bar, over ``items`` where they are given; in a log it is a line every half minute.

    ``progress=False`` shows nothing; the other options are those of tqdm.
    """
    if progress is False:
        return _NoBar(() if items is None else items)
    from tqdm import tqdm

    if sys.stderr.isatty():
        return tqdm(items, **options)
    shape = "{desc}: {n_fmt} of {total_fmt} after {elapsed}, {rate_fmt}"
    pace = {"delay": LOG_SECONDS, "mininterval": LOG_SECONDS, "miniters": 1, "bar_format": shape, "leave": False}
    return tqdm(items, file=_LogLines(), **{**pace, **options})


class _NoBar(AbstractContextManager[Any]):
    """Stands for a bar that is not shown; tqdm's own takes longer to import than many a run."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""

    def update(self, count: int = 1) -> None:
        """Nobody looks."""

    def set_description(self, *_: object, **__: object) -> None:
        """Nobody reads."""


class _LogLines(io.TextIOBase):
    """Takes what tqdm draws over and over in one line, and writes each drawing as a line of its own."""

    def write(self, text: str) -> int:
        if line := text.strip("\r\n\x1b[A "):
            print(f"recap: {line.removeprefix(': ').replace(': : ', ': ')}", file=sys.stderr)
        return len(text)


def markdown_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in markdown."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(markdown_row([str(cell) for cell in line]) + "\n" for line in lines)


def markdown_row(cells: Sequence[str]) -> str:
    """Return a line of a table in markdown."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def latex_text(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table for LaTeX with the package booktabs."""
    lines = [" & ".join(latex_escaped(str(cell)) for cell in row) + r" \\" for row in (header, *rows)]
    above = [r"\begin{table}", rf"\caption{{{latex_escaped(caption)}}}", r"\centering"]
    above += [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
    below = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*above, lines[0], r"\midrule", *lines[1:], *below]) + "\n"


def latex_escaped(text: str) -> str:
    """Return a text without characters that command LaTeX."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    return "".join(named.get(letter, "\\" + letter if letter in "&%$#_{}" else letter) for letter in text)


def csv_text(header: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Return rows as csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()


_NUMBER = re.compile(r"[-+−]?[\d.,]+( ?[±%].*)?")


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return a table for a notebook; texts are escaped, and numbers stand on the right."""
    start = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
    lines = ["".join(map(_html_cell, row)) for row in rows]
    return f"<table>{start}<tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _html_cell(value: object) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    side = "right" if _NUMBER.fullmatch(text) else "left"
    return f'<td style="text-align:{side}">{escape(text)}</td>'
