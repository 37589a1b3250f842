"""Vectors on disk, by the encoder's fingerprint and the hash of the content, so that nothing is encoded twice."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from recap.errors import InputError
from recap.types import Vectors

Result = TypeVar("Result")

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    encoder BLOB NOT NULL, content BLOB NOT NULL, vector BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (encoder, content)
);
CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, state TEXT NOT NULL, content BLOB NOT NULL)
"""
_QUERY_SIZE = 500
"""Number of hashes in one query."""


class VectorCache:
    """A file of vectors that several threads and processes may use at once.

    A cache must never cost a result: a damaged file is moved aside with a warning and a new one begun, an entry whose
    checksum does not fit counts as absent, and when nothing can be written the work goes on without.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._writable = True
        self._process = os.getpid()
        self._connection = self._open()

    def get(self, fingerprint: str, contents: Sequence[bytes], dimension: int) -> dict[bytes, Vectors]:
        """Return the known vectors of an encoder among the given content hashes."""
        encoder = bytes.fromhex(fingerprint)
        found: dict[bytes, Vectors] = {}
        for start in range(0, len(contents), _QUERY_SIZE):
            part = contents[start : start + _QUERY_SIZE]
            places = ",".join("?" * len(part))
            query = f"SELECT content, vector, crc FROM vectors WHERE encoder = ? AND content IN ({places})"
            for content, blob, crc in self._select(query, (encoder, *part)):
                if len(blob) == 4 * dimension and crc == _checksum(encoder, content, blob):
                    found[content] = np.frombuffer(blob, "<f4").astype(np.float32)
        return found

    def put(self, fingerprint: str, vectors: Mapping[bytes, Vectors]) -> None:
        """Keep vectors by their content hash, all of them or none."""
        encoder = bytes.fromhex(fingerprint)
        rows = []
        for content, vector in vectors.items():
            blob = np.asarray(vector, "<f4").tobytes()
            rows.append((encoder, content, blob, _checksum(encoder, content, blob)))
        self._insert("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)

    def get_files(self, fingerprint: str, paths: Sequence[str], dimension: int) -> dict[str, Vectors]:
        """Return the known vectors of files that have the size and time they were seen with, without reading them."""
        contents: dict[str, bytes] = {}
        for start in range(0, len(paths), _QUERY_SIZE):
            names = {_file_name(path): path for path in paths[start : start + _QUERY_SIZE]}
            query = f"SELECT path, state, content FROM files WHERE path IN ({','.join('?' * len(names))})"
            for name, state, content in self._select(query, list(names)):
                if state == file_state(names[name]):
                    contents[names[name]] = content
        vectors = self.get(fingerprint, list(dict.fromkeys(contents.values())), dimension)
        return {path: vectors[content] for path, content in contents.items() if content in vectors}

    def put_files(self, seen: Mapping[str, tuple[str, bytes]]) -> None:
        """Remember files by their path: their ``file_state`` and content hash."""
        rows = [(_file_name(path), *facts) for path, facts in seen.items()]
        self._insert("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def count(self) -> int:
        """Return the number of vectors, of all encoders."""
        return sum(row[0] for row in self._select("SELECT COUNT(*) FROM vectors", ()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _insert(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows, all of them or none."""
        if not rows or not self._writable:
            return

        def insert(connection: sqlite3.Connection) -> bool:
            with connection:
                connection.executemany(statement, rows)
            return True

        self._writable = bool(self._execute(insert, "nothing more is written"))

    def _select(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self._execute(lambda connection: connection.execute(query, values).fetchall(), "cannot be read") or []

    def _execute(self, action: Callable[[sqlite3.Connection], Result], refusal: str) -> Result | None:
        """Return what an action on the file returns; None, after a warning, where the file system refuses it."""
        with self._lock:
            try:
                return action(self._connected())
            except sqlite3.OperationalError as error:
                warnings.warn(f"vector cache {self.path}: {refusal} ({error})", stacklevel=4)
                return None
            except sqlite3.ProgrammingError as error:
                raise InputError(f"vector cache {self.path}: it has been closed") from error
            except sqlite3.DatabaseError as error:
                self._restart(error)
                return action(self._connected())

    def _connected(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # a connection must not be carried over a fork
            self._process = os.getpid()
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._connect()
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(f"vector cache {self.path}: cannot be opened ({error})") from error
        except sqlite3.DatabaseError as error:
            self._move_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise InputError(f"vector cache {self.path}: made by another version of recap; use another file")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                connection.executescript(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _restart(self, error: sqlite3.DatabaseError) -> None:
        """Begin a new file after the old one has turned out to be damaged."""
        with suppress(sqlite3.Error):
            self._connection.close()
        self._move_aside(error)
        self._connection = self._connect()

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        warnings.warn(f"vector cache {self.path}: damaged ({error}); moved to {aside}, beginning anew", stacklevel=4)


def file_state(path: str) -> str:
    """Return what tells a file from a changed one without reading it; empty where there is none."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - of ten thousand files, in a search
    except (OSError, ValueError):
        return ""
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _file_name(path: str) -> bytes:
    """Return a file's name wherever the search starts from; names need not be UTF-8."""
    return os.fsencode(os.path.abspath(path))  # noqa: PTH100 - of ten thousand files, in a search


def _checksum(encoder: bytes, content: bytes, blob: bytes) -> int:
    return zlib.crc32(blob, zlib.crc32(content, zlib.crc32(encoder)))
