"""Captions in parts against ``caption_files``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recap.batch import caption_files, open_journal, provenance
from recap.captioner import ReCap
from recap.distributed.captioning import Captioning, CaptionInParts, split_inputs
from recap.distributed.parts import find_parts
from recap.distributed.runners import LocalRunner
from recap.outputs.record import Record, json_line


class Lines:
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.records.sort(key=lambda record: record.path)


def test_captions_are_those_of_one_machine(
    pack_folder: Path, pairs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(pairs_folder)
    paths = [*sorted(path.name for path in pairs_folder.glob("*.png")), "nothing.png"]
    captioner = ReCap.from_pretrained(pack_folder).configured(k=5)
    marks = provenance(captioner, str(pack_folder))
    here, there = Lines(), Lines()
    told: list[tuple[str, str]] = []
    caption_files(captioner, paths, marks, sinks=[here], failed=lambda *said: told.append(said))
    work = CaptionInParts(Captioning(str(pack_folder), settings={"k": 5}), LocalRunner())
    done = work(captioner, paths, marks, sinks=[there], failed=lambda *said: told.append(said))
    assert (done.files, done.captioned, done.failed) == (19, 18, 1)
    assert here.records == there.records
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["tar", "parquet", "folder"])
def test_pictures_elsewhere_are_captioned_once(
    pack_folder: Path, same_pairs: Callable[[str], Path], pairs_folder: Path, tmp_path: Path, kind: str
):
    place = f"file://{same_pairs(kind)}"
    captioner = ReCap.from_pretrained(pack_folder)
    marks = provenance(captioner, str(pack_folder))
    work = CaptionInParts(Captioning(str(pack_folder)), LocalRunner(), find_parts(place, size=7))
    expected = Lines()
    caption_files(captioner, [str(path) for path in pairs_folder.glob("*.png")], marks, sinks=[expected])
    with open_journal(tmp_path / "captions.jsonl", marks) as journal:
        first, again = Lines(), Lines()
        assert work(captioner, [], marks, journal=journal, sinks=[first]).captioned == 18
        journal.forget(first.records[3].path)
        done = work(captioner, [], marks, journal=journal, sinks=[again])
        assert (done.captioned, done.known) == (1, 17)
    assert [json_line(record.as_dict()) for record in again.records] == [
        json_line(record.as_dict()) for record in first.records
    ]
    assert all(record.path.startswith(f"{place}/") for record in first.records)
    found = {Path(record.path).stem: (record.text, record.file.sha256) for record in first.records}
    assert found == {Path(record.path).stem: (record.text, record.file.sha256) for record in expected.records}


def test_inputs_are_told_apart(same_pairs: Callable[[str], Path]):
    tar = str(same_pairs("tar"))
    here, elsewhere = split_inputs(["photos", "-", tar, f"file://{tar}"])
    assert here == ("photos", "-")
    assert [part.archive for part in elsewhere] == [tar, f"file://{tar}"]
