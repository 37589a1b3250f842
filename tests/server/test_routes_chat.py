"""OpenAI's and Ollama's own clients against a running service, and bodies that nobody should send."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from recap import ReCap
from recap.server.routes_chat import ABILITIES, CANNOT, read_prompt, tell_caption, tell_json, tell_judgement, tell_tags
from recap.types import Caption, Tag


@pytest.mark.parametrize(
    ("prompt", "wish", "statement"),
    [
        ("", "caption", ""),
        ("Describe this image in detail.", "caption", ""),
        ("What is in this picture?", "caption", ""),
        ("Write an alt text for this image", "alt", ""),
        ("List 5 tags, comma separated", "tags", ""),
        ("Give me keywords for my photo library.", "tags", ""),
        ('Is "a cat on a sofa" a correct caption? Answer yes or no.', "judge", "a cat on a sofa"),
        ('Does "two dogs" describe the picture?', "judge", "two dogs"),
        ("Is there a dog in the picture?", "judge", "a dog"),
        ("Does this image show a red wall?", "judge", "a red wall"),
        ("Answer with yes or no: is this a cat?", "judge", "a cat"),
        ("How many people are there?", "other", ""),
        ("Translate the sign", "other", ""),
    ],
)
def test_what_a_prompt_asks_for(prompt: str, wish: str, statement: str):
    asked = read_prompt(prompt)
    assert (asked.wish, asked.statement) == (wish, statement)


def test_answers():
    unsure = Caption("a cat", 0.3, (), (), "likely", 0.2)
    assert tell_caption(unsure, "caption") == "a cat (I am not sure of this: 20%.)"
    assert tell_caption(unsure, "alt") == "a cat"
    assert tell_caption(unsure, "other").startswith(CANNOT)
    assert ABILITIES in CANNOT
    assert tell_tags([Tag("cat", 0.9), Tag("sofa", 0.6)]) == "cat, sofa"
    assert tell_tags([]).startswith("I found no keyword")
    assert tell_judgement("a cat", 0.8).startswith("Yes")
    assert tell_judgement("a cat", 0.2).startswith("No")
    assert json.loads(tell_json(unsure, [Tag("cat", 0.9)]))["tags"] == ["cat"]


ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")

Serve = Callable[..., TestClient]
KEY = "a-key-of-the-service"


@pytest.fixture(scope="module")
def address(pack: Path) -> Iterator[str]:
    """A service in a process of its own, on a free port."""
    command = [sys.executable, "-m", "recap", "serve", "--pack", str(pack), "--port", "0"]
    environment = {**os.environ, "RECAP_API_KEYS": KEY}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "http://" in line:
                break
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        yield line.split()[-1]
        process.terminate()
        process.wait(30)
        rest.join()


@pytest.fixture(scope="module")
def red_caption(pack: Path, red: bytes) -> str:
    return ReCap.from_pretrained(pack).caption(red).text


def ask(picture: bytes, text: str) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]},
    ]


def test_openais_client(address: str, red: bytes, red_caption: str):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == ["recap"]
    assert client.models.retrieve("recap").owned_by == "recap"
    answer = client.chat.completions.create(
        model="recap", messages=ask(red, "Describe it"), temperature=0, max_tokens=9
    )
    assert answer.choices[0].message.content == red_caption
    assert answer.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model="recap", messages=ask(red, "Describe it"), stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len(parts) > 2
    assert "".join(parts) == red_caption
    judged = client.chat.completions.create(model="recap", messages=ask(red, 'Is "a blue wall" right? yes or no'))
    assert judged.choices[0].message.content.startswith("No")
    plain = client.chat.completions.create(
        model="recap", messages=ask(red, "Describe it"), response_format={"type": "json_object"}
    )
    assert json.loads(plain.choices[0].message.content)["caption"] == red_caption
    words = client.chat.completions.create(model="recap", messages=[{"role": "user", "content": "Hello"}])
    assert "send one" in words.choices[0].message.content


def test_clients_are_told_what_is_wrong(address: str, red: bytes):
    def refusal(key: str, messages: list[dict[str, Any]]) -> tuple[int, str]:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="recap", messages=messages)
        return caught.value.status_code, caught.value.response.json()["error"]["message"]

    assert refusal("another", ask(red, "Describe it")) == (401, "this key is not one of the service's")
    status, reason = refusal(KEY, ask(b"none", "Describe it"))
    assert status == 422
    assert "not a picture" in reason
    elsewhere = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://example.org/a.jpg"}}]}]
    status, reason = refusal(KEY, elsewhere)
    assert status == 403
    assert "--allow-urls" in reason
    client = ollama.Client(address, headers={"Authorization": f"Bearer {KEY}"})
    with pytest.raises(ollama.ResponseError, match="not a picture"):
        client.generate("recap", "Describe it", images=[b"none"])


def test_ollamas_client(address: str, red: bytes, red_caption: str, new_pictures: dict[str, Path]):
    client = ollama.Client(address, headers={"Authorization": f"Bearer {KEY}"})
    assert [model.model for model in client.list().models] == ["recap:latest"]
    assert "vision" in client.show("recap").capabilities
    assert client.generate("recap", "Describe it", images=[red]).response == red_caption
    parts = [part.response for part in client.generate("recap", "Describe it", images=[red], stream=True)]
    assert len(parts) > 2
    assert "".join(parts) == red_caption
    messages = [{"role": "user", "content": "Is there a red wall?", "images": [str(new_pictures["red"])]}]
    answer = client.chat("recap", messages=messages)
    assert answer.message.content.startswith("Yes")
    assert answer.done
    streamed = "".join(part.message.content for part in client.chat("recap", messages=messages, stream=True))
    assert streamed == answer.message.content
    counted = client.generate("recap", "How many walls?", images=[red]).response
    assert counted.startswith("I cannot answer that")
    assert red_caption in counted
    two = client.generate("recap", "Describe", images=[red, red]).response
    assert two == f"1. {red_caption}\n2. {red_caption}"


def test_json_and_a_plain_picture_are_captioned_like_a_form(serve: Serve, red: bytes):
    client = serve()
    form = client.post("/v1/caption", files={"image": ("red.png", red)}, data={"k": 3}).json()["results"][0]["result"]
    encoded = base64.b64encode(red).decode()
    bodies = [encoded, [encoded], f"data:image/png;base64,{encoded}"]
    for body in bodies:
        answer = client.post("/v1/caption", json={"image": body, "k": 3, "seed": None})
        assert answer.json()["results"][0]["result"] == form
    for kind in ("image/png", "application/octet-stream"):
        plain = client.post("/v1/caption?k=3", content=red, headers={"content-type": kind})
        assert plain.json()["results"][0]["result"] == form
    both = client.post("/v1/caption", json={"image": [encoded, base64.b64encode(b"none").decode()]}).json()["results"]
    assert both[0]["error"] is None
    assert "not a picture" in both[1]["error"]


GIF = base64.b64encode(b"GIF89a" + b"\xff\xff\xff\xff" + bytes(20)).decode()


def bomb() -> str:
    """Return a PNG of a billion pixels, in a few kilobytes."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 32_000, 32_000, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(10**6)))]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def image_part(content: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


BOMB = bomb()
HOSTILE: list[tuple[str, Any, int]] = [
    ("/v1/caption", {"image": "A" * 3_000_000}, 413),
    ("/v1/caption", {"image": "no base64!"}, 422),
    ("/v1/caption", {"image": 7}, 422),
    ("/v1/caption", {"image": {"a": 1}}, 422),
    ("/v1/caption", {"image": [GIF] * 100}, 413),
    ("/v1/caption", {"image": GIF}, 422),
    ("/v1/caption", {"image": GIF, "k": {"a": 1}}, 422),
    ("/v1/caption", {"image": GIF, "k": []}, 422),
    ("/v1/caption", {"image": GIF, "url": 7}, 422),
    ("/v1/caption", ["a"], 422),
    ("/v1/caption", [[]] * 30_000, 413),
    ("/v1/chat/completions", {"messages": []}, 422),
    ("/v1/chat/completions", {"messages": "hello"}, 422),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}, 422),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, 422),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 200_000}]}, 422),
    ("/v1/chat/completions", 7, 422),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image_part(GIF)] * 100}]}, 413),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image_part(BOMB)]}]}, 422),
    ("/v1/caption", {"image": BOMB}, 422),
    ("/api/generate", {"images": [BOMB]}, 422),
    ("/api/chat", {"messages": [{"role": "user", "images": [GIF] * 100}]}, 413),
    ("/api/generate", {"images": [GIF] * 100}, 413),
    ("/api/generate", {"images": ["%%%"]}, 422),
    ("/api/generate", {"images": "one"}, 422),
    ("/api/chat", {"messages": [{"role": "user", "images": [GIF]}]}, 422),
    ("/api/chat", {"messages": [{"role": "user"}] * 500}, 422),
]


@pytest.mark.parametrize(("path", "body", "status"), HOSTILE, ids=[f"{path} {status}" for path, _, status in HOSTILE])
def test_hostile_bodies_are_refused(serve: Serve, path: str, body: Any, status: int):
    answer = serve(max_body=2_000_000).post(path, json=body)
    assert answer.status_code == status, answer.text[:200]
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 15_000, b"\xff\xfe", b"NaN1"])
def test_what_is_no_json_is_refused(serve: Serve, body: bytes):
    client = serve()
    for path in ("/v1/caption", "/v1/chat/completions", "/api/generate", "/api/chat"):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_a_body_elsewhere_stays_small(serve: Serve):
    answer = serve(editable=True).post("/v1/datastore", json={"captions": [{"text": "a" * 400_000}]})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "messages", [[{"role": "user", "content": [0] * 15_000}], [{"role": "user", "content": [0] * 70}] * 200]
)
def test_the_first_of_many_errors_is_enough(serve: Serve, messages: list[dict[str, Any]]):
    """To list all of them would keep everybody waiting."""
    answer = serve().post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) <= 3
