from __future__ import annotations

import os
import re
from collections.abc import Callable
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
