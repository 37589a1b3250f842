"""A small world to try every room in: pictures of one colour, captions that name it, and tiny ONNX models."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from recap.captioner import ReCap
from recap.encoders import Encoder, ImageEncoder, load_encoder
from recap.errors import ImageError
from recap.language.words import surface_words
from recap.parallel.runners import Runner
from recap.types import ImageLike, Pair, Vectors

# how long an example takes says something about the machine, not about recap
settings.register_profile("recap", deadline=None)
settings.load_profile("recap")

COLOURS = {
    "red": (220, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 220),
    "yellow": (230, 230, 20),
    "purple": (200, 20, 200),
    "cyan": (20, 210, 210),
}
SAYINGS = ("a {} wall", "the wall is {}", "somebody painted this wall {}")
WORDS = ("[UNK]", "[END]", "a", "the", "wall", "is", "somebody", "painted", "this", *COLOURS)
_SIZE = 8


def _save(path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], weights: np.ndarray) -> None:
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "tiny", inputs, [output], [numpy_helper.from_array(weights, "weights")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ``onnx:FOLDER``, whose images have 4 dimensions and whose texts have 12."""
    return make_encoder(tmp_path_factory.mktemp("encoder"), image_dimension=4)


@pytest.fixture(scope="session")
def shared_encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ``onnx:FOLDER`` with one space for both sides, as CLIP has."""
    return make_encoder(tmp_path_factory.mktemp("shared"), image_dimension=12)


@pytest.fixture(scope="session")
def make_world() -> Callable[[Path, list[str]], Path]:
    """Make a folder for ``onnx:FOLDER`` whose text encoder knows the words of some captions, in any language."""

    def make(folder: Path, captions: list[str]) -> Path:
        words = dict.fromkeys(word for caption in captions for word in surface_words(caption.lower()))
        return make_encoder(folder, image_dimension=4, words=("[UNK]", "[END]", *words), text_dimension=64)

    return make


def make_encoder(folder: Path, image_dimension: int, words: Sequence[str] = WORDS, text_dimension: int = 12) -> Path:
    """Save a pair: the mean colour of a picture, and the mean of the vectors of the words."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, _SIZE, _SIZE])
    means = helper.make_node("ReduceMean", ["pixels"], ["colour"], axes=[2, 3], keepdims=0)
    mixed = helper.make_node("MatMul", ["colour", "weights"], ["output"])
    _save(folder / "image.onnx", [means, mixed], [pixels], np.eye(3, image_dimension, dtype=np.float32))
    names = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids", "attention_mask")
    ]
    vectors = np.random.default_rng(0).standard_normal((len(words), text_dimension)).astype(np.float32)
    _save(folder / "text.onnx", [helper.make_node("Gather", ["weights", "input_ids"], ["output"])], names, vectors)
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    # scripts without spaces are cut into letters, as recap.language.words does
    letters = pre_tokenizers.Split(Regex("[\u3040-\u30ff\u3400-\u9fff]"), "isolated")
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([letters, pre_tokenizers.Whitespace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"image": {"size": _SIZE}, "text": {"max_length": 16, "pooling": "mean"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures of each colour with a ``.txt`` file of three captions."""
    folder = tmp_path_factory.mktemp("pairs")
    for colour, rgb in COLOURS.items():
        for number in range(3):
            paint(folder / f"{colour}{number}.png", rgb, seed=number)
            (folder / f"{colour}{number}.txt").write_text("\n".join(saying.format(colour) for saying in SAYINGS))
    return folder


@pytest.fixture(scope="session")
def new_pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One picture of each colour that nobody has seen."""
    folder = tmp_path_factory.mktemp("new")
    return {colour: paint(folder / f"{colour}.png", rgb, seed=99) for colour, rgb in COLOURS.items()}


@pytest.fixture(scope="session")
def pairs(pairs_folder: Path) -> list[Pair]:
    from recap.datasets import read_pairs

    return read_pairs(pairs_folder)


def paint(path: Path, rgb: tuple[int, int, int], seed: int) -> Path:
    noise = np.random.default_rng(seed).normal(0, 12, (12, 10, 3))
    Image.fromarray(np.clip(noise + rgb, 0, 255).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Encoder:
    return load_encoder(f"onnx:{encoder_folder}")


class Detailed:
    """An image encoder with two more numbers behind each vector: its first two."""

    details, sight = 2, "first two"

    def __init__(self, plain: ImageEncoder) -> None:
        self.plain = plain
        self.name, self.fingerprint, self.dimension = plain.name, plain.fingerprint, plain.dimension

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        return self.plain.encode_images(images, progress=progress)

    def encode_each(self, images: Iterable[ImageLike], *, details: bool = False) -> Iterator[Vectors | ImageError]:
        for row in self.plain.encode_each(images):
            yield np.append(row, row[:2]) if details and not isinstance(row, ImageError) else row


@pytest.fixture(scope="session")
def detailed_encoder(encoder: Encoder) -> Encoder:
    """The encoder, with details for a language model whose ``sight`` is "first two"."""
    return replace(encoder, image=Detailed(encoder.image))


@pytest.fixture(scope="session")
def pack_folder(pairs: list[Pair], encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "walls"
    ReCap.fit(pairs, encoder=encoder, language_model=None, method="ols").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Runner]:
    """A Ray of two cores in processes of its own, started once."""
    ray = pytest.importorskip("ray")
    from recap.parallel.runners import RayRunner

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


@pytest.fixture
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which a server of this machine shows its files."""
    folder = tmp_path_factory.mktemp("web")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package of one module with entry points, as pip would, for one test."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(module: str, source: str, points: dict[str, dict[str, str]]) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put
