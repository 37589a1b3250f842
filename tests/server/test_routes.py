from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from recap import ReCap
from recap.batch.tags import tag
from recap.metrics.clip import aclip_s, refaclip_s

Serve = Callable[..., TestClient]


def image(content: bytes, name: str = "red.png") -> dict[str, tuple[str, bytes]]:
    return {"image": (name, content)}


def test_a_caption_is_that_of_the_library(serve: Serve, pack: Path, red: bytes):
    answer = serve().post("/v1/caption", files=image(red)).json()
    expected = json.loads(json.dumps(ReCap.from_pretrained(pack).caption(red).as_dict()))
    assert answer == {"results": [{"index": 0, "name": "red.png", "result": expected, "error": None}]}


def test_several_pictures_keep_their_order_and_a_broken_one_stops_nothing(
    serve: Serve, new_pictures: dict[str, Path], red: bytes
):
    files = [("image", (path.name, path.read_bytes())) for path in new_pictures.values()]
    files.insert(1, ("image", ("torn.png", red[:60])))
    results = serve().post("/v1/caption", files=files).json()["results"]
    assert [result["index"] for result in results] == list(range(7))
    assert results[1]["result"] is None
    assert results[1]["error"].startswith("torn.png: cannot be decoded")
    for colour, result in zip(new_pictures, results[:1] + results[2:], strict=True):
        assert result["name"] == f"{colour}.png"
        assert colour in result["result"]["caption"]


def test_when_no_picture_can_be_read_the_answer_is_a_problem(serve: Serve):
    answer = serve().post("/v1/caption", files=image(b"no picture", "note.txt"))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == "note.txt"
    assert answer.json()["detail"].startswith("note.txt: not a picture")


def test_settings_hold_for_one_request(serve: Serve, pack: Path, red: bytes):
    client, captioner = serve(), ReCap.from_pretrained(pack)
    settings = {"k": 3, "selection": "cosine", "method": "procrustes"}
    changed = client.post("/v1/caption", files=image(red), data=settings).json()["results"][0]["result"]
    assert changed == json.loads(json.dumps(captioner.caption(red, **settings).as_dict()))
    usual = client.post("/v1/caption", files=image(red)).json()["results"][0]["result"]
    assert len(usual["evidence"]) == 13


def test_excluded_evidence_stays_out(serve: Serve, red: bytes):
    client = serve()
    before = client.post("/v1/caption", files=image(red)).json()["results"][0]["result"]
    gone = [before["caption"], before["evidence"][0]["text"]]
    after = client.post("/v1/caption", files=image(red), data={"exclude": gone}).json()["results"][0]["result"]
    assert after["caption"] not in gone
    assert not {item["text"] for item in after["evidence"]} & set(gone)
    kept = [item["text"] for item in before["evidence"] if item["text"] not in gone]
    assert [item["text"] for item in after["evidence"]][: len(kept)] == kept


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"k": "0"}, "k: Input should be greater than or equal to 1"),
        ({"k": "many"}, "k: Input should be a valid integer"),
        ({"k": ["1", "2"]}, "k: given 2 times"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"candidates": "lm"}, "candidates='lm' needs a language model"),
        ({"method": "identity"}, "identity"),
        ({"url": "http://example.org/a.jpg"}, "--allow-urls"),
    ],
)
def test_what_cannot_be_is_said_in_words(serve: Serve, red: bytes, data: dict[str, str], words: str):
    answer = serve().post("/v1/caption", files=image(red), data=data)
    assert answer.status_code in (403, 422)
    assert words in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_results_are_streamed_as_they_are_done(serve: Serve, new_pictures: dict[str, Path]):
    files = [("image", (path.name, path.read_bytes())) for path in new_pictures.values()]
    answer = serve().post("/v1/caption/stream", files=[*files, ("image", ("note.txt", b"none"))])
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    kinds = [lines[0].removeprefix("event: ") for lines in events]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in events]
    assert kinds == ["picture"] * 7 + ["done"]
    assert [item["done"] for item in data[:-1]] == list(range(1, 8))
    by_index = {item["index"]: item for item in data[:-1]}
    assert by_index[6]["error"].startswith("note.txt: not a picture")
    for number, colour in enumerate(new_pictures):
        assert colour in by_index[number]["result"]["caption"]


def test_retrieve_is_that_of_the_library(serve: Serve, pack: Path, shared_pack: Path, red: bytes):
    for folder, aligned in ((pack, True), (shared_pack, True), (shared_pack, False)):
        answer = serve(folder).post("/v1/retrieve", files=image(red), data={"k": 4, "aligned": aligned}).json()
        expected = ReCap.from_pretrained(folder).retrieve(red, 4, aligned=aligned)
        assert [item["text"] for item in answer["evidence"]] == [item.text for item in expected]
        similarities = [item["similarity"] for item in answer["evidence"]]
        np.testing.assert_allclose(similarities, [item.similarity for item in expected], rtol=1e-6)


def test_without_a_shared_space_retrieval_without_alignment_is_refused(serve: Serve, red: bytes):
    answer = serve().post("/v1/retrieve", files=image(red), data={"aligned": False})
    assert answer.status_code == 422
    assert "has no space that both share" in answer.json()["detail"]


def test_scores_are_those_of_the_metrics(serve: Serve, pack: Path, red: bytes):
    captions, references = ["a red wall", "a blue wall"], ["the wall is red", "somebody painted this wall red"]
    data = {"caption": captions, "reference": references}
    answer = serve().post("/v1/score", files=image(red), data=data).json()
    captioner = ReCap.from_pretrained(pack)
    images = np.repeat(captioner.encoder.encode_images([red]), 2, axis=0)
    texts, others = captioner.encoder.encode_texts(captions), captioner.encoder.encode_texts(references * 2)
    expected = aclip_s(images, texts, captioner.alignment)
    with_references = refaclip_s(images, texts, others, np.array([0, 2, 4]), captioner.alignment)
    np.testing.assert_allclose([item["aclip_s"] for item in answer["scores"]], expected, rtol=1e-5)
    np.testing.assert_allclose([item["refaclip_s"] for item in answer["scores"]], with_references, rtol=1e-5)
    assert answer["method"] == "ols"
    assert answer["scores"][0]["cosine"] > answer["scores"][1]["cosine"]


def test_score_without_references_has_none(serve: Serve, red: bytes):
    answer = serve().post("/v1/score", files=image(red), data={"caption": "a red wall"}).json()
    assert answer["scores"][0]["refaclip_s"] is None


def test_the_map_keeps_the_distances_that_two_dimensions_can(serve: Serve, shared_pack: Path, red: bytes):
    answer = serve(shared_pack).post("/v1/map", files=image(red), data={"k": 12}).json()
    captioner = ReCap.from_pretrained(shared_pack)
    vectors = captioner.encoder.encode_images([red])
    found = captioner.datastore.search(captioner.alignment.transform(vectors), 12)
    for name, rows in (
        ("aligned", [captioner.alignment.transform(vectors), captioner.datastore.vectors(found.ids[0])]),
        ("unaligned", [vectors, captioner.datastore.raw_vectors(found.ids[0])]),
    ):
        points = np.array([[p["x"], p["y"]] for p in (answer[name]["picture"], *answer[name]["captions"])])
        high = np.concatenate(rows).astype(np.float64)
        high -= high.mean(axis=0)
        # the best approximation of rank two of the Gram matrix is what any principal plane gives
        values, axes = np.linalg.eigh(high @ high.T)
        best = (axes[:, -2:] * values[-2:]) @ axes[:, -2:].T
        np.testing.assert_allclose(points @ points.T, best, atol=1e-5)
        assert answer[name]["explained"] == pytest.approx(values[-2:].sum() / values.sum(), abs=1e-5)


def test_without_a_shared_space_there_is_no_map_before_alignment(serve: Serve, red: bytes):
    assert serve().post("/v1/map", files=image(red)).json()["unaligned"] is None


def test_tags_are_those_of_the_library(serve: Serve, pack: Path, red: bytes):
    answer = serve().post("/v1/tags", files=image(red), data={"min_score": 0}).json()
    expected = tag(ReCap.from_pretrained(pack), red, min_score=0)
    assert expected
    assert [(item["text"], item["score"]) for item in answer["tags"]] == [(item.text, item.score) for item in expected]
    assert serve().post("/v1/tags", files=image(red), data={"min_score": 2}).status_code == 422


Serve_routes_search = Callable[..., TestClient]


@pytest.fixture
def photos(new_pictures: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    shutil.copytree(next(iter(new_pictures.values())).parent, tmp_path / "photos" / "walls")
    return tmp_path / "photos"


def test_search_is_that_of_the_library(serve: Serve_routes_search, pack: Path, photos: Path):
    client = serve(search=photos)
    answer = client.post("/v1/search", json={"text": "a red wall", "k": 3}).json()
    expected = ReCap.from_pretrained(pack).search("a red wall", photos, 3)
    assert answer["total"] == 6
    assert [item["name"] for item in answer["results"]] == [f"walls/{Path(item.path).name}" for item in expected]
    assert answer["results"][0]["similarity"] == pytest.approx(expected[0].similarity, abs=1e-6)
    assert client.get("/v1/packs").json()["limits"]["search"] == 6


def test_thumbnails_are_of_the_folder_only(serve: Serve_routes_search, photos: Path):
    client = serve(search=photos)
    best = client.post("/v1/search", json={"text": "a red wall"}).json()["results"][0]
    shown = client.get(f"/v1/search/{best['id']}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.content)).getpixel((0, 0))[0] > 150
    assert client.get("/v1/search/6").status_code == 404
    assert client.get("/v1/search/..%2fphotos").status_code in (404, 422)


def test_without_a_folder_it_says_how(serve: Serve_routes_search):
    client = serve()
    answer = client.post("/v1/search", json={"text": "a red wall"})
    assert answer.status_code == 403
    assert "--search FOLDER" in answer.json()["detail"]
    assert client.get("/v1/packs").json()["limits"]["search"] is None


@pytest.mark.parametrize("body", [{}, {"text": " "}, {"text": "a", "k": 0}, {"text": "a", "folder": "/etc"}, ["a"], 7])
def test_what_cannot_be_asked(serve: Serve_routes_search, photos: Path, body: object):
    answer = serve(search=photos).post("/v1/search", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_json_body_has_no_more_fields_than_a_form(serve: Serve):
    answer = serve().post("/v1/caption", json={"image": "", **{f"field{number}": 1 for number in range(5000)}})
    assert answer.status_code == 413
    assert "fields are over the limit of 400" in answer.json()["detail"]


def test_names_that_are_no_text_are_shown_as_far_as_they_are(serve: Serve, photos: Path):
    shutil.copy(next((photos / "walls").iterdir()), photos / os.fsdecode(b"\xff.png"))
    answer = serve(search=photos).post("/v1/search", json={"text": "a red wall"})
    assert answer.status_code == 200
    assert "?.png" in [item["name"] for item in answer.json()["results"]]
