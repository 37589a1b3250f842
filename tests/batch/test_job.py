from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recap.batch import Record
from recap.batch.job import CaptionJob
from recap.captioner import ReCap
from recap.errors import InputError


@pytest.fixture
def pictures(new_pictures: dict[str, Path], tmp_path: Path) -> list[str]:
    """A red and a blue wall, and a file that is no picture."""
    copies = [shutil.copy(new_pictures[name], tmp_path / f"{name}.png") for name in ("red", "blue")]
    (tmp_path / "broken.png").write_bytes(b"")
    return [*map(str, copies), str(tmp_path / "broken.png")]


def test_captions_go_everywhere_at_once_and_are_resumed(captioner: ReCap, pictures: list[str], tmp_path: Path):
    warnings: list[str] = []
    job = CaptionJob(out=tmp_path / "out.jsonl", sidecars=True, prefix="art: ", html=tmp_path / "page.html")
    first = job.run(captioner, "walls", pictures, warn=warnings.append)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["path"] for record in records] == pictures[:2]
    assert (tmp_path / "red.txt").read_text().strip() == f"art: {records[0]['caption']}"
    assert records[1]["caption"] in (tmp_path / "page.html").read_text()
    assert job.errors_file == tmp_path / "errors.jsonl"
    assert [json.loads(line)["path"] for line in job.errors_file.read_text().splitlines()] == pictures[2:]
    again = job.run(captioner, "walls", pictures, warn=warnings.append)
    assert [(done.captioned, done.known, done.failed) for done in (first, again)] == [(2, 0, 1), (0, 2, 1)]
    assert warnings == [], "the list beside the output has them"


def test_without_an_output_failures_are_warnings(captioner: ReCap, pictures: list[str]):
    warnings: list[str] = []
    job = CaptionJob()
    assert job.errors_file is None
    assert job.run(captioner, "walls", pictures[1:], warn=warnings.append).failed == 1
    assert [message.partition(": ")[0] for message in warnings] == pictures[2:]


class Interrupt:
    """A sink during which the user gives up."""

    def add(self, record: Record) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_an_interrupted_run_says_what_is_kept(captioner: ReCap, pictures: list[str], tmp_path: Path):
    warnings: list[str] = []
    job = CaptionJob(out=tmp_path / "out.jsonl")
    with pytest.raises(KeyboardInterrupt):
        job.run(captioner, "walls", pictures, printer=Interrupt(), warn=warnings.append)
    assert warnings == [f"1 captions are kept in {tmp_path / 'out.jsonl'}; the same command goes on from there"]
    assert job.run(captioner, "walls", pictures).known == 1


def test_a_minimum_needs_a_calibrated_pack(captioner: ReCap, pictures: list[str], tmp_path: Path):
    with pytest.raises(InputError, match="no calibration"):
        CaptionJob(out=tmp_path / "out.jsonl", min_confidence=0.5).run(captioner, "walls", pictures)
    assert not (tmp_path / "out.jsonl").exists()
