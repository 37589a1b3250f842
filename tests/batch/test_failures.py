from __future__ import annotations

import json
from pathlib import Path

import pytest

from recap.batch import FailureList
from recap.errors import InputError


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
