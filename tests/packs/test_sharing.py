"""Packs up to a hub and down again: a small server speaks the hub's side of the HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow
import pytest

from recap import ReCap
from recap.confidence import FEATURES, Calibration
from recap.datastore import DiskStore, base
from recap.datastore import store as stores
from recap.errors import EncoderMismatchError, InputError, RecapWarning
from recap.packs import sharing
from recap.packs.captions import changing, move
from recap.packs.config import About
from recap.packs.sharing import merge, merge_packs
from recap.packs.verify import verify
from recap.types import Pair

Fit = Callable[..., ReCap]


@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_joined_packs_equal_one_fit_to_all(fit: Fit, pairs: list[Pair], tmp_path: Path, method: str):
    parts = [fit(part, method=method, keep_vectors=True) for part in (pairs[:6], pairs[6:11], pairs[11:])]
    parts[0].about = About(licence="MIT", author="A", numbers={"cider_d": 1.0}, data={"pictures": 6})
    parts[1].about = About(licence="CC0-1.0", author="A", data={"pictures": 5})
    parts[2].about = About()
    merged = merge(parts)
    whole = fit(pairs, method=method)
    np.testing.assert_allclose(merged.alignment.W_, whole.alignment.W_, atol=1e-6)
    assert [row.text for row in merged.datastore] == [row.text for row in whole.datastore]
    assert merged.about == About(licence="MIT; CC0-1.0", author="A", data={"pictures": 11})
    merged.save_pretrained(tmp_path / "pack")
    assert not [check.problem for check in verify(tmp_path / "pack") if check.problem]
    merged.forget([pairs[7].id])
    rest = fit([*pairs[:7], *pairs[8:]], method=method)
    np.testing.assert_allclose(merged.alignment.W_, rest.alignment.W_, atol=1e-6)


def test_joining_shows_how_far_it_is(
    fit: Fit, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("recap.files.LOG_SECONDS", 0.0)
    merge([fit(pairs[:9]), fit(pairs[9:])], progress=True)
    assert capsys.readouterr().err.count("recap: captions: 1 of 1 after ") == 2


def test_pictures_in_both_are_told(fit: Fit, pairs: list[Pair]):
    with pytest.warns(RecapWarning, match="3 pictures are in more than one"):
        merge([fit(pairs[:9]), fit(pairs[6:])])


def test_the_confidence_of_a_pack_with_nearly_all_pairs_is_kept(
    fit: Fit, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
):
    parts = [fit(pairs[:12]), fit(pairs[12:])]
    parts[0].calibration = Calibration(0.0, (1.0,) * len(FEATURES), parts[0].settings.method, 20, "people")
    monkeypatch.setattr(sharing, "NEARLY_ALL", parts[0].statistics.pairs / sum(one.statistics.pairs for one in parts))
    assert merge(parts).calibration == parts[0].calibration
    with pytest.warns(RecapWarning, match="recap pack calibrate"):
        assert merge(parts, method="ridge").calibration is None, "by another map"
    with pytest.warns(RecapWarning, match="recap pack calibrate"):
        assert merge(parts[::-1]).calibration is None, "with another pack before it"


def test_a_calibration_of_one_pack_is_dropped_and_told(fit: Fit, pairs: list[Pair]):
    parts = [fit(pairs[:9]), fit(pairs[9:])]
    parts[1].calibration = Calibration(0.0, (1.0,) * len(FEATURES), "procrustes", 20, "people")
    with pytest.warns(RecapWarning, match="recap pack calibrate"):
        assert merge(parts).calibration is None


def test_what_cannot_be_joined(fit: Fit, pairs: list[Pair], shared_encoder_folder: Path, make_world, tmp_path: Path):
    with pytest.raises(InputError, match="at least two"):
        merge([fit(pairs)])
    other = ReCap.fit(pairs, encoder=f"onnx:{make_world(tmp_path, ['a red wall'])}", language_model=None)
    with pytest.raises(EncoderMismatchError):
        merge([fit(pairs), other])
    shared = ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}", language_model=None)
    with pytest.raises(EncoderMismatchError):
        merge([fit(pairs), shared])


def test_packs_on_disk_are_joined_in_a_stream(fit: Fit, pairs: list[Pair], tmp_path: Path, monkeypatch):
    parts = [fit(part, keep_vectors=True) for part in (pairs[:6], pairs[6:])]
    whole, long, count = merge(parts), "words " * 400, 3000
    for number, part in enumerate(parts):
        part.save_pretrained(tmp_path / str(number))
        move(tmp_path / str(number), "disk")
        with changing(tmp_path / str(number)) as store:
            texts, rng = [f"{long}{i}" for i in range(count)], np.random.default_rng(number)
            store.add(texts, rng.standard_normal((count, store.dimension)), source="long")
            store.remove(store.ids[:1])
    size = 2 * count * len(long)
    monkeypatch.setattr(stores, "SPILL_BYTES", 100_000)
    monkeypatch.setattr(base, "BATCH", 200)
    before = pyarrow.total_allocated_bytes()
    joined = merge_packs([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "merged")
    assert pyarrow.total_allocated_bytes() - before < size / 4
    del joined
    merged = ReCap.from_pretrained(tmp_path / "merged")
    assert isinstance(merged.datastore, DiskStore)
    assert len(merged.datastore) == len(whole.datastore) + 2 * count - 2
    np.testing.assert_allclose(merged.alignment.W_, whole.alignment.W_, atol=1e-6)
    last = [row.text for row in merged.datastore.rows(merged.pictures.at([17])[0].caption_ids)]
    assert last == list(pairs[-1].captions)
    assert not [check.problem for check in verify(tmp_path / "merged") if check.problem]
    assert not list(tmp_path.glob(".*.captions"))


COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository; files come inside the commit, as the hub allows for small ones."""

    files: dict[str, bytes]
    created: list[dict[str, object]]
    messages: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            self.answer({"url": f"http://{self.headers['Host']}/ada/walls"})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.messages.append(line["value"]["summary"])
                elif line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.files[line["value"]["path"]]
            address = f"http://{self.headers['Host']}/ada/walls/commit/{COMMIT}"
            self.answer({"commitUrl": address, "commitOid": COMMIT, "success": True})
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if re.fullmatch(r"/api/models/ada/walls(/revision/\w+)?", path):
            siblings = [{"rfilename": name} for name in sorted(self.files)]
            self.answer({"id": "ada/walls", "sha": COMMIT, "siblings": siblings})
        elif path.startswith("/api/models/ada/walls/tree/"):
            self.answer(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in sorted(self.files.items())
                ]
            )
        elif match := re.fullmatch(r"/ada/walls/resolve/\w+/(.+)", path):
            content = self.files.get(match[1])
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        else:
            self.send_error(404)

    def answer(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    handler = type("OneHub", (Hub,), {"files": {}, "created": [], "messages": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join()


def recap(address: str, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return python(address, home, "-m", "recap.cli.main", "pack", *arguments)


def python(address: str, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own: the hub library reads its environment when it is imported."""
    hidden = ("HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_TOKEN": "hf_none", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_pack_goes_up_and_comes_down_the_same(
    hub: tuple[str, type[Hub]], folder: Path, tmp_path: Path, new_pictures: dict[str, Path]
):
    address, server = hub
    server.files["datastore/segment-00099.parquet"] = b"of an older pack"
    server.files["photo.jpg"] = b"the author's"
    up = recap(address, tmp_path / "home", "push", folder, "ada/walls", "--private")
    assert up.returncode == 0, up.stderr
    assert up.stdout.strip() == f"{address}/ada/walls/commit/{COMMIT}"
    assert "names no licence" in up.stderr
    asked = server.created[0]
    assert asked.get("visibility") == "private" or asked.get("private") is True, "as older and newer clients say it"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(server.files) == there - {"datastore/.lock"} | {"photo.jpg"}
    down = recap(address, tmp_path / "home", "pull", "ada/walls", "--out", tmp_path / "mine")
    assert down.returncode == 0, down.stderr
    assert not [check.problem for check in verify(tmp_path / "mine") if check.problem]
    assert not (tmp_path / "mine/photo.jpg").exists()
    picture = new_pictures["red"]
    assert ReCap.from_pretrained(tmp_path / "mine").caption(picture) == ReCap.from_pretrained(folder).caption(picture)
    server.files["alignment.safetensors"] = server.files["alignment.safetensors"][:-4]
    damaged = recap(address, tmp_path / "home2", "pull", "ada/walls", "--out", tmp_path / "damaged")
    assert damaged.returncode == 2
    assert "no sound pack" in damaged.stderr
    assert not (tmp_path / "damaged").exists()


def test_a_broken_pack_stays_here(hub: tuple[str, type[Hub]], folder: Path, tmp_path: Path):
    address, server = hub
    (folder / "statistics.safetensors").unlink()
    done = recap(address, tmp_path / "home", "push", folder, "ada/walls")
    assert done.returncode == 2
    assert "not uploaded" in done.stderr
    assert not server.created


THERE_AND_BACK = """
import sys
from recap import ReCap
captioner = ReCap.from_pretrained(sys.argv[1])
print(captioner.push_to_hub("ada/walls", private=False, commit_message="Walls"))
print(ReCap.from_pretrained("ada/walls").caption(sys.argv[2]) == captioner.caption(sys.argv[2]))
"""


def test_a_captioner_goes_up_and_is_loaded_by_name(
    hub: tuple[str, type[Hub]], folder: Path, tmp_path: Path, new_pictures: dict[str, Path]
):
    address, server = hub
    done = python(address, tmp_path / "home", "-c", THERE_AND_BACK, folder, new_pictures["red"])
    assert done.stdout.splitlines() == [f"{address}/ada/walls/commit/{COMMIT}", "True"], done.stderr
    assert server.messages == ["Walls"]
    (asked,) = server.created
    assert asked.get("visibility", "public") == "public"
    assert not asked.get("private")
    assert json.loads(server.files["config.json"])["format"] == 1
