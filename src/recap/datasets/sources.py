"""Where the data sets of the paper come from, for the message that says a file is missing."""

from __future__ import annotations

from pathlib import Path

from recap.errors import InputError

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
