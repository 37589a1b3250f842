"""MSR-VTT: videos with twenty captions each, seen as four frames; every frame is paired with all captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recap.datasets.images import find_images
from recap.datasets.records import parse_json, read_text, require, require_split
from recap.errors import InputError
from recap.types import Pair

FRAMES = 4
_DATA = "MSR-VTT"
_FILES = {
    "train": "train_val_videodatainfo.json",
    "dev": "train_val_videodatainfo.json",
    "test": "test_videodatainfo.json",
}
_SPLITS = {"train": "train", "dev": "validate", "test": "test"}


def read_msrvtt(folder: str | Path, split: str) -> list[Pair]:
    """Return pairs of frames in the official split: 6,513, 497 and 2,990 videos.

    ``folder`` holds ``train_val_videodatainfo.json``, ``test_videodatainfo.json`` and ``frames/VIDEO/``, the pictures
    of a video in the order of their names; four of them, evenly apart, are taken. Make them, for example, with
    ``ffmpeg -i VIDEO.mp4 -vf fps=1 frames/VIDEO/%04d.jpg``. An id is ``VIDEO#N``.
    """
    require_split(split, _DATA)
    path = require(Path(folder) / _FILES[split], _DATA)
    content = parse_json(read_text(path), str(path))
    try:
        videos = [video["video_id"] for video in content["videos"] if video["split"] == _SPLITS[split]]
        captions: dict[str, list[str]] = {video: [] for video in videos}
        for sentence in content["sentences"]:
            if sentence["video_id"] in captions:
                captions[sentence["video_id"]].append(" ".join(sentence["caption"].split()))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not an annotation file of {_DATA} ({type(error).__name__}: {error})") from error
    return [
        Pair(frame, tuple(captions[video]), f"{video}#{number}")
        for video in videos
        for number, frame in enumerate(_frames(Path(folder) / "frames" / video))
    ]


def _frames(folder: Path) -> list[Path]:
    """Return four pictures of a video: the middles of its four quarters."""
    found = list(find_images([require(folder, _DATA)]))
    if not found:
        raise InputError(f"{folder}: no frames; make them with ffmpeg -i VIDEO.mp4 -vf fps=1 {folder}/%04d.jpg")
    places = (np.arange(FRAMES) + 0.5) / FRAMES * len(found)
    return [found[place] for place in places.astype(int)]
