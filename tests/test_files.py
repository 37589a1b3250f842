from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recap import files
from recap.errors import DiskFullError, InputError
from recap.files import Steps, atomic_folder, atomic_write, exclusive, write_json, writing_to


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_only_at_the_end(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"new", "not bytes"])
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_the_file_has_the_usual_permissions_and_links_stay_links(tmp_path):
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_full_disk_has_its_own_error(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=r"a\.bin"), atomic_write(tmp_path / "a.bin") as file:
        file.write(b"x")
    assert names(tmp_path) == []


def test_a_full_disk_names_what_the_caller_knows(tmp_path):
    with (
        pytest.raises(DiskFullError, match=r"write \S+/pack; free"),
        atomic_folder(tmp_path / "pack") as folder,
        atomic_write(folder / "a.bin"),
        Path("/dev/full").open("wb", buffering=0) as file,
    ):
        file.write(b"x")
    assert names(tmp_path) == []
    with pytest.raises(OSError, match=r"Bad file descriptor: .*a\.bin"), writing_to(tmp_path / "a.bin"):
        os.fsync(1_000_000)
    with pytest.raises(FileNotFoundError, match=r"gone"), writing_to(tmp_path / "a.bin"):
        (tmp_path / "gone").open()


def test_json_is_readable_and_refuses_nan(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Größe", "n": [1, 2]})
    assert "Größe" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"name": "Größe", "n": [1, 2]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_swapped_in_whole(tmp_path, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr("recap.files._exchange", lambda one, other: False)
    target = tmp_path / "pack"
    for content in ("first", "second"):
        with atomic_folder(target) as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / content).write_text(content)
        assert names(target / "inner") == [content]
        assert names(tmp_path) == ["pack"]
    with pytest.raises(TypeError), atomic_folder(target) as folder:
        (folder / "half").write_bytes("not bytes")
    assert names(target) == ["inner"]
    assert names(tmp_path) == ["pack"]


def test_one_process_at_a_time(tmp_path):
    counter, lock = tmp_path / "counter", tmp_path / "lock"
    counter.write_text("0")
    code = (
        "import sys; from pathlib import Path; from recap.files import exclusive\n"
        "for _ in range(100):\n"
        "    with exclusive(sys.argv[2]):\n"
        "        p = Path(sys.argv[1]); n = int(p.read_text()); p.write_text(str(n + 1))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, counter, lock]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert counter.read_text() == "300"
    with exclusive(lock):
        pass


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


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    list(files.progress_bar(range(5), progress=True, desc="quick"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(files, "LOG_SECONDS", 0.01)
    for _ in files.progress_bar(range(4), progress=True, desc="pairs", unit="image"):
        time.sleep(0.02)
    list(files.progress_bar(range(4), progress=False, desc="hidden", mininterval=0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("recap: pairs: ") and " of 4 after " in line for line in lines)
    bar = files.progress_bar(range(4), progress=True)
    for number in bar:
        bar.set_description(f"step {number}")
        time.sleep(0.02)
    assert ": :" not in (said := capsys.readouterr().err)
    assert "recap: step 1: " in said
