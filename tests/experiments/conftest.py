"""A tiny data set in the shape of Flickr8k, and a tiny GPT-2 with a tokenizer of its own."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from recap.types import Pair

CAPTIONS = [
    "a brown dog runs over the grass.",
    "two children play football in the park.",
    "a woman in a red coat rides a bicycle.",
    "a cat sleeps beside the window.",
]

SPLITS = {"train": "01", "dev": "2", "test": "2"}
"""The last digits of the pictures of each split: two of each colour to fit, one to choose and to test with."""


class MakeFlickr8k(Protocol):
    """What ``make_flickr8k`` gives."""

    def __call__(self, home: Path, pairs: Sequence[Pair], splits: Mapping[str, str] = SPLITS) -> Path: ...


@pytest.fixture(scope="session")
def make_flickr8k() -> MakeFlickr8k:
    """Write pairs as Flickr8k is published into ``home``, and return the folder around it."""

    def make(home: Path, pairs: Sequence[Pair], splits: Mapping[str, str] = SPLITS) -> Path:
        (home / "images").mkdir(parents=True)
        for pair in pairs:
            shutil.copy(str(pair.image), home / "images")
        lines = [f"{pair.id}#{number}\t{text}\n" for pair in pairs for number, text in enumerate(pair.captions)]
        (home / "captions.token.txt").write_text("".join(lines))
        for split, digits in splits.items():
            names = [pair.id for pair in pairs if Path(pair.id).stem[-1] in digits]
            (home / f"{split}.txt").write_text("\n".join(names))
        return home.parent

    return make


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, make_flickr8k: MakeFlickr8k, pairs: list[Pair]) -> Path:
    """A folder of data sets with ``flickr8k`` alone. Nobody writes into it."""
    return make_flickr8k(tmp_path_factory.mktemp("data") / "flickr8k", pairs)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def torch() -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if importlib.util.find_spec("torchvision"):
        try:
            importlib.import_module("torchvision")
        except (RuntimeError, ImportError):
            # a torchvision built for another torch: transformers only needs it to be importable
            torch._torchvision_operators = library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.set_num_threads(1)
    return torch


@pytest.fixture
def make_decoder(torch: Any) -> Callable[..., Any]:
    """Return a function that makes a decoder of two layers, always with the same weights."""

    def make(**sizes: int) -> Any:
        from recap.experiments.baselines.decoders import scratch_decoder

        return scratch_decoder(CAPTIONS, **{"layers": 2, "width": 32, "heads": 4, "least": 1, **sizes})

    return make
