"""What is done already: an append-only file with one line of json for each captioned picture.

A line is handed to the system as soon as its picture is done, so a killed process loses none, and brought to the disk
every few seconds. A line that was torn by a crash is left out, and its picture done again. When a run is complete,
lines that no longer hold (of pictures that changed or were renamed) are taken out, atomically. The finished journal
is itself the output of the format ``jsonl``; the other formats are made from it.

``errors.jsonl``: the files that have no caption, and why.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from recap import __version__
from recap.batch.formats import Record, json_line, write_records
from recap.errors import InputError
from recap.files import atomic_write, writing_to
from recap.language import model_fingerprint

if TYPE_CHECKING:
    from recap.captioner import ReCap

SYNC_SECONDS = 2.0
"""Lines are brought to the disk in groups, at least this often while lines come."""


class Journal:
    """The captions in one file, by path and by content. Made by ``open_journal``.

    In memory is only where each line begins, about half a kilobyte a picture.
    """

    def __init__(self, path: Path, generated_by: Mapping[str, str]) -> None:
        self.path = path
        self.generated_by = dict(generated_by)
        self._open()

    def _open(self) -> None:
        self._places: dict[str, tuple[int, int, int]] = {}
        """Of each path the place of its line, and size and time of its file."""
        self._contents: dict[bytes, int] = {}
        """Of each content the place of a line."""
        self._abstained: set[str] = set()
        self._unsure: set[str] = set()
        self._lines = 0
        self._end = 0
        self.path.touch()
        self._reader = self.path.open("rb")
        self._learn_all()
        # unbuffered: a line is with the system when ``append`` returns
        self._file = self.path.open("r+b", buffering=0)
        self._file.truncate(self._end)
        self._file.seek(self._end)
        self._synced = time.monotonic()

    def __len__(self) -> int:
        return len(self._places)

    def is_untouched(self, path: str) -> bool:
        """Tell whether a picture has a line, and its file has neither changed nor been touched since."""
        known = self._places.get(path)
        try:
            status = os.stat(path)  # noqa: PTH116 - Path objects cost memory
        except (OSError, ValueError):  # ValueError: a path with a null byte
            return False
        return known is not None and known[1:] == (status.st_size, status.st_mtime_ns)

    def place(self, path: str) -> int:
        """Return the place of a picture's line."""
        return self._places[path][0]

    def place_of_content(self, sha256: str) -> int | None:
        """Return the place of a line about a picture with this content, under whatever name. Safe in any thread."""
        return self._contents.get(bytes.fromhex(sha256))

    def read(self, place: int) -> Record:
        """Return the record whose line begins at ``place``. A place stays valid as long as the journal is open."""
        self._reader.seek(place)
        return Record.from_dict(json.loads(self._reader.readline()))

    def append(self, record: Record) -> None:
        """Add a line; what was known about this path before no longer holds."""
        line = memoryview(json_line(record.as_dict()))
        written = 0
        with writing_to(self.path):
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        self._note(record, self._end)
        self._lines += 1
        self._end += len(line)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def forget(self, path: str) -> None:
        """Leave a path out of what holds."""
        self._places.pop(path, None)
        self._abstained.discard(path)
        self._unsure.discard(path)

    def abstains(self, path: str) -> bool:
        """Tell whether the caption of a path is withheld."""
        return path in self._abstained

    def doubts(self, path: str) -> bool:
        """Tell whether the caption of a path is given, and unsure."""
        return path in self._unsure

    @property
    def abstained(self) -> int:
        """How many captions are withheld."""
        return len(self._abstained)

    def records(self) -> Iterator[Record]:
        """Yield what holds, in the order it was done."""
        for place in sorted(place for place, _, _ in self._places.values()):
            yield self.read(place)

    def sync(self) -> None:
        """Bring all lines to the disk."""
        with writing_to(self.path):
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Take out the lines that no longer hold."""
        self.sync()
        if self._lines == len(self._places):
            return
        with atomic_write(self.path) as file:
            file.writelines(json_line(record.as_dict()) for record in self.records())
        self.close()
        self._open()

    def close(self) -> None:
        """Bring all lines to the disk and close the file."""
        self.sync()
        self._file.close()
        self._reader.close()

    def _note(self, record: Record, place: int) -> None:
        self._contents[bytes.fromhex(record.file.sha256)] = place
        self._places[record.path] = (place, record.file.size, record.file.modified)
        for paths, holds in ((self._abstained, record.abstained), (self._unsure, record.unsure)):
            (paths.add if holds else paths.discard)(record.path)

    def _learn_all(self) -> None:
        """Learn what is there; a last line without its end is as good as not written."""
        for line in self._reader:
            if not line.endswith(b"\n"):
                break
            self._learn(line)
            self._lines += 1
            self._end += len(line)

    def _learn(self, line: bytes) -> None:
        try:
            record = Record.from_dict(json.loads(line))
            bytes.fromhex(record.file.sha256)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if self._end > 0:
                return  # damaged by a crash: its picture is done again, and the line goes when the run is complete
            raise InputError(
                f"{self.path} was not written by recap caption: name another file with --out, "
                "or have it written over with --restart"
            ) from error
        if not is_continued(record.generated_by, self.generated_by):
            raise InputError(_other_settings(self.path, record.generated_by, self.generated_by))
        self._note(record, self._end)


@contextmanager
def open_journal(path: Path, generated_by: Mapping[str, str], *, restart: bool = False) -> Iterator[Journal]:
    """Yield the journal in a file, which no other process may use meanwhile; ``restart`` begins it anew."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: there is no such folder; make it first")
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(f"{path}: another recap is writing to it; wait for that one, or name another file") from error
    try:
        if restart:
            path.unlink(missing_ok=True)
        journal = Journal(path, generated_by)
        try:
            yield journal
        finally:
            journal.close()
    finally:
        lock.release()


def _other_settings(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> str:
    changed = [
        f"{name.replace('_', ' ')} {then.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in dict.fromkeys((*now, *then))
        if name not in ("recap", "settings") and then.get(name) != now.get(name)
    ]
    which = "; ".join(changed) or "another -k, --method, --seed and the like, or the pack was changed meanwhile"
    return f"{path} was begun with other settings ({which}): name another file with --out, or begin anew with --restart"


@contextmanager
def open_output(out: Path, kind: str, generated_by: Mapping[str, str], *, restart: bool = False) -> Iterator[Journal]:
    """Yield the journal of an output file; when the block ends without an error, the file is made from it.

    ``kind`` is one of ``recap.batch.FORMATS``: ``jsonl`` is itself the journal, any other has it beside it, as
    ``OUT.journal``. ``generated_by`` is what ``provenance`` returns; ``restart`` begins anew, whatever is there.
    """
    path = out if kind == "jsonl" else out.with_name(f"{out.name}.journal")
    if out.exists() and not path.exists() and not restart:
        raise InputError(
            f"{out} is there, but no {path.name} beside it to go on from: name another file with --out, "
            "or have it written over with --restart"
        )
    with open_journal(path, generated_by, restart=restart) as journal:
        yield journal
        journal.finish()
        if kind != "jsonl":
            write_records(out, kind, journal.records())


class FailureList:
    """Lists failures in a file, one json object a line with ``path`` and ``reason``, as they come.

    Every run begins it anew, since every run tries these files again; after a run without failures there is no file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not _is_ours(path):
            raise InputError(f"{path} is there and lists no errors of recap: name another file with --errors")
        path.unlink(missing_ok=True)
        self._file: BinaryIO | None = None

    def add(self, path: str, reason: str) -> None:
        """Add one failure."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        with writing_to(self.path):
            self._file.write(json_line({"path": path, "reason": reason}))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _is_ours(path: Path) -> bool:
    """Tell whether a file may be written over: it is not there, is empty, or lists failures."""
    if not path.exists():
        return True
    try:
        with path.open("rb") as file:
            line = file.readline()
        return not line or json.loads(line).keys() == {"path", "reason"}
    except (OSError, ValueError, AttributeError):
        return False


FINGERPRINT = "language_model_fingerprint"
"""Tells language models of one name from each other; captions of older versions do not have it."""


def provenance(captioner: ReCap, pack: str, *, min_confidence: float | None = None, **others: Any) -> dict[str, str]:
    """Return what wrote the captions, with a hash of everything that decides which ones come out.

    ``pack`` is the name the captioner was loaded by; captions less sure than ``min_confidence`` are withheld;
    ``others`` are settings outside the captioner that belong into the hash, ready for json.
    """
    model = captioner.language_model
    named = {
        "recap": __version__,
        "pack": pack,
        "encoder": captioner.encoder.name,
        "language_model": model.name if model else "none",
    }
    if model is not None:
        # not in the hash of the settings, so that journals of versions that did not note it can be resumed
        named[FINGERPRINT] = model_fingerprint(model)[:16]
    if min_confidence is not None:
        named["min_confidence"] = str(float(min_confidence))
        others["min_confidence"] = float(min_confidence)
    return {**named, "settings": _settings_hash(captioner, others)}


class Later(Mapping[str, str]):
    """A provenance that is made when somebody looks at it: who prints a caption never does."""

    def __init__(self, make: Callable[[], Mapping[str, str]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, str]:
        return self._make()

    def __getitem__(self, name: str) -> str:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def is_continued(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Tell whether captions of two runs may be in one file: settings and, as far as noted, language model agree."""
    same_model = FINGERPRINT not in then or then[FINGERPRINT] == now.get(FINGERPRINT)
    return then["settings"] == now["settings"] and same_model


def _settings_hash(captioner: ReCap, others: dict[str, Any]) -> str:
    alignment = captioner.alignment
    arrays = (alignment.W_, alignment.image_mean_, alignment.text_mean_)
    decisive = {
        "encoders": [captioner.encoder.image.fingerprint, captioner.encoder.text.fingerprint],
        "map": [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays],
        "datastore": [captioner.datastore.sources(), captioner.datastore.content_hash()],
        "language_model": captioner.language_model.name if captioner.language_model else "none",
        "calibration": captioner.calibration and captioner.calibration.as_dict(),
        "settings": captioner.settings.as_dict(),
        "others": others,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
