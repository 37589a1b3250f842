from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from recap import ReCap
from recap.datastore import Datastore

Serve = Callable[..., TestClient]
CHANGES = (
    ("get", "", None),
    ("get", "/search?text=a", None),
    ("post", "", {"captions": [{"text": "a"}]}),
    ("delete", "/0", None),
)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_it_is_off_unless_asked_for(serve: Serve, method: str, path: str, body: object):
    answer = serve().request(method, f"/v1/datastore{path}", json=body)
    assert answer.status_code == 403
    assert "--editable" in answer.json()["detail"]


def test_captions_are_listed_in_pages(serve: Serve, pack: Path):
    client, store = serve(editable=True), Datastore.load(pack / "datastore")
    rows = [row.text for row in store]
    page = client.get("/v1/datastore", params={"offset": 5, "limit": 3}).json()
    assert page["total"] == len(rows)
    assert [row["text"] for row in page["captions"]] == rows[5:8]
    found = client.get("/v1/datastore", params={"contains": "RED"}).json()
    assert found["total"] == sum("red" in text for text in rows)
    assert client.get("/v1/datastore", params={"source": "nobody"}).json() == {"total": 0, "captions": []}


def test_search_finds_what_brute_force_finds(serve: Serve, pack: Path):
    found = serve(editable=True).get("/v1/datastore/search", params={"text": "the wall is blue", "k": 4}).json()
    captioner = ReCap.from_pretrained(pack)
    query = captioner.alignment.transform_texts(captioner.encoder.encode_texts(["the wall is blue"]))[0]
    similarities = sorted((captioner.datastore.vectors(captioner.datastore.ids) @ query).tolist(), reverse=True)  # type: ignore[attr-defined]
    assert found["captions"][0]["text"] == "the wall is blue"
    assert [item["similarity"] for item in found["captions"]] == pytest.approx(similarities[:4], abs=1e-5)


def test_changes_take_effect_at_once_and_do_not_reach_the_disk(serve: Serve, pack: Path, red: bytes):
    client = serve(editable=True)
    size = client.get("/v1/datastore").json()["total"]
    added = client.post(
        "/v1/datastore", json={"captions": [{"text": "  somebody painted\n this red ", "source": "me"}]}
    )
    assert added.status_code == 201
    assert added.json()["size"] == size + 1
    assert added.json()["saved"] is False
    evidence = client.post("/v1/retrieve", files={"image": red}, data={"k": 20}).json()["evidence"]
    assert "somebody painted this red" in [item["text"] for item in evidence]
    removed = client.delete(f"/v1/datastore/{added.json()['ids'][0]}").json()
    assert removed["size"] == size
    evidence = client.post("/v1/retrieve", files={"image": red}, data={"k": 20}).json()["evidence"]
    assert "somebody painted this red" not in [item["text"] for item in evidence]
    assert len(Datastore.load(pack / "datastore")) == size


def test_changes_are_saved_when_asked_for(serve: Serve, pack: Path, tmp_path: Path):
    folder = tmp_path / "pack"
    shutil.copytree(pack, folder)
    client = serve(folder, editable=True, save_edits=folder)
    client.post("/v1/datastore", json={"captions": [{"text": "a cyan wall", "source": "me"}]})
    assert client.delete("/v1/datastore/0").json()["saved"] is True
    store = ReCap.from_pretrained(folder).datastore
    assert store.sources()["me"] == 1
    assert 0 not in store.ids  # type: ignore[attr-defined]


def test_what_is_not_there_cannot_be_removed_nor_can_the_last(serve: Serve, pack: Path):
    captioner = ReCap.from_pretrained(pack)
    client = serve(captioner=captioner, editable=True)
    assert client.delete("/v1/datastore/123456").status_code == 404
    captioner.datastore.remove(captioner.datastore.ids[1:])  # type: ignore[attr-defined]
    last = client.delete("/v1/datastore/0")
    assert last.status_code == 422
    assert "last caption" in last.json()["detail"]


def test_a_change_that_cannot_be_saved_is_not_made(
    serve: Serve, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "pack"
    shutil.copytree(pack, folder)
    client = serve(folder, editable=True, save_edits=folder)
    size = client.get("/v1/datastore").json()["total"]
    with monkeypatch.context() as patch:
        patch.setattr(Datastore, "commit", lambda _: (_ for _ in ()).throw(OSError(28, "No space left", str(folder))))
        failed = client.post("/v1/datastore", json={"captions": [{"text": "a lost wall"}]})
    assert failed.status_code == 500
    assert str(tmp_path) not in failed.text
    assert client.get("/v1/datastore").json()["total"] == size
    again = client.post("/v1/datastore", json={"captions": [{"text": "a cyan wall"}]})
    assert again.json()["saved"] is True
    assert "a lost wall" not in {row.text for row in Datastore.load(folder / "datastore")}


def test_changes_of_other_processes_are_kept(serve: Serve, pack: Path, tmp_path: Path):
    folder = tmp_path / "pack"
    shutil.copytree(pack, folder)
    client = serve(folder, editable=True, save_edits=folder)
    other = Datastore.load(folder / "datastore")
    other.remove([1])
    other.commit()
    assert client.post("/v1/datastore", json={"captions": [{"text": "a cyan wall"}]}).json()["saved"] is True
    store = Datastore.load(folder / "datastore")
    assert 1 not in store.ids
    assert "a cyan wall" in {row.text for row in store}


def test_a_body_of_many_unknown_keys_is_cut_short(serve: Serve):
    client = serve(editable=True)
    large = {f"k{number}": 0 for number in range(300_000)}
    assert client.post("/v1/datastore", json=large).status_code == 413
    some = client.post("/v1/datastore", json={f"k{number}": 0 for number in range(2000)}).json()
    assert len(some["errors"]) == 20
    assert "and 2000 more" in some["detail"]
