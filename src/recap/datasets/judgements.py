"""What people thought of captions, from the files as they were published, or in a plain format for your own.

| name                   | file                                              | needs besides          |
|------------------------|---------------------------------------------------|------------------------|
| flickr8k-expert        | ``ExpertAnnotations.txt``                         | ``Flickr8k.token.txt`` |
| flickr8k-crowdflower   | ``CrowdFlowerAnnotations.txt``                    | ``Flickr8k.token.txt`` |
| thumb                  | ``mscoco_THumB-1.0.jsonl``                        | references             |
| composite              | ``8k_correctness.csv``, ``30k_...``, ``coco_...`` | references             |
| pascal-50s             | ``pair_pascal.mat``, ``consensus_pascal.mat``     |                        |
| ratings                | your own: json or jsonl, objects with ``image``,  |                        |
|                        | ``caption``, ``ratings`` and maybe ``references`` |                        |

Where references are missing, metrics that need none can still be judged.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from recap.datasets.captions import read_references, stem
from recap.datasets.published import TOKEN_FILES, read_flickr8k_captions
from recap.datasets.records import read_lines, read_records, read_text
from recap.errors import InputError, MissingExtraError, check_name

CATEGORIES = {1: "HC", 2: "HI", 3: "HM", 4: "MM"}
"""Pascal-50S pairs: human-human both correct, human-human one of another image, human-machine, machine-machine."""

PASCAL_REFERENCES = 48

_Row: TypeAlias = tuple[str, str, tuple[float, ...]]
"""Image, caption or its id, and ratings."""


@dataclass(frozen=True, slots=True)
class Judgements:
    """Captions that people rated: one entry an (image, caption)."""

    name: str
    images: tuple[str, ...]
    captions: tuple[str, ...]
    ratings: tuple[tuple[float, ...], ...]
    """What each rater gave; one number where only a summary was published."""
    references: Mapping[str, Sequence[str]]
    """Captions of each image that people wrote; images without any are absent."""
    variant: Literal["b", "c"] = "c"
    """The tau that is usually reported on these data."""
    votes: tuple[tuple[int, ...], ...] = ()
    """How many raters chose each category, where that is known."""

    def __len__(self) -> int:
        return len(self.images)

    def with_references(self, references: Mapping[str, Sequence[str]]) -> Judgements:
        """Return the same judgements with references, matched by image id or by the number in COCO's names."""
        short = {stem(image): texts for image, texts in references.items()}
        found = {image: references.get(image) or short.get(stem(image)) for image in dict.fromkeys(self.images)}
        return replace(self, references={image: texts for image, texts in found.items() if texts})


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs of captions of one image of which people preferred one."""

    name: str
    images: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]
    votes: tuple[tuple[int, int], ...]
    """How many preferred the first and the second."""
    categories: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.images)


def read_judgements(
    path: str | Path, kind: str | None = None, *, captions: str | Path | None = None
) -> Judgements | Preferences:
    """Read human judgements.

    Args:
        path: the published file, for pascal-50s the folder that holds both.
        kind: one of ``FORMATS``; None looks at the file to tell.
        captions: Flickr8k only: the file of captions; by default looked for beside ``path``.
    """
    kind = kind or guess_format(Path(path))
    check_name("kind of judgements", kind, FORMATS)
    return FORMATS[kind](Path(path), None if captions is None else Path(captions))


def guess_format(path: Path) -> str:
    """Return the name of the format a file is in, by its suffix and its first line."""
    if path.is_dir() or path.suffix == ".mat":
        return "pascal-50s"
    if path.suffix == ".csv":
        return "composite"
    _, first = next(iter(read_lines(path)), (0, ""))
    if path.suffix in (".json", ".jsonl"):
        return "thumb" if '"hyp"' in first else "ratings"
    cells = first.split("\t")
    if len(cells) == 5:
        return "flickr8k-expert" if set(map(str.strip, cells[2:])) <= set("1234") else "flickr8k-crowdflower"
    raise InputError(f"{path}: it is not clear in which format these judgements are; name it: {', '.join(FORMATS)}")


def _ratings(path: Path, captions: Path | None) -> Judgements:
    """Read judgements in the plain format; an image's references are all those given with any of its captions."""
    rows: list[_Row] = []
    references: dict[str, dict[str, None]] = {}
    for record in read_records(path):
        item = record.values
        try:
            image, given = str(item["image"]), item["ratings"]
            ratings = tuple(float(one) for one in (given if isinstance(given, list) else [given]))
            rows.append((image, str(item["caption"]), ratings))
            references.setdefault(image, {}).update(dict.fromkeys(map(str, item.get("references", ()))))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f'{record.where}: expected "image", "caption" and "ratings" ({error!r})') from error
    known = {image: tuple(texts) for image, texts in references.items() if texts}
    found = _judgements("ratings", path, rows, known)
    if len({*map(len, found.ratings)}) > 1 or not found.ratings[0]:
        raise InputError(f"{path}: every entry needs as many ratings as the others, one or more")
    return found


def _expert(path: Path, captions: Path | None) -> Judgements:
    """Leave out judgements of an image's own captions: they are its references."""
    rows = [row for row in _flickr8k_rows(path) if not _is_own(row[0], row[1])]
    return _flickr8k("flickr8k-expert", path, captions, rows)


def _crowdflower(path: Path, captions: Path | None) -> Judgements:
    """Take all judged pairs, as others do: an own caption that was judged is none of its image's references."""
    rows = list(_flickr8k_rows(path))
    judged = {caption for image, caption, _ in rows if _is_own(image, caption)}
    found = _flickr8k("flickr8k-crowdflower", path, captions, rows, judged)
    votes = tuple((int(scores[1]), int(scores[2])) for scores in found.ratings)
    return replace(found, ratings=tuple(scores[:1] for scores in found.ratings), variant="b", votes=votes)


def _is_own(image: str, caption: str) -> bool:
    return caption.rpartition("#")[0] == image


def _flickr8k_rows(path: Path) -> Iterator[_Row]:
    for number, line in read_lines(path):
        image, caption, *cells = line.split("\t")
        scores = tuple(map(float, cells)) if all(map(_is_number, cells)) else ()
        if len(scores) != 3:
            raise InputError(f"{path}:{number}: expected image, IMAGE#N and 3 numbers, separated by tabs")
        yield image, caption, scores


def _flickr8k(
    name: str, path: Path, captions: Path | None, rows: Sequence[_Row], left_out: Container[str] = ()
) -> Judgements:
    """Put texts to caption ids, and take the other captions of an image for references."""
    beside = next((path.parent / known for known in TOKEN_FILES if (path.parent / known).is_file()), None)
    source = captions or beside
    if source is None:
        raise InputError(f"{path}: the captions are missing: put {TOKEN_FILES[0]} beside it, or name it (--captions)")
    texts = read_flickr8k_captions(source)
    unknown = [caption for _, caption, _ in rows if caption not in texts]
    if unknown:
        raise InputError(f"{path}: {len(unknown)} captions are not in {source}, such as {unknown[0]}")
    references: dict[str, list[str]] = {image: [] for image, _, _ in rows}
    for caption, text in texts.items():
        image = caption.rpartition("#")[0]
        if image in references and caption not in left_out:
            references[image].append(text)
    known = {image: own for image, own in references.items() if own}
    return _judgements(name, path, [(image, texts[caption], scores) for image, caption, scores in rows], known)


def _thumb(path: Path, captions: Path | None) -> Judgements:
    rows: list[_Row] = []
    for record in read_records(path):
        item = record.values
        try:
            rows.append((item["image"], item["hyp"], (float(item["human_score"]),)))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f'{record.where}: expected "image", "hyp" and "human_score" ({error!r})') from error
    beside = (path.parent / f"mscoco_references{suffix}" for suffix in (".jsonl", ".json"))
    source = captions or next((file for file in beside if file.is_file()), None)
    found = _judgements("thumb", path, rows)
    return found.with_references(read_references(source)) if source else found


def _judgements(
    name: str, path: Path, rows: Sequence[_Row], references: Mapping[str, Sequence[str]] | None = None
) -> Judgements:
    if not rows:
        raise InputError(f"{path}: no judgements found")
    images, captions, ratings = zip(*rows, strict=True)
    return Judgements(name, images, captions, ratings, references or {})


def _composite(path: Path, captions: Path | None) -> Judgements:
    """Read a file of the AMT study: semicolons; after the picture's address come captions, then as many ratings."""
    rows: list[_Row] = []
    for cells in csv.reader(read_text(path).splitlines(), delimiter=";"):
        place = next((i for i, cell in enumerate(cells) if cell.strip().lower().endswith((".jpg", ".png"))), None)
        if place is None:  # the header, and notes at the end
            continue
        rest = [cell.strip() for cell in cells[place + 1 :]]
        count = next((i for i, cell in enumerate(rest) if _is_number(cell)), 0)
        ratings = rest[count : 2 * count]
        if not count or len(ratings) < count or not all(map(_is_number, ratings)):
            raise InputError(f"{path}: {cells[place]}: expected captions and as many ratings after the picture")
        image = cells[place].strip().rpartition("/")[2]
        rows += [(image, text, (float(rating),)) for text, rating in zip(rest[:count], ratings, strict=True)]
    if not rows:
        raise InputError(
            f"{path}: no judgements found: expected cells separated by semicolons, one a picture's address"
        )
    return _judgements("composite", path, rows)


def _pascal(path: Path, captions: Path | None) -> Preferences:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtraError("reading the .mat files of Pascal-50S", "metrics") from error
    folder = path if path.is_dir() else path.parent
    for name in ("pair_pascal.mat", "consensus_pascal.mat"):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: {name} is missing")
    pairs, consensus = loadmat(folder / "pair_pascal.mat"), loadmat(folder / "consensus_pascal.mat")
    inputs, triplets = pairs["new_input"][0], consensus["triplets"][0]
    if len(triplets) != PASCAL_REFERENCES * len(inputs):
        raise InputError(
            f"{folder}: {len(triplets)} triplets for {len(inputs)} pairs; {PASCAL_REFERENCES} each expected"
        )
    blocks = [triplets[PASCAL_REFERENCES * row : PASCAL_REFERENCES * (row + 1)] for row in range(len(inputs))]
    return Preferences(
        "pascal-50s",
        tuple(str(item[0][0]) for item in inputs),
        tuple(str(item[1][0]).strip() for item in inputs),
        tuple(str(item[2][0]).strip() for item in inputs),
        tuple(_pascal_votes(block, str(item[1][0]).strip()) for item, block in zip(inputs, blocks, strict=True)),
        tuple(CATEGORIES[int(category)] for category in pairs["category"][0]),
        tuple(tuple(_inner_text(triplet[0]) for triplet in block) for block in blocks),
    )


def _pascal_votes(block: Any, first: str) -> tuple[int, int]:
    """Count for which caption each vote is; a triplet may hold the two in either order."""
    for_first = 0
    for triplet in block:
        winner = triplet[1] if int(triplet[3][0][0]) == 1 else triplet[2]
        for_first += _inner_text(winner) == first
    return for_first, len(block) - for_first


def _inner_text(cell: Any) -> str:
    return str(cell[0][0][0]).strip()


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


FORMATS: dict[str, Callable[[Path, Path | None], Judgements | Preferences]] = {
    "flickr8k-expert": _expert,
    "flickr8k-crowdflower": _crowdflower,
    "thumb": _thumb,
    "composite": _composite,
    "pascal-50s": _pascal,
    "ratings": _ratings,
}
