"""The service as a process of its own: signals, clients that go away, options."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recap.errors import InputError
from recap.server.config import LOOPBACK_NAMES
from recap.server.process import configure, is_loopback, read_keys

BOUNDARY = "edge"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
Start = Callable[..., "Running"]


class Running:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "recap.cli.main", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.lines = self.process.stderr
        first = self.lines.readline()
        found = re.search(r"serving \S+ on http://127\.0\.0\.1:(\d+)", first)
        assert found, first + self.lines.read()
        self.port = int(found[1])

    def send(self, body: bytes, path: str = "/v1/caption") -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, body, HEADERS)
        return connection

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found
        return float(found[1])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(600):
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError("it did not come to that")


@pytest.fixture
def start(pack: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(*options: str) -> Running:
        started.append(Running("--pack", str(pack), *options))
        return started[-1]

    yield run
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def form(pictures: list[bytes]) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'.encode()
    return b"".join(head + content + b"\r\n" for content in pictures) + f"--{BOUNDARY}--\r\n".encode()


def test_sigterm_loses_no_accepted_request(start: Start, red: bytes):
    server = start("--max-batch", "1")
    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(lambda _: server.send(form([red] * 16)), range(4)))
    # one more, of which a part has arrived
    body = form([red])
    slow = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    slow.sendall(f"{head}Content-Type: {HEADERS['Content-Type']}\r\n\r\n".encode() + body[:100])
    server.wait_for(lambda: server.metric("recap_tasks_accepted_total") == 64)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    slow.sendall(body[100:])
    responses = [connection.getresponse() for connection in sent]
    assert {response.headers["Connection"] for response in responses} == {"close"}
    answers = [json.loads(response.read()) for response in responses]
    assert [len(answer["results"]) for answer in answers] == [16] * 4
    assert all("red" in item["result"]["caption"] for answer in answers for item in answer["results"])
    assert b"HTTP/1.1 200" in slow.recv(100)
    slow.close()
    assert server.process.wait(60) == 0
    last = server.lines.read().splitlines()[-1]
    came, answered = map(int, re.findall(r"\d+", last))
    assert came == answered >= 5


def test_the_work_of_a_client_that_goes_away_is_dropped(start: Start, red: bytes):
    server = start("--max-batch", "1", "--max-pictures", "64")
    for path in ("/v1/caption", "/v1/caption/stream"):
        before = server.metric("recap_batch_size_count")
        connection = server.send(form([red] * 64), path)
        server.wait_for(lambda: server.metric("recap_tasks_waiting") > 0)
        connection.close()
        server.wait_for(lambda: server.metric("recap_tasks_waiting") == 0)
        assert server.metric("recap_batch_size_count") - before < 64
    assert "ok" in server.get("/readyz")


def test_off_loopback_it_wants_a_key(pack: Path, tmp_path: Path):
    command = [sys.executable, "-m", "recap.cli.main", "serve", "--pack", str(pack), "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--insecure" in done.stderr
    keys = tmp_path / "keys"
    keys.write_text("short\n")
    done = subprocess.run([*command, "--api-keys", str(keys)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "at least 16 characters" in done.stderr


def test_a_port_in_use_is_told_at_once(pack: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "recap.cli.main", "serve", "--pack", str(pack), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_is_this_machine_only(host: str):
    assert is_loopback(host)
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_keys_come_from_the_environment_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = "a" * 16, "b" * 20
    monkeypatch.setenv("RECAP_API_KEYS", f" {first} ,")
    (tmp_path / "keys").write_text(f"\n{second}\n{first}\n")
    assert read_keys(None) == (first,)
    assert read_keys(tmp_path / "keys") == (first, second)
    monkeypatch.delenv("RECAP_API_KEYS")
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(InputError, match="holds no key"):
        read_keys(tmp_path / "keys")


def test_options_become_a_configuration(pack: Path, tmp_path: Path):
    config = configure(str(pack), "127.0.0.1", names=("Photos.Example",), editable=True, save_edits=True)
    assert (config.pack, config.save_edits) == (pack.name, pack)
    assert config.hosts == (*LOOPBACK_NAMES, "photos.example")
    assert configure("builtin", "0.0.0.0", insecure=True).hosts is None
    large = configure("builtin", "localhost", max_megabytes=400, max_queue=99)
    assert (large.max_body, large.max_held, large.max_queue) == (400_000_000, 800_000_000, 99)
    for options in ({"save_edits": True}, {"save_edits": True, "editable": True}):
        with pytest.raises(InputError, match="--save-edits goes with"):
            configure("builtin" if "editable" in options else str(pack), "localhost", **options)
    with pytest.raises(InputError, match="--insecure"):
        configure("builtin", "0.0.0.0")


def test_origins_are_checked():
    assert configure("builtin", "localhost", cors=("https://Photos.Example",)).cors == ("https://photos.example",)
    for origin, reason in (("*", "every page"), ("photos.example", "a scheme and a host"), ("https://a/b", "a scheme")):
        with pytest.raises(InputError, match=reason):
            configure("builtin", "localhost", cors=(origin,))
