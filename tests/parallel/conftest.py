from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recap.captioner import ReCap
from recap.encoders import Encoder, load_encoder
from recap.parallel.runners import Runner
from recap.types import Pair


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Encoder:
    return load_encoder(f"onnx:{encoder_folder}")


@pytest.fixture(scope="session")
def pack_folder(pairs: list[Pair], encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "walls"
    ReCap.fit(pairs, encoder=encoder, language_model=None, method="ols").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Runner]:
    """A Ray of two cores in processes of its own, started once."""
    ray = pytest.importorskip("ray")
    from recap.parallel.ray import RayRunner

    yield RayRunner("local", cpus=2)
    ray.shutdown()


@pytest.fixture(scope="session")
def same_pairs(
    pairs: list[Pair], pairs_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The pairs of ``pairs_folder`` as a file of any kind."""
    folder = tmp_path_factory.mktemp("kinds")

    def make(kind: str) -> Path:
        if kind == "folder":
            return pairs_folder
        path = folder / f"pairs.{kind}"
        if kind == "jsonl":
            lines = [json.dumps({"image": str(pair.image), "captions": pair.captions}) for pair in pairs]
            path.write_text("\n".join(lines))
        elif kind == "parquet":
            images = [{"bytes": Path(str(pair.image)).read_bytes(), "path": pair.id} for pair in pairs]
            table = pyarrow.table({"image": images, "captions": [list(pair.captions) for pair in pairs]})
            pyarrow.parquet.write_table(table, path)
        else:
            with tarfile.open(path, "w") as archive:
                for pair in pairs:
                    add_file(archive, pair.id, Path(str(pair.image)).read_bytes())
                    add_file(archive, f"{Path(pair.id).stem}.txt", "\n".join(pair.captions).encode())
        return path

    return make


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
