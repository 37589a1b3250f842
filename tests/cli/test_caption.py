"""``recap caption`` on folders: formats, resuming, kills, and files that are no pictures."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from PIL import Image, PngImagePlugin

from recap.batch.journal import open_journal
from recap.batch.metadata import read_description
from recap.batch.metadata.standards import with_xmp_description
from recap.captioner import ReCap
from recap.cli.main import cli
from recap.encoders.images import register_heif
from recap.errors import RecapError
from recap.types import Pair


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "recap.cli.main", "caption", *map(str, arguments)]


def recap(*arguments: object, code: int = 0) -> str:
    """Run the command in a process of its own, and return what it says on standard error."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def here(*arguments: object, code: int = 0) -> str:
    """Run the command in this process, which is faster, and return all it says."""
    done = CliRunner().invoke(cli, ["caption", *map(str, arguments)])
    if isinstance(done.exception, RecapError):
        assert code == 2
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(autouse=True)
def _limit_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what the command changes for its whole process."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


@pytest.fixture(scope="module")
def pack(pairs: list[Pair], encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch") / "pack"
    fitted = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
    fitted.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 noisy pictures, large enough for a run to last a while."""
    folder = tmp_path_factory.mktemp("pictures")
    draws = np.random.default_rng(0)
    for number in range(300):
        Image.fromarray(draws.integers(0, 256, (200, 200, 3), np.uint8)).save(folder / f"{number:04d}.bmp")
    return folder


def test_out_is_resumed_and_other_settings_are_refused(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    out, folder = tmp_path / "captions.jsonl", new_pictures["red"].parent
    assert "6 captioned" in recap("--pack", pack, folder, "--out", out)
    records = {record["path"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert all(colour in records[str(path)]["caption"] for colour, path in new_pictures.items())
    record = records[str(new_pictures["red"])]
    assert record["generated_by"]["pack"] == str(pack)
    assert len(record["evidence"]) == 13
    before = out.read_bytes()
    assert "0 captioned, 6 were there already" in here("--pack", pack, folder, "--out", out)
    assert out.read_bytes() == before
    assert "other settings" in here("--pack", pack, folder, "--out", out, "-k", 3, code=2)
    assert out.read_bytes() == before
    assert "6 captioned" in here("--pack", pack, folder, "--out", out, "-k", 3, "--restart")
    assert len(json.loads(out.read_text().splitlines()[0])["evidence"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".captions.jsonl.lock", "captions.jsonl"]


def test_formats_sidecars_and_errors(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "pictures"
    shutil.copytree(new_pictures["red"].parent, folder)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no jpeg")
    (folder / "red.txt").write_text("by hand\n")
    out = tmp_path / "captions.parquet"
    options = ("--sidecars", "--existing", "append", "--prefix", "art: ")
    for again in ("6 captioned", "6 were there already"):
        done = here("--pack", pack, folder, "--out", out, *options, code=1)
        assert again in done
        assert f"1 of 7 pictures could not be read: see {tmp_path / 'errors.jsonl'}" in done
        table = pyarrow.parquet.read_table(out).to_pylist()
        assert sorted(row["path"] for row in table) == sorted(str(path) for path in folder.glob("*.png"))
        assert (folder / "red.txt").read_text().splitlines() == [
            "by hand",
            next(f"art: {row['caption']}" for row in table if row["path"].endswith("red.png")),
        ]
        assert len(list(folder.glob("*.txt"))) == 6
        (problem,) = map(json.loads, (tmp_path / "errors.jsonl").read_text().splitlines())
        assert problem["path"] == str(folder / "broken.jpg")
        assert "broken.jpg" not in problem["reason"]
    (folder / "broken.jpg").unlink()
    here("--pack", pack, folder, "--out", out, *options)
    assert not (tmp_path / "errors.jsonl").exists()


def test_sidecars_alone(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    picture = Path(shutil.copy(new_pictures["red"], tmp_path))
    done = here("--pack", pack, picture, "--sidecars")
    assert done == f"{picture}\t{(tmp_path / 'red.txt').read_text()}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.jsonl", "--json"], "everything is in the file"),
        (["--restart"], "go with --out"),
        (["--prefix", "x"], "go with --sidecars"),
        (["--out", "x.docx"], "stands for no format"),
        (["--out", "OURS.csv"], "is there, but no OURS.csv.journal"),
        (["--out", "nowhere/x.csv"], "no such folder"),
        (["--out", "OURS.csv", "--format", "jsonl"], "not written by recap"),
        (["--out", "a.json", "b/red.jpg"], "same image id 'red'"),
        (["--sidecars-keep-suffix"], "goes with --sidecars or --xmp"),
    ],
)
def test_what_does_not_go_together(pack: Path, tmp_path: Path, arguments: list[str], message: str, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("OURS.csv").write_text("by,hand\n")
    Path("red.png").touch()
    assert message in here("--pack", pack, "red.png", *arguments, code=2)
    assert Path("OURS.csv").read_text() == "by,hand\n"


def wait_for_lines(out: Path, process: subprocess.Popen[bytes], more_than: int) -> None:
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > more_than):
        time.sleep(0.002)


def test_kills_lose_and_double_nothing(pack: Path, pictures: Path, tmp_path: Path):
    calm, out = tmp_path / "calm.jsonl", tmp_path / "out.jsonl"
    here("--pack", pack, pictures, "--out", calm)
    moments = random.Random(1)
    killed = 0
    for stop in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        before = out.read_bytes().count(b"\n") if out.exists() else 0
        process = subprocess.Popen(command("--pack", pack, pictures, "--out", out), stderr=subprocess.PIPE)
        wait_for_lines(out, process, before + moments.randint(0, 40))
        process.send_signal(stop)
        _, message = process.communicate()
        killed += process.returncode != 0
        assert out.read_bytes().count(b"\n") > before, message.decode()
        if stop == signal.SIGINT and process.returncode:
            assert process.returncode == 130
            assert b"the same command goes on" in message
            assert b"Traceback" not in message
    assert killed
    here("--pack", pack, pictures, "--out", out)
    assert sorted(out.read_bytes().splitlines()) == sorted(calm.read_bytes().splitlines())
    assert len(out.read_bytes().splitlines()) == 300


def test_two_at_once(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    out, folder = tmp_path / "out.csv", new_pictures["red"].parent
    with open_journal(tmp_path / "out.csv.journal", {}):
        assert "another recap is writing" in recap("--pack", pack, folder, "--out", out, code=2)
        assert not out.exists()
    assert "6 captioned" in here("--pack", pack, folder, "--out", out)
    assert len(out.read_text().splitlines()) == 7


def png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def mutated(folder: Path, count: int) -> None:
    """Write files that were pictures once, and some that never were."""
    draws = random.Random(0)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    kinds = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
    contents = {kind: io.BytesIO() for kind in kinds}
    for kind, buffer in contents.items():
        noise.save(buffer, kind)
    for number in range(count):
        content = bytearray(contents[draws.choice(kinds)].getvalue())
        if number % 3 == 0:
            del content[draws.randrange(len(content)) :]
        elif number % 3 == 1:
            for _ in range(draws.randint(1, 30)):
                content[draws.randrange(len(content))] = draws.randrange(256)
        (folder / f"{number}.{draws.choice(['png', 'jpg', 'gif', 'tif', 'webp'])}").write_bytes(content)
    (folder / "huge.png").write_bytes(png(30_000, 30_000, bytes(90_001 * 20)))
    (folder / "bomb.png").write_bytes(png(9_000, 9_000, bytes(27_001 * 9_000)))
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no picture")


def test_mutated_files_end_in_captions_or_listed_errors(pack: Path, tmp_path: Path):
    folder, out = tmp_path / "fuzzed", tmp_path / "captions.jsonl"
    folder.mkdir()
    mutated(folder, 60)
    here("--pack", pack, folder, "--out", out, "--workers", 1, code=1)
    captions = [json.loads(line)["path"] for line in out.read_text().splitlines()]
    errors = {e["path"]: e["reason"] for e in map(json.loads, (tmp_path / "errors.jsonl").read_text().splitlines())}
    assert sorted([*captions, *errors]) == sorted(map(str, folder.iterdir()))
    assert "over the limit" in errors[str(folder / "huge.png")]
    assert len(captions) >= 20  # a third is whole, only under a wrong name
    assert len(errors) >= 15


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_limit_the_threads_of_every_stage(
    pack: Path, new_pictures: dict[str, Path], workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # what the command says comes first, and is put back afterwards
    started: set[str] = set()
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        started.add(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    here(new_pictures["red"].parent, "--pack", pack, "--workers", workers, "--lm", "writer")
    numbers = {name.rpartition("_")[2] for name in started if name.rpartition("_")[2].isdigit()}
    assert numbers == {str(number) for number in range(workers)}
    assert ("recap-encode_1" in started) == (workers == 2)


def test_a_page_shows_what_was_captioned_also_by_an_earlier_run(
    pack: Path, tmp_path: Path, new_pictures: dict[str, Path]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(new_pictures["red"], folder / "one.png")
    here(folder, "--pack", pack, "--out", tmp_path / "out.jsonl")
    shutil.copy(new_pictures["blue"], folder / "two.png")
    (folder / "broken.png").write_bytes(b"no picture")
    here(folder, "--pack", pack, "--out", tmp_path / "out.jsonl", "--html", tmp_path / "page.html", code=1)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/") == 2
    for name in ("one.png", "two.png", "broken.png"):
        assert name in page


def test_captions_go_into_the_pictures_once(pack: Path, tmp_path: Path, new_pictures: dict[str, Path]) -> None:
    picture = tmp_path / "red.png"
    shutil.copy(new_pictures["red"], picture)
    pixels = np.asarray(Image.open(picture))
    said = here(picture, "--pack", pack, "--metadata", "--keep-originals")
    described = read_description(picture)
    assert described is not None
    assert described.machine_written
    assert described.text in said
    np.testing.assert_array_equal(np.asarray(Image.open(picture)), pixels)
    assert len(list(tmp_path.iterdir())) == 2
    here(picture, "--pack", pack, "--keep-originals", code=2)


def test_captions_go_into_xmp_files_beside_the_pictures(pack: Path, tmp_path: Path, new_pictures: dict[str, Path]):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("red.png", "blue.png"):
        shutil.copy(new_pictures[name.removesuffix(".png")], folder)
    shutil.copy(folder / "red.png", folder / "red.jpg")
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", with_xmp_description(None, "my wall", "Ada").decode())
    Image.open(new_pictures["green"]).save(folder / "green.png", pnginfo=info)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = here(folder, "--pack", pack, "--xmp", code=1)
    assert "red.jpg has" in said
    assert "1 pictures were described by a person" in said
    assert {path.name for path in folder.iterdir()} == {*before, "red.xmp", "blue.xmp"}
    described = read_description(folder / "blue.xmp")
    assert described is not None
    assert described.machine_written
    assert f"blue.png\t{described.text}\n" in said
    again = {path: path.stat().st_mtime_ns for path in folder.glob("*.xmp")}
    here(folder, "--pack", pack, "--xmp", "--sidecars-keep-suffix")
    assert {path.name for path in folder.glob("*.xmp")} == {
        *("red.xmp", "blue.xmp"),
        *("red.jpg.xmp", "red.png.xmp", "blue.png.xmp"),
    }
    assert all(path.stat().st_mtime_ns == time for path, time in again.items())
    assert all((folder / name).read_bytes() == content for name, content in before.items())


def test_what_a_folder_holds_and_is_not_read_is_counted_with_what_to_do(
    pack: Path, tmp_path: Path, new_pictures: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(new_pictures["red"], folder)
    for name in ("a.NEF", "b.cr2", "deep/c.nef", ".hidden.nef"):
        (folder / name).write_bytes(b"raw")
    said = here(folder, "--pack", pack)
    assert "3 files left out: raw data of a camera is not read; develop it first" in said
    assert "1 file left out: raw" in here(folder / "deep", "--pack", pack, code=2), "where there is nothing else, too"
    for number in range(3):
        (folder / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    for number in range(2):
        (folder / f"{number}.jxl").write_bytes(b"\xff\x0a" + bytes(100))
    register_heif.cache_clear()
    said = here(folder, "--pack", pack, "--out", tmp_path / "out.jsonl", code=1)
    register_heif.cache_clear()
    assert "5 of 6 pictures could not be read: see" in said
    assert "3 of them: HEIC needs an optional part: pip install" in said
    assert "2 of them: JPEG XL is not read; convert it first" in said


def test_a_video_is_captioned_by_its_frames(pack: Path, tmp_path: Path, new_pictures: dict[str, Path]) -> None:
    av = pytest.importorskip("av")
    clip = tmp_path / "clip.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 64
        frame = av.VideoFrame.from_image(Image.open(new_pictures["green"]).convert("RGB").resize((64, 64)))
        for _ in range(10):
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    said = here(tmp_path, "--pack", pack, "--frames", 2)
    assert said.startswith(str(clip))
    assert "green" in said


def test_pictures_by_address(tmp_path: Path, pack_folder: Path, new_pictures: dict[str, Path], web: tuple[Path, str]):
    folder, address = web
    for colour, path in new_pictures.items():
        shutil.copy(path, folder / f"{colour}.png")
    (folder / "page.html").write_text("<p>no picture</p>")
    urls = [f"{address}/{colour}.png" for colour in new_pictures]
    options = ("--pack", pack_folder, "--out", tmp_path / "out.jsonl")
    said = here(*urls, f"{address}/page.html", f"{address}/missing.png", new_pictures["red"], *options, code=1)
    assert "7 captioned" in said
    records = {record["path"]: record["caption"] for record in map(json.loads, (tmp_path / "out.jsonl").open())}
    assert all(colour in records[f"{address}/{colour}.png"] for colour in new_pictures)
    errors = {line["path"]: line["reason"] for line in map(json.loads, (tmp_path / "errors.jsonl").open())}
    assert errors[f"{address}/page.html"] == "not a picture but text/html"
    assert errors[f"{address}/missing.png"] == "the answer was 404"
    for path in folder.iterdir():
        path.unlink()
    assert "0 captioned, 6 were there already" in here(*urls, *options)


def test_addresses_on_standard_input(pack_folder: Path, new_pictures: dict[str, Path], web: tuple[Path, str]):
    folder, address = web
    shutil.copy(new_pictures["red"], folder / "red.png")
    given = f"{address}/red.png\n{new_pictures['blue']}\n"
    done = CliRunner().invoke(cli, ["caption", "-", "--pack", str(pack_folder)], input=given)
    assert done.exit_code == 0
    assert sorted(line.partition("\t")[0] for line in done.stdout.splitlines()) == sorted(given.splitlines())


def test_a_sidecar_that_two_would_share_is_an_error_of_one(
    tmp_path: Path, pack_folder: Path, new_pictures: dict[str, Path]
):
    folder, out = tmp_path / "photos", tmp_path / "out.jsonl"
    folder.mkdir()
    for name in ("a.png", "a.jpg", "b.png"):
        shutil.copy(new_pictures["red"], folder / name)
    said = here(folder, "--pack", pack_folder, "--sidecars", "--out", out, code=1)
    assert "1 of 3 pictures" in said
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.txt", "b.txt"]
    (problem,) = map(json.loads, (tmp_path / "errors.jsonl").read_text().splitlines())
    assert problem["path"] == str(folder / "a.png")
    assert "--sidecars-keep-suffix" in problem["reason"]
    here(folder, "--pack", pack_folder, "--sidecars", "--sidecars-keep-suffix")
    assert {"a.png.txt", "a.jpg.txt", "b.png.txt"} < {path.name for path in folder.glob("*.txt")}


def test_a_folder_that_cannot_be_read_is_reported(
    tmp_path: Path, pack_folder: Path, new_pictures: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(new_pictures["red"], tmp_path / "red.png")
    locked = tmp_path / "locked"
    locked.mkdir()
    listed = os.scandir

    def scandir(path: object = ".") -> object:
        if os.fspath(path) == str(locked):  # type: ignore[call-overload]
            raise PermissionError(13, "Permission denied", str(locked))
        return listed(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    here(tmp_path, "--pack", pack_folder, "--out", tmp_path / "out.jsonl", code=1)
    (problem,) = map(json.loads, (tmp_path / "errors.jsonl").read_text().splitlines())
    assert problem == {"path": str(locked), "reason": "a folder that cannot be read (Permission denied)"}
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_a_line_feed_in_a_name_does_not_break_a_line(tmp_path: Path, pack_folder: Path, new_pictures: dict[str, Path]):
    shutil.copy(new_pictures["red"], tmp_path / "a\nb\tc.png")
    (tmp_path / "d\ne.png").write_text("no picture")
    done = CliRunner().invoke(cli, ["caption", "--pack", str(pack_folder), str(tmp_path)])
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{tmp_path}/a b c.png\t")
    assert line.count("\t") == 1
    assert all(line.startswith("recap: ") for line in done.stderr.splitlines())
