"""Pictures of strangers are decoded in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from recap.encoders import apart

Serve = Callable[..., TestClient]


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
