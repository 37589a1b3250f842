"""Captions by image id, candidates or references, from the files that captioners and data sets write.

Read are: COCO results (``[{"image_id": 42, "caption": "..."}]``), COCO captions (``images`` and ``annotations``), the
files of Karpathy's splits (``dataset_coco.json``), ``{id: caption}`` or ``{id: [captions]}``, a list of objects with
``image`` and ``caption``, and jsonl, csv or tsv with such columns.

Captions without pictures, to be added to a datastore.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from recap.datasets.images import find_images
from recap.datasets.records import (
    CAPTION_FIELDS,
    ID_FIELDS,
    IMAGE_FIELDS,
    SUFFIXES,
    TOKEN_SUFFIXES,
    Record,
    as_captions,
    read_lines,
    read_records,
)
from recap.errors import InputError, RecapWarning
from recap.types import ImageLike

SHOWN = 3
"""Ids named in a message."""

Captions: TypeAlias = dict[str, list[str]]

T = TypeVar("T")

_COCO_NAME = re.compile(r"COCO_\w+_0*(\d+)$")


class CaptionsWarning(RecapWarning):
    """Some captions were left out."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Candidates beside the references of the same image."""

    ids: tuple[str, ...]
    candidates: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]


def read_references(path: str | Path, *, split: str | None = None) -> Captions:
    """Return all captions of each image; ``split`` takes one of a Karpathy file, such as ``test``."""
    path = Path(path)
    if path.suffix.lower() not in (*SUFFIXES, *TOKEN_SUFFIXES):
        raise InputError(f"{path}: captions are read from {', '.join(SUFFIXES)} or token files (.txt)")
    return collect(map(_caption_of, read_records(path, splits=split and [split])), str(path))


def read_candidates(path: str | Path) -> dict[str, str]:
    """Return the one caption of each image; none, or a second one for the same image, is an error."""
    found = read_references(path)
    for amount, wrong in (
        ("no caption", [image for image, captions in found.items() if not captions]),
        ("more than one caption", [image for image, captions in found.items() if len(captions) > 1]),
    ):
        if wrong:
            raise InputError(
                f"{path}: {len(wrong)} of {len(found)} images have {amount}, such as {_some(wrong)}: "
                "give one candidate for each image"
            )
    return {image: captions[0] for image, captions in found.items()}


def collect(records: Iterable[tuple[Any, Any]], where: str) -> Captions:
    """Group (id, caption or captions) by id, checked; ids become strings."""
    found: Captions = {}
    for image, captions in records:
        if not isinstance(image, str | int) or isinstance(image, bool) or image == "":
            raise InputError(f"{where}: an image id must be text or a whole number, not {image!r}")
        texts = captions if isinstance(captions, list | tuple) else [captions]
        for caption in texts:
            if not isinstance(caption, str):
                raise InputError(f"{where}: the caption of image {image} must be text, not {caption!r}")
        found.setdefault(str(image), []).extend(texts)
    if not any(found.values()):
        raise InputError(f"{where}: no captions found")
    return found


def match(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Matched:
    """Bring candidates and references of the same image together, in the order of the candidates.

    Where no id occurs on both sides, a candidate's path may end with the id of a reference; else file names are
    compared without folder and suffix, those of COCO by their number. What is on one side only is left out with a
    warning that counts it.
    """
    if not any(image in references for image in candidates):
        candidates = _by_ending(candidates, references) or candidates
    if not any(image in references for image in candidates):
        candidates, references = by_stem(candidates, "candidates"), by_stem(references, "references")
    usable = {image: tuple(text for text in texts if text.strip()) for image, texts in references.items()}
    ids = tuple(image for image in candidates if usable.get(image))
    known = frozenset(ids)
    if not ids:
        raise InputError(
            f"candidates and references have no image in common: candidates are of {_some(candidates)}, "
            f"references of {_some(references)}"
        )
    blank = sum(len(references[image]) - len(usable[image]) for image in ids)
    _warn([image for image in candidates if image not in known], "candidates have no reference and are left out")
    _warn([image for image in references if image not in candidates], "images with references have no candidate")
    if blank:
        warnings.warn(f"{blank} empty references are left out", CaptionsWarning, stacklevel=2)
    return Matched(ids, tuple(candidates[image] for image in ids), tuple(usable[image] for image in ids))


def _by_ending(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return candidates whose path ends with the id of a reference under that id; nothing if two end with the same."""
    found: dict[str, str] = {}
    for image, text in candidates.items():
        parts = PurePosixPath(image.replace("\\", "/")).parts
        endings = ("/".join(parts[start:]) for start in range(1, len(parts)))
        name = next((ending for ending in endings if ending in references), image)
        if name in found:
            return {}
        found[name] = text
    return found


def find_pictures(ids: Iterable[str], folder: str | Path) -> list[Path | None]:
    """Return for each id its picture in a folder (searched through); None where there is none.

    An id is a path inside the folder, a file name, a file name without suffix, or the number in a name of COCO.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of pictures")
    known: dict[str, Path] = {}
    for path in find_images([root]):
        for name in (path.relative_to(root).as_posix(), path.name, stem(path.name)):
            known.setdefault(name, path)
    return [known.get(image) or known.get(PurePosixPath(image).name) or known.get(stem(image)) for image in ids]


def stem(image: str) -> str:
    """Return a file name without folder and suffix, and of a COCO name the number."""
    name = PurePosixPath(image.replace("\\", "/")).name
    base = name.rpartition(".")[0] if re.search(r"\.[A-Za-z]\w{2,3}$", name) else name
    coco = _COCO_NAME.match(base)
    return coco[1] if coco else base


@dataclass(frozen=True, eq=False)
class Given:
    """Candidates, references and pictures in one order."""

    ids: tuple[str, ...]
    candidates: Sequence[str]
    references: Sequence[Sequence[str]] | None
    images: Sequence[ImageLike | None] | None
    image_index: npt.NDArray[np.int64]

    @classmethod
    def of(cls, candidates: Any, references: Any, images: Any, image_index: Any = None) -> Given:
        """Take lists in one order, or mappings by image id; ``image_index`` as in ``recap.metrics.evaluate``."""
        if isinstance(candidates, Mapping):
            return cls._by_id(candidates, references, images)
        if isinstance(candidates, str) or not len(candidates):
            raise InputError("candidates must be a list of at least one caption, or captions by image id")
        if isinstance(references, Mapping) or isinstance(images, Mapping | str | Path):
            raise InputError("references or images by id need candidates by id: give {id: caption}")
        images = None if images is None else list(images)
        index = np.arange(len(candidates)) if image_index is None else np.asarray(image_index, dtype=np.int64)
        if index.shape != (len(candidates),) or index.min() < 0:
            raise InputError(f"image_index must hold the number of an image for each of {len(candidates)} candidates")
        for what, side in (("references", references), ("images", images)):
            if side is not None and image_index is None and len(side) != len(candidates):
                raise InputError(f"{len(candidates)} candidates but {what} of {len(side)} images")
            if side is not None and int(index.max()) >= len(side):
                raise InputError(f"image_index names image {int(index.max())}, but there are {what} of {len(side)}")
        return cls(tuple(map(str, range(len(candidates)))), candidates, references, images, index)

    @classmethod
    def _by_id(cls, candidates: Mapping[str, str], references: Any, images: Any) -> Given:
        candidates = {image: texts[0] for image, texts in collect(candidates.items(), "candidates").items()}
        ids, texts = tuple(candidates), tuple(candidates.values())
        given: Sequence[Sequence[str]] | None = None
        if references is not None:
            matched = match(candidates, collect(references.items(), "references"))
            ids, texts, given = matched.ids, matched.candidates, matched.references
        if isinstance(images, Mapping):
            named = {str(key): value for key, value in images.items()}
            images = [named.get(image) for image in ids]
        elif images is not None:
            images = find_pictures(ids, images)
        return cls(ids, texts, given, images, np.arange(len(ids)))


def by_stem(captions: Mapping[str, T], what: str) -> dict[str, T]:
    """Return what is known of images by their names without folder and suffix, which must differ."""
    found: dict[str, T] = {}
    for image, value in captions.items():
        short = stem(image)
        if short in found:
            raise InputError(f"{what}: two images have the name {short!r} without folder and suffix")
        found[short] = value
    return found


def _warn(ids: Sequence[str], what: str) -> None:
    if ids:
        warnings.warn(f"{len(ids)} {what}, such as {_some(ids)}", CaptionsWarning, stacklevel=3)


def _some(ids: Iterable[str]) -> str:
    shown = list(ids)
    return ", ".join(shown[:SHOWN]) + (", ..." if len(shown) > SHOWN else "")


def _caption_of(record: Record) -> tuple[Any, Any]:
    """Return the id and the caption of a record, whatever its file calls them."""
    image, caption = record.find(*ID_FIELDS, *IMAGE_FIELDS), record.find("caption", *CAPTION_FIELDS)
    if image is None or caption is None:
        raise InputError(
            f"{record.where}: expected an image id ({', '.join((*ID_FIELDS, *IMAGE_FIELDS))}) and a caption "
            f"({', '.join(CAPTION_FIELDS)})"
        )
    return image, caption


@dataclass(frozen=True, slots=True)
class Sentence:
    """One caption, with what its file says about where it comes from."""

    text: str
    source: str = ""
    image_id: str = ""
    synthetic: bool = False


def read_sentences(path: str | Path) -> list[Sentence]:
    """Return captions from text (one a line), json, ``.csv``, ``.tsv`` or ``.parquet``; ``-`` is standard input.

    All but text need a field ``caption``, and may have ``source``, ``image`` (or ``image_id``) and ``synthetic``.
    """
    path = Path(path)
    if str(path) == "-":
        return [Sentence(text) for line in sys.stdin if (text := " ".join(line.split()))]
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() not in SUFFIXES:
        return [Sentence(" ".join(line.split())) for _, line in read_lines(path)]
    return [sentence for record in read_records(path) for sentence in _sentences(record)]


def _sentences(record: Record) -> Iterator[Sentence]:
    values = record.values
    if values.keys().isdisjoint(CAPTION_FIELDS):
        raise InputError(f"{record.where}: expected a caption")
    captions = as_captions(record.find(*CAPTION_FIELDS), record.where)
    if isinstance(captions, InputError):
        raise captions
    image = next((str(values[name]) for name in ("image_id", *IMAGE_FIELDS) if values.get(name) not in (None, "")), "")
    flag = str(values.get("synthetic") or "").casefold() in ("1", "true", "yes")
    for caption in captions:
        yield Sentence(caption, str(values.get("source") or ""), image, flag)
