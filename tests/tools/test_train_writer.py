"""The recipe of the writer: what it learns from, on small data made here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

TOOLS = Path(__file__).parents[2] / "tools"
TEXTS = ["a dog runs", "a cat sleeps", "a red ball", "two dogs run"]


@pytest.fixture(scope="module", autouse=True)
def tools() -> Iterator[None]:
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return what ``prepare`` would write of three pictures, the first two of which DINOv2 has looked at."""
    from recap.language.prompt import SPECIAL

    words = [*SPECIAL, *sorted({word for text in TEXTS for word in text.split()})]
    cut = [[words.index(word) for word in text.split()] for text in TEXTS]
    flat, ends = np.array([word for sentence in cut for word in sentence], np.int32), np.cumsum([*map(len, cut)])
    np.savez(tmp_path / "texts.npz", flat=flat, ends=ends)
    (tmp_path / "words.json").write_text(json.dumps({"vocabulary": len(words), "words": words, "texts": TEXTS}))
    np.savez(
        tmp_path / "things.npz",
        queries=np.full((3, 4), 1, np.float16),
        others=np.full((3, 4), 2, np.float16),
        large_queries=np.full((3, 4), 3, np.float16),
        found=np.array([[0, 1]] * 3, np.int32),
        large_found=np.array([[3, 2]] * 3, np.int32),
        own=np.array([[0, -1]] * 3, np.int32),
        closer=np.array([True, True, False]),
    )
    np.save(tmp_path / "things.details.npy", np.ones((3, 6), np.float16))
    np.save(tmp_path / "things.patches.npy", np.full((3, 3), 5, np.float16))
    return tmp_path


def test_what_dinov2_saw_comes_with_its_own_point_and_captions(folder: Path) -> None:
    from writer.batches import Corpus, Examples, Source

    corpus, source = Corpus(folder), Source.load(folder / "things.npz")
    dogs = corpus.words.index("dogs")

    def seen(row: int, *, large: bool) -> tuple[bool, float, bool]:
        example = Examples(corpus, None, np.random.default_rng(0), large=large).example(source, row)
        return example.closer, float(example.vector[0]), dogs in example.reading.tokens

    assert seen(0, large=True) == (True, 3.0, True)
    assert seen(0, large=False) == (False, 1.0, False)
    assert seen(2, large=True) == (False, 1.0, False), "nobody looked at it with DINOv2"


def test_noise_hides_patches_and_never_shows_them_without_details(folder: Path) -> None:
    from writer.batches import Corpus, Examples, Noise, Source

    corpus, source = Corpus(folder), Source.load(folder / "things.npz")
    quiet = Noise(0, 0, 0, 0, 0, 0, 0, no_patches=0)

    def drawn(noise: object) -> list[tuple[bool, bool]]:
        examples = Examples(corpus, noise, np.random.default_rng(0))
        return [(example.seen, example.closer) for example in (examples.example(source, 0) for _ in range(40))]

    assert set(drawn(quiet)) == {(True, True)}
    assert set(drawn(replace(quiet, no_patches=1))) == {(True, False)}
    assert set(drawn(replace(quiet, no_details=1))) == {(False, False)}
    assert set(drawn(replace(quiet, no_patches=0.5))) == {(True, True), (True, False)}


def test_a_batch_is_remembered_as_its_pictures_are_alone(folder: Path) -> None:
    from writer.batches import Corpus, Examples, Source, collate
    from writer.model import Shape, Writer
    from writer.training import remember

    corpus, source = Corpus(folder), Source.load(folder / "things.npz")
    torch.manual_seed(0)
    shape = Shape(corpus.vocabulary, vector=4, width=16, heads=2, layers=1, places=3, detail=2, patch=1)
    model = Writer(shape).eval()
    torch.nn.init.normal_(model.patch.weight)
    examples = Examples(corpus, None, np.random.default_rng(0))
    made = [examples.example(source, row) for row in range(3)]
    with torch.no_grad():
        together = remember(model, collate(made, shape.front))
        alone = [remember(model, collate([example], shape.front))[0] for example in made]
    for row, one in zip(together, alone, strict=True):
        torch.testing.assert_close(row[: len(one)], one, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together[1, 4], together[2, 4]), "the third was not looked at with DINOv2"
