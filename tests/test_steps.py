from __future__ import annotations

import json
from pathlib import Path

import pytest

from recap.errors import InputError
from recap.steps import Steps


def test_a_step_is_done_once_even_by_another_run(tmp_path: Path):
    done: list[str] = []

    def work() -> dict[str, float]:
        done.append("work")
        return {"a": 0.1 + 0.2}

    first = Steps.opened(tmp_path / "state", {"seed": 1, "ks": (1, 2)}).done("one", work)
    second = Steps.opened(tmp_path / "state", {"seed": 1, "ks": (1, 2)}).done("one", work)
    assert first == second == {"a": 0.1 + 0.2}
    assert done == ["work"]


def test_a_step_that_failed_leaves_nothing(tmp_path: Path):
    steps = Steps.opened(tmp_path, {})
    with pytest.raises(ZeroDivisionError):
        steps.done("one", lambda: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert steps.done("one", lambda: [1]) == [1]


def test_steps_of_another_run_are_refused(tmp_path: Path):
    Steps.opened(tmp_path, {"seed": 1, "metric": "spice"})
    with pytest.raises(InputError, match="steps of a run with other metric, seed"):
        Steps.opened(tmp_path, {"seed": 2, "metric": "aclip-s"})
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 1


@pytest.mark.parametrize("content", [b"", b'{"score": 0.1', b"\xff\xfe"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, content: bytes):
    steps = Steps.opened(tmp_path, {"seed": 1})
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(InputError, match=r"one\.json cannot be read .*: delete it, and this step is done again"):
        steps.done("one", lambda: 1)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.json cannot be read .*: delete the folder"):
        Steps.opened(tmp_path, {"seed": 1})
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(InputError, match=r"run\.json describes no run: delete the folder"):
        Steps.opened(tmp_path, {"seed": 1})


def test_without_a_folder_nothing_is_kept(tmp_path: Path):
    steps = Steps.opened(None, {"seed": 1})
    assert [steps.done("one", lambda: 1), steps.done("one", lambda: 2)] == [1, 2]
    assert not list(tmp_path.iterdir())
