"""A tiny GPT-2 with a tokenizer of its own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

CAPTIONS = [
    "a brown dog runs over the grass.",
    "two children play football in the park.",
    "a woman in a red coat rides a bicycle.",
    "a cat sleeps beside the window.",
]


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
