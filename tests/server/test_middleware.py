from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recap.errors import ImageError, InputError
from recap.server import ServerConfig
from recap.server.forms import shown_name, sniff
from recap.server.middleware import Keys

Serve = Callable[..., TestClient]
KEY = "correct horse battery"


def png(width: int, height: int, mode: str = "RGB", kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, kind)
    return file.getvalue()


def test_without_the_key_only_health_and_documentation_answer(serve: Serve, red: bytes):
    client = serve(api_keys=("another key altogether", KEY))
    for headers in ({}, {"X-API-Key": KEY[:-1]}, {"Authorization": f"Basic {KEY}"}, {"X-API-Key": ""}):
        for path in ("/v1/packs", "/metrics"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["status"] == 401
        assert client.post("/v1/caption", files={"image": red}, headers=headers).status_code == 401
    assert all(client.get(path).status_code == 200 for path in ("/healthz", "/readyz", "/docs", "/openapi.json"))
    for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert client.get("/v1/packs", headers=headers).status_code == 200


def test_a_wrong_key_is_told_from_none(serve: Serve):
    client = serve(api_keys=(KEY,))
    missing, wrong = client.get("/v1/packs"), client.get("/v1/packs", headers={"Authorization": "Bearer wrong"})
    assert missing.status_code == wrong.status_code == 401
    assert "a key is needed" in missing.json()["detail"]
    assert "is not one of the service's" in wrong.json()["detail"]
    assert "error" not in missing.headers["WWW-Authenticate"]
    assert 'error="invalid_token"' in wrong.headers["WWW-Authenticate"]
    assert wrong.json()["detail"] == client.get("/v1/packs", headers={"X-API-Key": "wrong"}).json()["detail"]


def test_the_schema_declares_keys_where_they_are_needed(serve: Serve):
    schema = serve(api_keys=(KEY,)).get("/openapi.json").json()
    kinds = {(scheme["type"], scheme.get("scheme")) for scheme in schema["components"]["securitySchemes"].values()}
    assert kinds == {("http", "bearer"), ("apiKey", None)}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == path.startswith(("/v1/", "/api/", "/metrics")), path
    assert "securitySchemes" not in serve().get("/openapi.json").json()["components"]


@given(st.lists(st.text(min_size=1), max_size=4), st.text())
def test_keys_are_equal_or_not(keys: list[str], key: str):
    assert (key in Keys(keys)) == (key in keys)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "LOCALHOST:80"}, 200),
        ({"Host": "localhost:evil"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_other_names_and_other_origins_are_refused(serve: Serve, headers: dict[str, str], status: int):
    answer = serve().get("/v1/packs", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_refused_name_says_which_option_allows_it(serve: Serve):
    refused = serve().get("/healthz", headers={"Host": "evil.example"})
    assert "--host-name" in refused.json()["detail"]
    assert serve(hosts=("evil.example",)).get("/healthz", headers={"Host": "evil.example"}).status_code == 200
    assert serve(hosts=None).get("/healthz", headers={"Host": "anything.example"}).status_code == 200


def test_every_answer_has_the_security_headers_and_none_opens_cors(serve: Serve):
    client = serve()
    for answer in (client.get("/healthz"), client.get("/nothing"), client.get("/healthz", headers={"Host": "evil"})):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.options("/v1/packs", headers={"Origin": "http://evil.example"}).status_code == 403


def test_errors_are_problems(serve: Serve):
    client = serve()
    for answer, status in (
        (client.get("/nothing"), 404),
        (client.get("/v1/caption"), 405),
        (client.post("/v1/caption", content=b"x", headers={"Content-Type": "text/plain"}), 415),
        (client.post("/v1/caption", content=b"x", headers={"Content-Type": "multipart/form-data"}), 400),
        (client.post("/v1/caption", data={"k": 3}, files={"other": b"x"}), 422),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


def test_bodies_are_limited_whether_they_say_their_length_or_not(serve: Serve, red: bytes):
    client = serve(max_body=20_000)
    large = red + bytes(20_000)
    assert client.post("/v1/caption", files={"image": large}).status_code == 413

    def pieces() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        yield from (bytes(1000) for _ in range(30))

    streamed = client.post("/v1/caption", content=pieces(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert streamed.status_code == 413
    assert client.post("/v1/caption", files={"image": red}).status_code == 200


def test_memory_for_bodies_is_given_back(serve: Serve, red: bytes):
    client = serve(max_body=3000, max_held=3000)
    for _ in range(5):
        assert client.post("/v1/caption", files={"image": red}).status_code == 200
        assert client.post("/v1/caption", files={"image": b"none"}).status_code == 422
    assert "recap_body_bytes_held 0.0" in client.get("/metrics").text


@pytest.mark.parametrize("letter", ["\U0001f600", "\\ud83d\\ude00"])
def test_a_text_of_four_bytes_a_letter_counts_for_them(serve: Serve, letter: str):
    client = serve(max_body=200_000, max_held=200_000)
    for text, status in (("?" * 100_000, 422), ("?" * 100_000 + letter, 503), ("?" * 1000 + letter, 422)):
        content = f'{{"image": "{text}"}}'.encode()
        answer = client.post("/v1/caption", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == status
    assert "recap_body_bytes_held 0.0" in client.get("/metrics").text


def test_pictures_are_limited_in_number(serve: Serve, red: bytes):
    client = serve(max_pictures=2)
    files = [("image", ("a.png", red))] * 3
    assert client.post("/v1/caption", files=files).status_code == 400
    assert client.post("/v1/retrieve", files=files[:2]).status_code == 422
    assert client.post("/v1/caption", files=files[:2]).status_code == 200


def test_pixels_are_counted_by_what_decoding_takes():
    assert sniff("a", png(100, 100), 10_000).cost == 10_000
    assert sniff("a", png(100, 200, kind="JPEG"), 10_000).cost == 10_000
    assert sniff("a", png(50, 100, "I;16"), 10_000).cost == 10_000
    for content in (png(101, 100), png(101, 200, kind="JPEG"), png(51, 100, "I;16")):
        with pytest.raises(ImageError, match="over the limit of 10000"):
            sniff("a", content, 10_000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
    ],
)
def test_only_pictures_are_read_whatever_their_name(content: bytes):
    with pytest.raises(ImageError, match=r"^a\.png: "):
        sniff("a.png", content, 10_000)


@given(st.binary(max_size=300))
def test_sniffing_never_fails_otherwise(content: bytes):
    with suppress(ImageError):
        sniff("a", content, 10_000)


@given(st.text(max_size=300))
def test_names_are_only_shown(name: str):
    shown = shown_name(name, 3)
    assert shown.isprintable()
    assert 0 < len(shown) <= 100
    assert not {"/", "\\"} & set(shown)


def test_a_path_in_a_name_is_never_opened(serve: Serve, new_pictures: dict[str, Path]):
    path = str(new_pictures["blue"])
    answer = serve().post("/v1/caption", files={"image": (path, b"no picture")})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "blue.png"
    assert serve().post("/v1/caption", data={"image": path}, files={"x": b""}).status_code == 422


def test_the_log_has_neither_content_nor_names(serve: Serve, red: bytes, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "recap.server"):
        client = serve(editable=True)
        client.post("/v1/caption", files={"image": ("secret-name.png", red)}, data={"exclude": "secret text"})
        client.get("/v1/datastore/search", params={"text": "secret text"})
        client.get("/secret-path")
    lines = [record.getMessage() for record in caplog.records if record.name == "recap.server"]
    assert [line.split()[1:4] for line in lines] == [
        ["POST", "/v1/caption", "200"],
        ["GET", "/v1/datastore/search", "200"],
        ["GET", "unknown", "404"],
    ]
    assert "secret" not in caplog.text.replace("http://localhost", "").split("HTTP Request")[0]


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="never has room"):
        ServerConfig(max_queue=4, max_pictures=5)
    with pytest.raises(InputError, match="greater than zero"):
        ServerConfig(timeout=0)


Message = dict[str, Any]


def post(
    app: Any, path: str, receive: Callable[[], Awaitable[Message]], headers: Mapping[bytes, bytes]
) -> tuple[int, bytes]:
    """Send a request whose body comes from a function; return status and body of the answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost"), *headers.items()], "scheme": "http", "server": ("localhost", 80)}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_a_body_that_does_not_arrive_in_time_is_given_up(serve: Serve):
    begun = iter([{"type": "http.request", "body": b"--x\r\n", "more_body": True}])

    async def receive() -> Message:
        for message in begun:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    headers = {b"content-type": b"multipart/form-data; boundary=x"}
    status, body = post(serve(body_timeout=0.05).app, "/v1/caption", receive, headers)
    assert status == 408
    assert b"did not arrive within 0.05 seconds" in body


@pytest.mark.parametrize("path", ["/v1/caption", "/v1/chat/completions", "/api/generate", "/v1/search"])
@pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"application/json", b"image/jpeg"])
def test_of_forty_megabytes_no_more_is_read_than_a_request_may_have(serve: Serve, path: str, kind: bytes):
    app, most, taken = serve().app, ServerConfig().max_body, 0
    piece = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'.ljust(1 << 20, b" ")

    async def receive() -> Message:
        nonlocal taken
        taken += len(piece)
        assert taken <= 40 << 20
        return {"type": "http.request", "body": piece, "more_body": True}

    told = {b"content-type": kind, b"content-length": b"%d" % (40 << 20)}
    assert post(app, path, receive, told)[0] == 413
    assert taken == 0, "its length is enough"
    assert post(app, path, receive, {b"content-type": kind})[0] in (413, 415)
    assert taken <= most + len(piece)


def test_pages_of_named_origins_may_use_the_service(serve: Serve):
    client = serve(cors=("https://photos.example",), api_keys=(KEY,))
    ours, other = {"Origin": "https://photos.example"}, {"Origin": "https://evil.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = client.options("/v1/caption", headers={**ours, **asked})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://photos.example"
    assert "access-control-allow-origin" not in client.options("/v1/caption", headers={**other, **asked}).headers
    answer = client.get("/v1/packs", headers={**ours, "X-API-Key": KEY})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://photos.example"
    assert "access-control-allow-credentials" not in answer.headers
    refused = client.get("/v1/packs", headers=ours)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://photos.example", "so that the page can read why"
    assert client.get("/v1/packs", headers={**other, "X-API-Key": KEY}).status_code == 403
