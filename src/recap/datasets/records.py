"""What every reader shares: text and json from files, how a caption is checked, how a broken record is reported.

Errors name the file; one about a missing file says where the data sets of the paper come from.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from recap.errors import InputError

OnBroken: TypeAlias = Callable[[InputError], None]
"""Called with what is wrong with a record."""


class MissingCaptionError(InputError):
    """A picture that nobody has described."""


def printable(name: str) -> str:
    """Return a file's name as text that can be written anywhere; bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def as_captions(value: Any, where: str) -> list[str] | InputError:
    """Return one caption or several as folded texts without the blank ones, or what is wrong with them."""
    texts = value if isinstance(value, list | tuple) else [value]
    texts = [text for text in texts if text is not None]
    for text in texts:
        if not isinstance(text, str):
            return InputError(f"{where}: a caption must be text, not {text!r:.80}")
    folded = [line for text in texts if (line := " ".join(text.split()))]
    return folded or MissingCaptionError(f"{where}: no caption")


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


SOURCES = {
    "Flickr8k": "Flickr8k_text.zip and Flickr8k_Dataset.zip, described at hockenmaier.cs.illinois.edu/8k-pictures.html "
    "and kept at github.com/jbrownlee/Datasets/releases/tag/Flickr8k",
    "Flickr30k": "captions: caption_datasets.zip at cs.stanford.edu/people/karpathy/deepimagesent; "
    "pictures: shannon.cs.illinois.edu/DenotationGraph",
    "Localized Narratives": "google.github.io/localized-narratives",
    "MS-COCO": "captions: caption_datasets.zip at cs.stanford.edu/people/karpathy/deepimagesent; "
    "pictures: cocodataset.org",
    "MSR-VTT": "ms-multimedia-challenge.com/2016/dataset",
    "Open-i chest x-rays": "NLMCXR_reports.tgz and NLMCXR_png.tgz at openi.nlm.nih.gov",
    "VizWiz-Captions": "vizwiz.org/tasks-and-datasets/image-captioning",
}

SPLITS = ("train", "dev", "test")
"""What the splits are called here, whatever a data set calls them."""


def require(path: Path, data: str) -> Path:
    """Return a path that exists, or say which data set it belongs to and where to get that."""
    if not path.exists():
        raise InputError(f"{path} is missing: it belongs to {data}, which is found here: {SOURCES[data]}")
    return path


def require_split(split: str, data: str) -> None:
    """Raise unless there is such a split."""
    if split not in SPLITS:
        raise InputError(f"{data} has no split {split!r}; there are {', '.join(SPLITS)}")
