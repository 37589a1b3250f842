"""Metrics in training loops, with torchmetrics' base class and with ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recap.errors import InputError
from recap.metrics import bleu, chair, cider_d, rouge_l

torch = pytest.importorskip("torch")

from recap.metrics.torch import Bleu, CaptionMetric, Chair, CiderD, RougeL  # noqa: E402

CAPTIONS = ["a dog runs in the snow", "a cat on a sofa", "two men play ball", "a red bus"]
REFERENCES = [
    ["a dog in the snow", "the dog runs"],
    ["a cat lies on a couch"],
    ["men play football", "two men with a ball"],
    ["a bus in the street", "a red double decker bus"],
]


def loop(metric: CaptionMetric, size: int = 2) -> float:
    """What a training loop does in one epoch."""
    metric.reset()
    for start in range(0, len(CAPTIONS), size):
        metric.update(CAPTIONS[start : start + size], REFERENCES[start : start + size])
    return float(metric.compute())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (CiderD(), cider_d(CAPTIONS, REFERENCES)),
        (RougeL(), rouge_l(CAPTIONS, REFERENCES)),
        (Bleu(2), bleu(CAPTIONS, REFERENCES)[1]),
        (Chair(), chair(CAPTIONS, REFERENCES)),
    ],
)
def test_batches_add_up_to_what_the_function_says_of_all(metric, expected):
    assert loop(metric) == loop(metric, size=1) == pytest.approx(expected.value)


def test_a_step_gives_the_value_of_its_batch_and_an_epoch_that_of_all():
    metric = RougeL()
    step = metric(CAPTIONS[:1], REFERENCES[:1])
    assert float(step) == pytest.approx(rouge_l(CAPTIONS[:1], REFERENCES[:1]).value)
    metric(CAPTIONS[1:], REFERENCES[1:])
    assert float(metric.compute()) == pytest.approx(rouge_l(CAPTIONS, REFERENCES).value)
    metric.reset()
    with pytest.raises(InputError, match="call update first"):
        metric.compute()


def test_single_captions_and_single_references():
    metric = RougeL()
    metric.update("a cat on a sofa", ["a cat on a sofa"])
    metric.update(["a dog"], ["a dog"])
    assert float(metric.compute()) == pytest.approx(1.0)
    with pytest.raises(InputError, match="2 captions but references of 1"):
        metric.update(["a", "b"], ["a"])


def test_metrics_live_in_a_module_and_move_with_it():
    model = torch.nn.Module()
    model.add_module("metric", CiderD())
    model.to("cpu").eval()
    assert loop(model.metric) == pytest.approx(cider_d(CAPTIONS, REFERENCES).value)


@pytest.mark.parametrize("hidden", [True, False])
def test_with_torchmetrics_and_without(hidden: bool):
    code = f"""
import sys
if {hidden}: sys.modules["torchmetrics"] = None
from recap.metrics.torch import RougeL, Base
print(Base.__module__.partition(".")[0])
metric = RougeL()
metric.update(["a cat"], [["a cat"]])
print(float(metric.compute()))
if not {hidden}:
    from torchmetrics import MetricCollection
    both = MetricCollection({{"rouge": RougeL(), "again": RougeL()}})
    both.update(["a cat"], [["a cat"]])
    print(sorted(both.compute()))
"""
    if not hidden:
        pytest.importorskip("torchmetrics")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == ["recap" if hidden else "torchmetrics", "1.0"]
