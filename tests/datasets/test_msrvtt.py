import json
from pathlib import Path

import pytest

from recap.datasets.msrvtt import read_msrvtt
from recap.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    splits = {"video0": "train", "video1": "validate", "video2": "train"}
    videos = [{"video_id": name, "split": split, "category": 9, "id": 0} for name, split in splits.items()]
    sentences = [
        {"video_id": name, "caption": f"{text} {name}", "sen_id": 0} for name in splits for text in ("a", "the  ")
    ]
    (tmp_path / "train_val_videodatainfo.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))
    for name, count in (("video0", 8), ("video1", 4), ("video2", 2)):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "frames" / name / f"{number:04d}.jpg").touch()
    return tmp_path


def test_four_frames_evenly_apart_each_with_all_captions(folder: Path) -> None:
    pairs = read_msrvtt(folder, "train")
    assert [pair.id for pair in pairs] == [f"{video}#{n}" for video in ("video0", "video2") for n in range(4)]
    assert [Path(pair.image).stem for pair in pairs[:4]] == ["0001", "0003", "0005", "0007"]
    assert [Path(pair.image).stem for pair in pairs[4:]] == ["0000", "0000", "0001", "0001"]
    assert {pair.captions for pair in pairs[:4]} == {("a video0", "the video0")}


def test_the_official_splits_are_kept_apart(folder: Path) -> None:
    assert {pair.id.partition("#")[0] for pair in read_msrvtt(folder, "dev")} == {"video1"}
    with pytest.raises(InputError, match=r"test_videodatainfo.json is missing"):
        read_msrvtt(folder, "test")


def test_a_video_without_frames_is_named(folder: Path) -> None:
    for frame in (folder / "frames" / "video1").iterdir():
        frame.unlink()
    with pytest.raises(InputError, match="video1: no frames; make them with ffmpeg"):
        read_msrvtt(folder, "dev")
