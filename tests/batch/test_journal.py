from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.batch import FailureList, FileFacts, Record, open_journal, provenance
from recap.captioner import ReCap
from recap.errors import DiskFullError, InputError
from recap.types import Pair

MADE_BY = {"recap": "1", "pack": "p", "encoder": "e", "language_model": "none", "settings": "abc"}


def record(path: str, content: int = 0, **facts: int) -> Record:
    caption = {"caption": f"a picture of {path}", "score": 0.5, "evidence": [], "candidates": []}
    return Record(path, caption, MADE_BY, FileFacts(f"{content:064x}", facts.get("size", 1), facts.get("modified", 2)))


def test_what_was_appended_is_there_again(tmp_path: Path):
    path = tmp_path / "j.jsonl"
    records = [record(f"{n}.jpg", n) for n in range(5)] + [record("ü\udcff.jpg", 9)]
    with open_journal(path, MADE_BY) as journal:
        for item in records:
            journal.append(item)
        journal.finish()
    with open_journal(path, MADE_BY) as journal:
        assert list(journal.records()) == records
        for item in records:
            place = journal.place(item.path)
            assert place == journal.place_of_content(item.file.sha256)
            assert journal.read(place) == item
        assert journal.place_of_content("f" * 64) is None


def test_a_file_is_untouched_until_it_changes(tmp_path: Path):
    picture = tmp_path / "a.jpg"
    picture.write_bytes(b"1234")
    status = picture.stat()
    with open_journal(tmp_path / "j.jsonl", MADE_BY) as journal:
        assert not journal.is_untouched(str(picture))
        known = record(str(picture))
        journal.append(replace(known, file=replace(known.file, size=4, modified=status.st_mtime_ns)))
        assert journal.is_untouched(str(picture))
        os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert not journal.is_untouched(str(picture))
        picture.write_bytes(b"12345")
        os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert not journal.is_untouched(str(picture))
        picture.unlink()
        assert not journal.is_untouched(str(picture))
        assert not journal.is_untouched("a\0null.jpg")


@settings(deadline=None)
@given(kept=st.integers(0, 5), torn=st.floats(0, 1, exclude_max=True))
def test_a_torn_last_line_costs_that_line_only(tmp_path_factory, kept: int, torn: float):
    path = tmp_path_factory.mktemp("torn") / "j.jsonl"
    records = [record(f"{n}.jpg", n) for n in range(6)]
    with open_journal(path, MADE_BY) as journal:
        for item in records:
            journal.append(item)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][: int(torn * len(lines[kept]))])
    with open_journal(path, MADE_BY) as journal:
        assert list(journal.records()) == records[:kept]
        journal.append(records[5])
    assert path.read_bytes() == b"".join([*lines[:kept], lines[5]])


def test_a_damaged_line_in_the_middle_is_left_out(tmp_path: Path):
    path = tmp_path / "j.jsonl"
    with open_journal(path, MADE_BY) as journal:
        for number in range(3):
            journal.append(record(f"{number}.jpg", number))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bytes(20) + b"\n" + lines[2])
    with open_journal(path, MADE_BY) as journal:
        assert [item.path for item in journal.records()] == ["0.jpg", "2.jpg"]
        journal.finish()
    assert path.read_bytes() == lines[0] + lines[2]


def test_finishing_takes_out_what_no_longer_holds(tmp_path: Path):
    path = tmp_path / "j.jsonl"
    changed = record("a.jpg", 2)
    with open_journal(path, MADE_BY) as journal:
        for item in (record("a.jpg", 1), record("b.jpg", 3), record("gone.jpg", 4), changed):
            journal.append(item)
        assert journal.read(journal.place_of_content(f"{1:064x}")).path == "a.jpg"
        journal.forget("gone.jpg")
        journal.finish()
        journal.append(record("c.jpg", 5))
        assert [item.path for item in journal.records()] == ["b.jpg", "a.jpg", "c.jpg"]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [item["path"] for item in written] == ["b.jpg", "a.jpg", "c.jpg"]
    assert written[1] == changed.as_dict()


def test_other_settings_are_noticed_and_named(tmp_path: Path):
    path = tmp_path / "j.jsonl"
    with open_journal(path, MADE_BY) as journal:
        journal.append(record("a.jpg"))
    with (
        pytest.raises(InputError, match=r"pack p, now q\).*--restart"),
        open_journal(path, {**MADE_BY, "pack": "q", "settings": "def"}),
    ):
        pass
    with pytest.raises(InputError, match="another -k"), open_journal(path, {**MADE_BY, "settings": "def"}):
        pass
    with open_journal(path, {**MADE_BY, "recap": "2"}) as journal:  # a newer version goes on
        assert len(journal) == 1
    with open_journal(path, {**MADE_BY, "settings": "def"}, restart=True) as journal:
        assert len(journal) == 0


@pytest.mark.parametrize("content", ["my thesis\n", '{"path": "a.jpg", "caption": "mine"}\n', "[1]\n", "3\n"])
def test_somebody_elses_file_is_left_alone(tmp_path: Path, content: str):
    path = tmp_path / "j.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match="not written by recap caption"), open_journal(path, MADE_BY):
        pass
    assert path.read_text() == content


def test_two_processes_cannot_have_it(tmp_path: Path):
    path = tmp_path / "j.jsonl"
    program = (
        "import sys; from pathlib import Path\n"
        "from recap.batch import open_journal; from recap.errors import InputError\n"
        "try:\n"
        "    with open_journal(Path(sys.argv[1]), {'settings': 'abc'}): pass\n"
        "except InputError as error: print(error)\n"
    )
    with open_journal(path, MADE_BY) as journal:
        journal.append(record("a.jpg"))
        command = [sys.executable, "-c", program, str(path)]
        assert "another recap is writing to it" in subprocess.run(command, capture_output=True, text=True).stdout
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match="no such folder"), open_journal(tmp_path / "no" / "j.jsonl", MADE_BY):
        pass


def test_failures_are_listed_as_they_come_and_each_run_begins_anew(tmp_path: Path):
    path = tmp_path / "errors.jsonl"
    for count in (2, 1):
        failures = FailureList(path)
        for number in range(count):
            failures.add(f"{number}\udcff.jpg", "empty")
            assert len(path.read_text().splitlines()) == number + 1
        failures.close()
    assert json.loads(path.read_text()) == {"path": "0\udcff.jpg", "reason": "empty"}
    FailureList(path).close()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"my own log\n", b'{"path": 1}\n', b"[]\n", b"\xff\xfe\n"])
def test_another_file_of_that_name_is_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "errors.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="--errors"):
        FailureList(path)
    assert path.read_bytes() == content


def test_everything_decisive_is_in_the_hash(
    captioner: ReCap, pairs: list[Pair], encoder_folder: Path, shared_encoder_folder: Path, tmp_path: Path
):
    marks = provenance(captioner, "mine")
    assert marks["pack"] == "mine"
    assert marks["language_model"] == "none"
    assert marks["encoder"] == f"onnx:{encoder_folder}"
    captioner.save_pretrained(tmp_path / "pack")
    assert provenance(ReCap.from_pretrained(tmp_path / "pack"), "mine") == marks
    name = f"onnx:{encoder_folder}"
    other_words = [Pair(pair.image, (*pair.captions[:2], "a wall"), pair.id) for pair in pairs]
    others = [
        captioner.configured(k=3),
        captioner.configured(seed=5),
        captioner.configured(method="procrustes"),
        ReCap.fit(pairs[:-1], encoder=name, method="ols"),
        ReCap.fit(other_words, encoder=name, method="ols"),
        ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}", method="ols"),
    ]
    hashes = [provenance(other, "mine")["settings"] for other in (captioner, *others)]
    hashes.append(provenance(captioner, "mine", min_confidence=0.5)["settings"])
    assert len(set(hashes)) == len(hashes)


def test_a_full_disk_names_the_file(tmp_path: Path):
    failures = FailureList(tmp_path / "errors.jsonl")
    with open_journal(tmp_path / "j.jsonl", MADE_BY) as journal, Path("/dev/full").open("r+b", buffering=0) as full:
        failures._file, journal._file, rest = full, full, journal._file
        with pytest.raises(DiskFullError, match=r"write \S+j\.jsonl"):
            journal.append(record("a.jpg"))
        with pytest.raises(DiskFullError, match=r"write \S+errors\.jsonl"):
            failures.add("a.jpg", "no picture")
        journal._file = rest
