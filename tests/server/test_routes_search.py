from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from recap import ReCap

Serve = Callable[..., TestClient]


@pytest.fixture
def photos(new_pictures: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    shutil.copytree(next(iter(new_pictures.values())).parent, tmp_path / "photos" / "walls")
    return tmp_path / "photos"


def test_search_is_that_of_the_library(serve: Serve, pack: Path, photos: Path):
    client = serve(search=photos)
    answer = client.post("/v1/search", json={"text": "a red wall", "k": 3}).json()
    expected = ReCap.from_pretrained(pack).search("a red wall", photos, 3)
    assert answer["total"] == 6
    assert [item["name"] for item in answer["results"]] == [f"walls/{Path(item.path).name}" for item in expected]
    assert answer["results"][0]["similarity"] == pytest.approx(expected[0].similarity, abs=1e-6)
    assert client.get("/v1/packs").json()["limits"]["search"] == 6


def test_thumbnails_are_of_the_folder_only(serve: Serve, photos: Path):
    client = serve(search=photos)
    best = client.post("/v1/search", json={"text": "a red wall"}).json()["results"][0]
    shown = client.get(f"/v1/search/{best['id']}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.content)).getpixel((0, 0))[0] > 150
    assert client.get("/v1/search/6").status_code == 404
    assert client.get("/v1/search/..%2fphotos").status_code in (404, 422)


def test_without_a_folder_it_says_how(serve: Serve):
    client = serve()
    answer = client.post("/v1/search", json={"text": "a red wall"})
    assert answer.status_code == 403
    assert "--search FOLDER" in answer.json()["detail"]
    assert client.get("/v1/packs").json()["limits"]["search"] is None


@pytest.mark.parametrize("body", [{}, {"text": " "}, {"text": "a", "k": 0}, {"text": "a", "folder": "/etc"}, ["a"], 7])
def test_what_cannot_be_asked(serve: Serve, photos: Path, body: object):
    answer = serve(search=photos).post("/v1/search", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
