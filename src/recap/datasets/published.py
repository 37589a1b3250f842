"""The data sets of the paper, from the files as they were published: from a folder and a split to pairs.

Where a set comes from is said by ``SOURCES``, and by the message about a file of it that is missing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from recap.assets import fetch
from recap.datasets.captions import read_references, stem
from recap.datasets.images import find_images
from recap.datasets.pairs import read_pairs
from recap.datasets.records import KARPATHY_TRAIN, Record, parse_json, read_lines, read_records, read_text
from recap.errors import InputError
from recap.files import write_json
from recap.types import Pair

SOURCES = {
    "Flickr8k": "Flickr8k_text.zip and Flickr8k_Dataset.zip, described at hockenmaier.cs.illinois.edu/8k-pictures.html "
    "and kept at github.com/jbrownlee/Datasets/releases/tag/Flickr8k",
    "Flickr30k": "captions: caption_datasets.zip at cs.stanford.edu/people/karpathy/deepimagesent; "
    "or data/task2 of github.com/multi30k/dataset; pictures: shannon.cs.illinois.edu/DenotationGraph",
    "Localized Narratives": "google.github.io/localized-narratives",
    "MS-COCO": "captions: caption_datasets.zip at cs.stanford.edu/people/karpathy/deepimagesent; "
    "pictures: cocodataset.org",
    "MSR-VTT": "ms-multimedia-challenge.com/2016/dataset",
    "Open-i chest x-rays": "NLMCXR_reports.tgz and NLMCXR_png.tgz at openi.nlm.nih.gov",
    "VizWiz-Captions": "vizwiz.org/tasks-and-datasets/image-captioning",
}
"""Where the data sets of the paper come from."""

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


@contextmanager
def _annotations(path: Path, data: str) -> Iterator[Any]:
    """Yield the content of an annotation file; what the block does not find in it is said with the file's name."""
    content = parse_json(read_text(require(path, data)), str(path))
    try:
        yield content
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not an annotation file of {data} ({type(error).__name__}: {error})") from error


TOKEN_FILES = ("Flickr8k.token.txt", "captions.token.txt")
PICTURES = ("images", "Flicker8k_Dataset", "Flickr8k_Dataset")
"""Where the pictures may lie; the archive spells its folder in the second way."""


def read_flickr8k(folder: str | Path, split: str) -> list[Pair]:
    """Return the pairs of one split (``train``, ``dev``, ``test``) in the order of its list.

    ``folder`` holds what was published: ``Flicker8k_Dataset/``, ``Flickr8k.token.txt`` (``IMAGE#N<tab>caption``) and a
    list of names for each split, ``Flickr_8k.trainImages.txt``; or the same as ``images/``, ``captions.token.txt`` and
    ``train.txt``.
    """
    require_split(split, "Flickr8k")
    folder = Path(folder)
    tokens = _first(folder, TOKEN_FILES)
    names = _first(folder, (f"Flickr_8k.{split}Images.txt", f"{split}.txt"))
    captions: dict[str, list[str]] = {name: [] for name in read_text(names).split()}
    for caption_id, caption in read_flickr8k_captions(tokens).items():
        name = caption_id.rpartition("#")[0]
        if name in captions and caption:
            captions[name].append(caption)
    pictures = next((folder / name for name in PICTURES if (folder / name).is_dir()), folder / PICTURES[0])
    return [Pair(pictures / name, tuple(texts), name) for name, texts in captions.items() if texts]


def read_flickr8k_captions(path: Path) -> dict[str, str]:
    """Return the captions of Flickr8k by their id, ``IMAGE#N``."""
    found: dict[str, str] = {}
    for number, line in read_lines(path):
        caption_id, _, text = line.partition("\t")
        if not text:
            raise InputError(f"{path}:{number}: expected IMAGE#N<tab>caption")
        found[caption_id] = " ".join(text.split())
    return found


def _first(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of some files that is there; the message about a missing one has the published name."""
    there = (folder / name for name in names if (folder / name).is_file())
    return next(there, None) or require(folder / names[0], "Flickr8k")


_KARPATHY = {"train": KARPATHY_TRAIN, "dev": ("val",), "test": ("test",)}


def read_karpathy_coco(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_coco.json``, with the pictures in ``train2014/`` and ``val2014/`` beside it.

    An id is the number COCO gave the picture. ``train`` is both of Karpathy's train and restval: 113,287 pictures.
    """
    return _read_karpathy(Path(folder) / "dataset_coco.json", split, Path(folder), "MS-COCO")


def read_karpathy_flickr30k(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``dataset_flickr30k.json``, with the pictures in ``images/`` beside it.

    Without that file, and with the folder ``data/task2`` of Multi30k instead (``raw/``, ``image_splits/``), captions
    are those: of 29,000 pictures in ``train``, 1,014 in ``dev`` and 1,000 in ``test``, which are not Karpathy's.
    """
    if not (Path(folder) / "dataset_flickr30k.json").exists() and (Path(folder) / "image_splits").is_dir():
        return _read_multi30k(Path(folder), split)
    return _read_karpathy(Path(folder) / "dataset_flickr30k.json", split, Path(folder) / "images", "Flickr30k")


def _read_karpathy(path: Path, split: str, images: Path, data: str) -> list[Pair]:
    require_split(split, data)
    pairs = read_pairs(require(path, data), images=images, splits=_KARPATHY[split])
    return [replace(pair, id=stem(pair.id)) for pair in pairs]


def _read_multi30k(folder: Path, split: str) -> list[Pair]:
    """Return the five English captions of each picture, which stand in a file each, a line a picture."""
    require_split(split, "Flickr30k")
    part = {"dev": "val", "test": "test_2016"}.get(split, split)
    names = require(folder / "image_splits" / f"{part}_images.txt", "Flickr30k").read_text(encoding="utf-8").split()
    columns = []
    for number in range(1, 6):
        path = require(folder / "raw" / f"{part}.{number}.en.gz", "Flickr30k")
        columns.append(gzip.decompress(path.read_bytes()).decode().rstrip("\n").split("\n"))
        if len(columns[-1]) != len(names):
            raise InputError(f"{path}: {len(columns[-1]):,} captions for {len(names):,} pictures")
    captions = (tuple(" ".join(text.split()) for text in row) for row in zip(*columns, strict=True))
    return [Pair(folder / "images" / name, texts, stem(name)) for name, texts in zip(names, captions, strict=True)]


TEST_REFERENCES = "karpathy_test_references.json"


def read_coco_captions(folder: str | Path, split: str) -> list[Pair]:
    """Return captions by COCO's numbers: train2014 from an asset, Karpathy's test from ``TEST_REFERENCES``.

    Sorted by number; the picture of a pair is the path it would have below the folder. Karpathy's train split also has
    a part of val2014, and his dev split is another part of it: neither can be told without his json.
    """
    folder = Path(folder)
    if split == "train":
        return _coco_pairs(coco_train_captions(), folder / "train2014")
    if split == "test" and (folder / TEST_REFERENCES).exists():
        references = read_references(folder / TEST_REFERENCES)
        return _coco_pairs({int(stem(name)): texts for name, texts in references.items()}, folder / "val2014")
    return read_karpathy_coco(folder, split)


def coco_train_captions() -> dict[int, list[str]]:
    """Return the captions of COCO train2014 by the number of the picture."""
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    return captions


def _coco_pairs(captions: dict[int, list[str]], folder: Path) -> list[Pair]:
    return [
        Pair(
            folder / f"COCO_{folder.name}_{number:012}.jpg",
            tuple(" ".join(text.split()) for text in captions[number]),
            str(number),
        )
        for number in sorted(captions)
    ]


def read_vizwiz(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs from ``annotations/{train,val,test}.json`` with the pictures in ``train/``, ``val/`` and ``test/``.

    They were taken by people who are blind, many of them out of focus or of nothing. Annotators who could not tell what
    is seen chose a ready-made caption that says so (``is_precanned``), and spam was marked (``is_rejected``): both are
    left out, and so are all captions of pictures that most annotators found too poor. The captions of the test split
    are with the evaluation server only: its pairs have none. Pictures of the other splits without a usable caption are
    left out. An id is the number in the file.
    """
    require_split(split, "VizWiz-Captions")
    folder, name = Path(folder), {"dev": "val"}.get(split, split)
    with _annotations(folder / "annotations" / f"{name}.json", "VizWiz-Captions") as content:
        pictures = {image["id"]: folder / name / image["file_name"] for image in content["images"]}
        captions = _usable(content.get("annotations", ()))
    return [
        Pair(picture, tuple(captions.get(number, ())), str(number))
        for number, picture in pictures.items()
        if split == "test" or captions.get(number)
    ]


def write_vizwiz_submission(path: str | Path, captions: Mapping[str, str], folder: str | Path) -> None:
    """Write the file the evaluation server reads: one caption for every picture of the test split."""
    wanted = [pair.id for pair in read_vizwiz(folder, "test")]
    missing = [name for name in wanted if not captions.get(name, "").strip()]
    if missing:
        raise InputError(
            f"the server wants a caption for all {len(wanted):,} pictures of the test split; "
            f"{len(missing):,} have none, such as {', '.join(missing[:3])}"
        )
    write_json(path, [{"image_id": int(name), "caption": captions[name]} for name in wanted])


def _usable(annotations: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Return the captions of each picture, filtered."""
    given: dict[int, list[dict[str, Any]]] = {}
    for annotation in annotations:
        given.setdefault(annotation["image_id"], []).append(annotation)
    usable: dict[int, list[str]] = {}
    for image, group in given.items():
        too_poor = sum(bool(item.get("is_precanned")) for item in group)
        if 2 * too_poor > len(group):
            continue
        kept = [item["caption"] for item in group if not (item.get("is_precanned") or item.get("is_rejected"))]
        usable[image] = [text for caption in kept if (text := " ".join(caption.split()))]
    return usable


FRAMES = 4
"""Pictures of a video of MSR-VTT."""


def read_msrvtt(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs of frames in the official split: 6,513, 497 and 2,990 videos with twenty captions each.

    ``folder`` holds ``train_val_videodatainfo.json``, ``test_videodatainfo.json`` and ``frames/VIDEO/``, the pictures
    of a video in the order of their names; four of them, evenly apart, are taken, and each is paired with all captions.
    Make them, for example, with ``ffmpeg -i VIDEO.mp4 -vf fps=1 frames/VIDEO/%04d.jpg``. An id is ``VIDEO#N``.
    """
    require_split(split, "MSR-VTT")
    file, part = "test" if split == "test" else "train_val", {"dev": "validate"}.get(split, split)
    with _annotations(Path(folder) / f"{file}_videodatainfo.json", "MSR-VTT") as content:
        videos = [video["video_id"] for video in content["videos"] if video["split"] == part]
        captions: dict[str, list[str]] = {video: [] for video in videos}
        for sentence in content["sentences"]:
            if sentence["video_id"] in captions:
                captions[sentence["video_id"]].append(" ".join(sentence["caption"].split()))
    return [
        Pair(frame, tuple(captions[video]), f"{video}#{number}")
        for video in videos
        for number, frame in enumerate(_frames(Path(folder) / "frames" / video))
    ]


def _frames(folder: Path) -> list[Path]:
    """Return four pictures of a video: the middles of its four quarters."""
    found = list(find_images([require(folder, "MSR-VTT")]))
    if not found:
        raise InputError(f"{folder}: no frames; make them with ffmpeg -i VIDEO.mp4 -vf fps=1 {folder}/%04d.jpg")
    places = (np.arange(FRAMES) + 0.5) / FRAMES * len(found)
    return [found[place] for place in places.astype(int)]


SECTIONS = ("FINDINGS", "IMPRESSION")
"""What a report says; the first that is there is the caption."""


ANNOTATION = "annotation.json"
"""File of the studies with a front and a side picture, split as most publications do."""
VIEWS = 2
"""Pictures of a study in that file."""


def read_xrays(folder: str | Path, split: str) -> list[Pair]:
    """Return chest x-rays with their reports, from ``annotation.json`` or ``ecgen-radiology/*.xml`` and ``images/``.

    They are the Indiana University collection. The first file has a split of its own; an id is the study's with the
    number of the picture behind ``#``. Open-i has none: a hash of the report's name puts eight tenths into ``train``
    and a tenth each into ``dev`` and ``test``, all pictures of a report on one side. Reports without a picture or
    without findings are left out, and an id is the picture's.
    """
    require_split(split, "Open-i chest x-rays")
    if (Path(folder) / ANNOTATION).exists():
        return _studies(Path(folder), {"dev": "val"}.get(split, split))
    reports = require(Path(folder) / "ecgen-radiology", "Open-i chest x-rays")
    found = [
        pair
        for path in sorted(reports.glob("*.xml"))
        if _report_split(path.stem) == split
        for pair in _report_pairs(path)
    ]
    if not found:
        raise InputError(f"{reports}: no report with a picture and findings in the split {split}")
    return found


def _studies(folder: Path, split: str) -> list[Pair]:
    numbers: dict[str, int] = {}
    pairs = []
    for record in read_records(folder / ANNOTATION, splits=[split]):
        study, report, picture = (record.values.get(name) for name in ("id", "report", "image"))
        if not (isinstance(study, str) and isinstance(report, str) and isinstance(picture, str)):
            raise InputError(f"{record.where}: expected id, report and image_path")
        number = numbers[study] = numbers.get(study, -1) + 1
        pairs.append(Pair(folder / "images" / picture, (" ".join(report.split()),), f"{study}#{number}"))
    return pairs


def _report_pairs(path: Path) -> list[Pair]:
    try:
        report = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise InputError(f"{path}: not readable as xml ({error})") from error
    said = {part.get("Label", "").upper(): " ".join((part.text or "").split()) for part in report.iter("AbstractText")}
    caption = next((said[section] for section in SECTIONS if said.get(section)), "")
    names = [picture.get("id", "") for picture in report.iter("parentImage")]
    images = path.parent.parent / "images"
    return [Pair(images / f"{name}.png", (caption,), name) for name in names if name and caption]


def _report_split(name: str) -> str:
    tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 10
    return {8: "dev", 9: "test"}.get(tenth, "train")


def read_narratives(path: str | Path, images: str | Path) -> list[Pair]:
    """Return pairs from a ``*_localized_narratives*.jsonl`` file, or from all of them in a folder.

    They are long spoken descriptions of the pictures of COCO, Flickr30k and others. ``images`` is where these lie:
    ``000000000042.jpg`` for COCO (2017's names), ``ID.jpg`` for the others. A picture that several people described has
    several captions. An id is the picture's, that of COCO and Flickr30k as a plain number.
    """
    path = require(Path(path), "Localized Narratives")
    files = sorted(path.glob("*localized_narratives*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no *localized_narratives*.jsonl in it")
    captions: dict[tuple[str, str], list[str]] = {}
    for file in files:
        for record in read_records(file):
            key, text = _narrative(record)
            captions.setdefault(key, []).append(text)
    return [Pair(Path(images) / name, tuple(texts), image) for (image, name), texts in captions.items()]


def _narrative(record: Record) -> tuple[tuple[str, str], str]:
    """Return the picture's id and file name, and what was said."""
    values = record.values
    try:
        data, image, text = str(values["dataset_id"]), str(values["image_id"]), " ".join(values["caption"].split())
    except (KeyError, AttributeError) as error:
        raise InputError(f"{record.where}: expected dataset_id, image_id and caption") from error
    if data.startswith("mscoco") and image.isdecimal():
        return (str(int(image)), f"{int(image):012d}.jpg"), text
    # the published files spell it Flick30k
    if data.lower().startswith(("flickr30k", "flick30k")) and image.isdecimal():
        image = str(int(image))  # padded with zeros here, and not in the names of the pictures
    return (image, f"{image}.jpg"), text
