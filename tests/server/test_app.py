"""The service as a process of its own: signals, clients that go away, options."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from recap import ReCap, __version__
from recap.encoders import apart
from recap.server import ServerConfig, create_app

Serve = Callable[..., TestClient]
CASES = int(os.environ.get("RECAP_SCHEMA_CASES", "6"))
"""For each operation; there are more than ten."""
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


def test_packs_say_what_is_served(serve: Serve, pack: Path, shared_pack: Path):
    answer = serve(pack="mine", editable=True).get("/v1/packs").json()
    assert str(pack.parents[1]) not in str(answer), "where files lie is nobody's business"
    assert answer["version"] == __version__
    assert answer["editable"] is True
    (served,) = answer["packs"]
    assert served["name"] == "mine"
    assert served["captions"] == 54
    assert served["sources"] == {"walls": 54}
    assert served["method"] == "ols"
    assert served["shares_space"] is False
    assert "identity" not in served["methods"]
    assert "identity" in serve(shared_pack).get("/v1/packs").json()["packs"][0]["methods"]


def test_every_listed_method_works(serve: Serve, shared_pack: Path, red: bytes):
    client = serve(shared_pack)
    for method in client.get("/v1/packs").json()["packs"][0]["methods"]:
        assert client.post("/v1/caption", files={"image": red}, data={"method": method}).status_code == 200


def test_metrics_count(serve: Serve, red: bytes):
    client = serve()
    for _ in range(3):
        client.post("/v1/caption", files={"image": red})
    client.get("/made/up")
    text = client.get("/metrics").text
    assert 'recap_requests_total{method="POST",route="/v1/caption",status="200"} 3.0' in text
    assert 'recap_requests_total{method="GET",route="unknown",status="404"} 1.0' in text
    assert "recap_batch_size_count 3.0" in text
    assert "recap_tasks_accepted_total 3.0" in text


def test_the_documentation_loads_nothing_from_elsewhere(serve: Serve):
    client = serve()
    page = client.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert client.get(f"/{address}").status_code == 200, address
    described = client.get("/openapi.json").json()
    assert "curl -F image=@cat.jpg" in described["info"]["description"]
    form = described["paths"]["/v1/caption"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert {"image", "k", "temperature", "exclude"} <= form["properties"].keys()
    assert client.get("/static/swagger/core.py").status_code == 404


def test_head_is_get_without_a_body(serve: Serve):
    client = serve()
    for path in ("/", "/docs", "/healthz", "/readyz", "/v1/packs", "/v1/models", "/metrics", "/static/page.js"):
        head, whole = client.head(path), client.get(path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert client.head("/v1/caption").status_code == 405
    assert client.head("/made/up").status_code == 404


def test_when_the_application_has_ended_it_is_not_ready(pack: Path):
    app = create_app(ReCap.from_pretrained(pack))
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/readyz").status_code == 200
    late = TestClient(app, base_url="http://localhost").get("/readyz")
    assert late.status_code == 503
    assert "Retry-After" in late.headers


def test_a_request_that_takes_too_long_is_told_so(serve: Serve, pack: Path, red: bytes):
    answer = serve(timeout=1e-6).post("/v1/caption", files={"image": red})
    assert answer.status_code == 503
    assert "took longer" in answer.json()["detail"]
    assert "Retry-After" in answer.headers


@pytest.mark.parametrize("editable", [True, False])
def test_the_application_keeps_to_its_schema(pack: Path, new_pictures: dict[str, Path], editable: bool):
    pictures = [path.read_bytes() for path in new_pictures.values()]
    schemathesis.openapi.format("binary", st.sampled_from(pictures) | st.binary(max_size=50))
    app = create_app(ReCap.from_pretrained(pack), ServerConfig(editable=editable, hosts=None))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    for operation in schema.get_all_operations():
        _check(operation.ok())


def _check(operation: schemathesis.APIOperation) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def run(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=list(CHECKS))

    run()


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
    logged = server.lines.read().splitlines()
    assert "faiss" not in "".join(logged), "what other packages have to say is for warnings only"
    came, answered = map(int, re.findall(r"\d+", logged[-1]))
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


def test_no_request_gets_a_thread_for_itself(serve: Serve, red: bytes, shared_pack: Path):
    """Each thread has memory of its own that it never gives back."""
    client, before = serve(editable=True, search=shared_pack), set(threading.enumerate())
    assert client.post("/v1/caption", files={"image": red}).status_code == 200
    assert client.post("/v1/search", json={"text": "a wall"}).status_code == 200
    for path in ("/v1/packs", "/v1/datastore", "/v1/models", "/api/tags", "/healthz", "/metrics"):
        assert client.get(path).status_code == 200
    new = {thread.name for thread in set(threading.enumerate()) - before}
    assert not any(name.startswith("AnyIO worker") for name in new), new


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


def caption(client: TestClient, *contents: bytes) -> list[dict[str, object]]:
    files = [("image", (f"{number}.png", content)) for number, content in enumerate(contents)]
    return client.post("/v1/caption", files=files).json()["results"]


def test_a_crash_of_the_decoder_costs_one_picture(serve: Serve, red: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service goes on, and answers the same as one that decodes by itself."""
    client = serve(decode_apart=True)
    children: list[apart._Child] = []
    ask = apart._Child._ask

    def crashing(child: apart._Child, content: bytes, side: int) -> tuple[int, int, bytes]:
        if content.endswith(b"crash"):
            children.append(child)
            child._process.kill()
        return ask(child, content, side)

    monkeypatch.setattr(apart._Child, "_ask", crashing)
    good, bad = caption(client, red, red + b"crash")
    assert "decoding took too much memory, or crashed" in str(bad["error"])
    assert str(bad["error"]).startswith("1.png: ")
    assert good["result"] == caption(serve(), red)[0]["result"]
    assert caption(client, red)[0]["result"] == good["result"]
    assert len(children) == 1
