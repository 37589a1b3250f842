from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from recap import ReCap
from recap.server import ServerConfig, create_app
from recap.types import Pair

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def pack(pairs: list[Pair], encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose encoders have no space in common."""
    return save(pairs, encoder_folder, tmp_path_factory)


@pytest.fixture(scope="session")
def shared_pack(pairs: list[Pair], shared_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose encoders share a space."""
    return save(pairs, shared_encoder_folder, tmp_path_factory)


def save(pairs: list[Pair], encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "pack"
    fitted = ReCap.fit(pairs, encoder=f"onnx:{encoder}", language_model="none", source="walls", method="ols")
    fitted.save_pretrained(folder)
    return folder


@pytest.fixture
def serve(pack: Path) -> Iterator[Serve]:
    """Starts the application in this process, with a captioner of its own."""
    with ExitStack() as stack:

        def start(folder: Path = pack, captioner: ReCap | None = None, **config: object) -> TestClient:
            # starting processes takes longer than most tests; test_process and test_decoding do it
            chosen = ServerConfig(**{"decode_apart": False, **config})  # type: ignore[arg-type]
            app = create_app(captioner or ReCap.from_pretrained(folder), chosen)
            return stack.enter_context(TestClient(app, base_url="http://localhost", raise_server_exceptions=False))

        yield start


@pytest.fixture(scope="session")
def red(new_pictures: dict[str, Path]) -> bytes:
    return new_pictures["red"].read_bytes()
