"""Captions in parts against ``caption_files``."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recap.batch import caption_files, open_journal, provenance
from recap.batch.formats import Record, json_line
from recap.batch.parts import Captioning, CaptionParts, check_pack, split_inputs
from recap.captioner import ReCap
from recap.errors import InputError
from recap.files import write_json
from recap.packs.config import CONFIG
from recap.parallel.parts import find_parts
from recap.parallel.runners import LocalRunner


class Elsewhere(LocalRunner):
    """Does as if others did the work: what they need they have to load."""

    remote = True


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
    work = CaptionParts(Captioning(str(pack_folder), settings={"k": 5}), Elsewhere())
    done = caption_files(captioner, paths, marks, sinks=[there], failed=lambda *said: told.append(said), parts=work)
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
    work = CaptionParts(Captioning(str(pack_folder)), LocalRunner(), find_parts(place, size=7))
    expected = Lines()
    caption_files(captioner, [str(path) for path in pairs_folder.glob("*.png")], marks, sinks=[expected])
    with open_journal(tmp_path / "captions.jsonl", marks) as journal:
        first, again = Lines(), Lines()
        assert caption_files(captioner, [], marks, journal=journal, sinks=[first], parts=work).captioned == 18
        journal.forget(first.records[3].path)
        done = caption_files(captioner, [], marks, journal=journal, sinks=[again], parts=work)
        assert (done.captioned, done.known) == (1, 17)
    assert [json_line(record.as_dict()) for record in again.records] == [
        json_line(record.as_dict()) for record in first.records
    ]
    assert all(record.path.startswith(f"{place}/") for record in first.records)
    found = {Path(record.path).stem: (record.text, record.file.sha256) for record in first.records}
    assert found == {Path(record.path).stem: (record.text, record.file.sha256) for record in expected.records}


@pytest.mark.parametrize("runner", [LocalRunner(), Elsewhere()])
def test_pictures_that_a_table_names_are_captioned_once(
    pack_folder: Path, pairs_folder: Path, tmp_path: Path, runner: LocalRunner
):
    names = ["red0.png", "blue0.png", "green0.png"]
    for name in (*names, "other.png"):
        (tmp_path / name).write_bytes((pairs_folder / "red0.png").read_bytes() + name.encode())
    pyarrow.parquet.write_table(pyarrow.table({"image": names}), tmp_path / "pairs.parquet")
    captioner = ReCap.from_pretrained(pack_folder)
    marks = provenance(captioner, str(pack_folder))
    parts, other = find_parts(str(tmp_path / "pairs.parquet")), str(tmp_path / "other.png")
    work = CaptionParts(Captioning(str(pack_folder)), runner, parts)

    def run(*paths: str) -> tuple[int, int, list[str]]:
        told = Lines()
        with open_journal(tmp_path / "captions.jsonl", marks) as journal:
            done = caption_files(captioner, paths, marks, journal=journal, sinks=[told], parts=work)
        return done.captioned, done.known, [Path(record.path).name for record in told.records]

    assert run(other) == (4, 0, sorted([*names, "other.png"]))
    assert run() == (0, 3, sorted(names))
    assert len((tmp_path / "captions.jsonl").read_text().splitlines()) == 4
    os.utime(tmp_path / "red0.png", (1, 1))
    assert run() == (1, 2, sorted(names))


def test_an_archive_without_captions_is_captioned(pack_folder: Path, new_pictures: dict[str, Path], tmp_path: Path):
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        for path in new_pictures.values():
            archive.add(path, path.name)
    captioner = ReCap.from_pretrained(pack_folder)
    marks, told = provenance(captioner, str(pack_folder)), Lines()
    work = CaptionParts(Captioning(str(pack_folder)), LocalRunner(), split_inputs([f"{tmp_path}/*.tar"])[1])
    assert caption_files(captioner, [], marks, sinks=[told], parts=work).captioned == 6
    assert {Path(record.path).name: record.text for record in told.records} == {
        colour: captioner.caption(path).text for colour, path in new_pictures.items()
    }


def test_a_database_in_a_file_is_for_one_process(pack_folder: Path, tmp_path: Path):
    check_pack("builtin")
    check_pack(str(pack_folder))
    config = json.loads((pack_folder / CONFIG).read_text())
    for url, fits in (("milvus:./captions.db", False), ("milvus:http://host:19530?collection=a,b", True)):
        write_json(tmp_path / CONFIG, {**config, "datastore": url})
        if fits:
            check_pack(str(tmp_path))
        else:
            with pytest.raises(InputError, match="one process at a time"):
                check_pack(str(tmp_path))


def test_inputs_are_told_apart(same_pairs: Callable[[str], Path]):
    tar = str(same_pairs("tar"))
    here, elsewhere = split_inputs(["photos", "-", tar, f"file://{tar}"])
    assert here == ("photos", "-")
    assert [part.archive for part in elsewhere] == [tar, f"file://{tar}"]
