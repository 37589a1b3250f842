"""Text and json from files, with errors that name the file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recap.errors import InputError


def read_text(path: Path) -> str:
    """Return the text of a file, or say why there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, numbered from 1; only a line feed ends a line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line


def read_table(path: Path) -> csv.DictReader[str]:
    """Return the rows of a ``.csv`` or ``.tsv`` file by column name; quoted cells may hold line breaks."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)


def parse_json(text: str, where: str) -> Any:
    """Return the value of json text, or say where it goes wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not valid json ({error.msg} at line {error.lineno}, column {error.colno})"
        ) from error
