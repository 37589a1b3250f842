"""The recipe of the eyes, on small data made here."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module", autouse=True)
def tools() -> Iterator[None]:
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def unit(rows: int, seed: int) -> object:
    vectors = torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=-1)


def test_pairs_that_mean_the_same_are_no_negatives() -> None:
    from eyes.training import contrast

    images, texts, scale = unit(5, 0), unit(5, 1), torch.tensor(2.0)
    meanings = ["a", "b", "a", "c", "d"]
    logits = (scale.exp() * images @ texts.T).numpy()
    losses = []
    for row in range(5):
        others = [column for column in range(5) if column == row or meanings[column] != meanings[row]]
        lines = (logits[row], logits[:, row])
        losses += [np.log(np.exp(line[others]).sum()) - line[row] for line in lines]
    assert contrast(images, texts, scale, meanings).item() == pytest.approx(np.mean(losses), rel=1e-5)


def test_recall_is_counted_both_ways() -> None:
    from eyes.training import recall

    texts = torch.eye(24)
    images = torch.eye(24)[::2] * 2 + 0.5 * torch.eye(24)[1::2]
    owners = torch.arange(24) // 2
    assert recall(images, texts, owners)["i2t"] == [100.0, 100.0, 100.0]
    wrong = recall(images.roll(1, 0), texts, owners)
    assert wrong["i2t"][0] == 0
    assert wrong["t2i"][0] == 0


def test_pooling_does_not_see_padding() -> None:
    from eyes.model import SPACE, Pool

    torch.manual_seed(0)
    pool = Pool(8).eval()
    torch.nn.init.normal_(pool.found.weight)
    tokens = torch.randn(2, 5, 8)
    padded = torch.cat([tokens, torch.full((2, 3, 8), 9.0)], 1)
    mask = torch.tensor([[1.0] * 5 + [0.0] * 3] * 2)
    plain, masked = pool(tokens), pool(padded, mask)
    assert plain.shape == (2, SPACE)
    torch.testing.assert_close(plain, masked, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(plain.norm(dim=-1), torch.ones(2))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("wall clock", "a wall clock"), ("airplane", "an airplane"), ("drums", "drums"), ("glass", "a glass")],
)
def test_names_become_sentences(name: str, expected: str) -> None:
    from eyes.sources import sentences, with_article

    assert with_article(name) == expected
    assert sentences(expected, ("a photo of {}",)) == (f"a photo of {expected}",)


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def mirror(tmp_path: Path) -> object:
    """Return a mirror with one repository of four pictures, two of each name."""
    from eyes.sources import Mirror

    work = tmp_path / "mirror" / "owner+things" / "repo"
    for name, colour in (("red_wall", "red"), ("dogs", "blue")):
        (work / "train" / name).mkdir(parents=True)
        for number in range(2):
            (work / "train" / name / f"{number}.png").write_bytes(png(Image.new("RGB", (20 + number, 16), colour)))
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "pictures"]):
        subprocess.run(["git", *command], cwd=work, check=True)
    return Mirror(tmp_path / "mirror")


def test_named_pictures_of_a_repository(mirror: object) -> None:
    from eyes.sources import Named, load, named, plain, read_blobs, save, with_article

    kind = Named("things", "owner+things", r"train/([^/]+)/", 1, spell=lambda name: with_article(plain(name)))
    records = named(mirror, kind)
    assert sorted(record.captions[1] for record in records) == ["a red wall", "dogs"]
    directory = mirror.directory("owner+things")  # type: ignore[attr-defined]
    first, missing = read_blobs(directory, [records[0].blob, "0" * 40])
    assert Image.open(io.BytesIO(first)).size[1] == 16
    assert missing == b""
    path = directory.parent.parent / "records.jsonl"
    save(records, path)
    assert load(path) == records


def test_white_borders_are_cut_off_and_colours_put_right() -> None:
    from eyes.maps import repaired
    from eyes.sources import Record

    whole = Image.new("RGB", (40, 40), "white")
    whole.paste(Image.new("RGB", (40, 26), "red"), (0, 7))
    cut = repaired(png(whole), Record("x", "x", "x", "x", (), fix="letterbox"))
    assert cut.size == (40, 26)
    swapped = repaired(png(Image.new("RGB", (4, 4), "red")), Record("x", "x", "x", "x", (), fix="swapped"))
    assert swapped.getpixel((0, 0)) == (0, 0, 255)


def test_maps_are_kept_in_shards_that_can_be_continued(
    tmp_path: Path, mirror: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx
    from eyes import data, maps
    from eyes.sources import Named, Record, named
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("AveragePool", ["input"], ["output"], kernel_shape=[16, 16], strides=[16, 16])],
        "mean",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 3, 14, 14])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    monkeypatch.setattr(maps, "SHARD", 2)
    monkeypatch.setattr(data, "SHARD", 2)
    monkeypatch.setattr(maps, "SHAPE", (3, 14, 14))
    records = named(mirror, Named("things", "owner+things", r"train/([^/]+)/", 2))
    records.append(Record("things", "gone", "owner+things", "0" * 40, ("a thing",)))
    for part in (1, 0, 1):
        maps.extract(records, mirror, tmp_path / "maps", tmp_path / "m.onnx", part, 2)
    pictures = data.Pictures(tmp_path / "maps")
    assert pictures.there().tolist() == [0, 1, 2, 3]
    seen = pictures.maps(np.array([3, 0]))
    assert seen.shape == (2, 3, 14, 14)
    assert seen[0, 0].mean() > seen[1, 0].mean()  # "red_wall" comes after "dogs"


def test_sentences_of_like_length_are_embedded_together_in_order(tmp_path: Path) -> None:
    from eyes.data import Texts
    from eyes.training import embed_texts

    lengths = [3, 1, 4, 2]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    np.save(tmp_path / "text_offsets.npy", ends)
    np.save(tmp_path / "text_tokens.npy", np.arange(ends[-1] * 2, dtype=np.float16).reshape(-1, 2))
    (tmp_path / "texts.json").write_text(json.dumps(["one", "two", "three", "four"]))

    class Means:
        @staticmethod
        def text(tokens: object, mask: object) -> object:
            return (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # type: ignore[index, attr-defined]

    texts = Texts(tmp_path)
    found = embed_texts(Means(), texts, [2, 0, 3, 1], chunk=2)
    tokens = np.arange(ends[-1] * 2).reshape(-1, 2)
    expected = [tokens[ends[row] : ends[row + 1]].mean(0) for row in (2, 0, 3, 1)]
    np.testing.assert_allclose(found.numpy(), expected)
    assert texts.number["three"] == 2


def test_splits_keep_the_test_apart_and_every_set_in_dev() -> None:
    from eyes.data import split
    from eyes.sources import Record

    records = [Record("coco", str(number), "r", "b", ("a",)) for number in range(3000)]
    records += [Record("birds", str(number), "r", "b", ("a",)) for number in range(500)]
    there = np.arange(3500)
    cut = split(records, there, {5, 6})
    assert cut.test.tolist() == [5, 6]
    parts = [set(cut.train), set(cut.test), set(cut.dev["coco"]), set(cut.dev["world"])]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 3500
    assert 20 < len(cut.dev["coco"]) < 100
    assert 5 < len(cut.dev["world"]) < 50


def test_pictures_lose_their_colours_and_keep_their_other_repairs() -> None:
    from eyes.maps import repaired
    from eyes.sources import Record, without_colours

    records = [Record("coco", str(number), "r", "b", ("a",), fix="letterbox") for number in range(20)]
    records += [Record("charts", "1", "r", "b", ("a chart",))]
    made = without_colours(records, 10)
    assert len({record.id for record in made}) == 10
    assert {record.source for record in made} == {"coco"}
    assert {record.fix for record in made} == {"letterbox grey", "letterbox tint"}
    red = png(Image.new("RGB", (6, 6), (200, 30, 40)))
    grey = repaired(red, Record("x", "x", "x", "x", (), fix="grey")).getpixel((0, 0))
    assert len(set(grey)) == 1
    tint = repaired(red, Record("x", "x", "x", "x", (), fix="tint")).getpixel((0, 0))
    assert tint[0] > tint[1] > tint[2]


def test_training_can_begin_with_the_eyes_in_the_package() -> None:
    import onnxruntime
    from eyes.earlier import load_tower
    from eyes.export import FOLDER
    from eyes.model import SPACE, ImageTower

    from recap.assets import fetch

    tower = ImageTower(fetch("tinyvit")).eval()
    maps = torch.randn(2, 160, 14, 14, generator=torch.Generator().manual_seed(3))
    session = onnxruntime.InferenceSession(str(FOLDER / "image.onnx"), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"maps": maps.numpy()})[0][:, :SPACE]
    with torch.no_grad():
        assert np.abs(tower(maps).numpy() - expected).max() > 0.01
        load_tower(tower, FOLDER / "image.onnx")
        np.testing.assert_allclose(tower(maps).numpy(), expected, atol=1e-5)
