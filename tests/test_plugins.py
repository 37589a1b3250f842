"""A package of somebody else, installed beside recap: its encoder, language model and metric are chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from recap.cli.info import info
from recap.encoders import load_encoder
from recap.errors import UnknownNameError
from recap.language import Decoding, load_language_model
from recap.metrics import evaluate
from recap.types import Prompt

SOURCE = '''
"""Mean colours as vectors, and a model that repeats the first caption it is shown."""
import numpy as np
from recap.encoders import EncoderInfo
from recap.encoders.network import SingleImageEncoder
from recap.encoders.preprocess import Preprocess
from recap.language import LanguageModelInfo
from recap.metrics import MetricResult
from recap.metrics.registry import Metric
from recap.types import Draft


def count_words(judge):
    lengths = judge.corpus.words.lengths.astype(float)
    return MetricResult("", lengths.mean(), lengths, 0.0)


class Colours(SingleImageEncoder):
    def __init__(self, options):
        super().__init__(preprocessing=Preprocess(size=8, mean=(0, 0, 0), std=(1, 1, 1)), name="colours",
                         fingerprint="c0" * 32, dimension=3, batch_size=4, cache=options.cache)

    def forward(self, batch):
        return batch.mean(axis=(2, 3))


class Parrot:
    completes = False

    def __init__(self, word, *, device, threads):
        self.name, self._word = f"parrot:{word}", word

    def write(self, prompts, decoding):
        return [[Draft(f"{self._word} {prompt.captions[0]}", -1.0)] * decoding.sentences for prompt in prompts]


COLOURS = EncoderInfo("colours", "mean colours", (3, None), image=Colours, licence="MIT")
LENGTH = Metric("length", "words a caption", "Length", count_words)
PARROT = LanguageModelInfo("parrot:WORD", "says it again", "toolbox:Parrot", extra="zoo", requires=("no_such_zoo",))
'''
POINTS = {
    "recap.encoders": {"colours": "toolbox:COLOURS"},
    "recap.language_models": {"parrot": "toolbox:PARROT"},
    "recap.metrics": {"length": "toolbox:LENGTH"},
}


@pytest.fixture(autouse=True)
def _installed(install_package: Callable[..., None]) -> None:
    install_package("toolbox", SOURCE, POINTS)


def test_the_encoder_is_one_like_any_other(encoder_folder: Path, new_pictures: dict[str, Path]) -> None:
    encoder = load_encoder(f"colours+colours@views,onnx:{encoder_folder}")
    assert encoder.name == f"colours+colours@views,onnx:{encoder_folder}"
    red, blue = encoder.encode_images([new_pictures["red"], new_pictures["blue"]])
    assert red[:3].argmax() == red[3:].argmax() == 0
    assert blue[:3].argmax() == 2
    with pytest.raises(UnknownNameError, match=r"unknown encoder 'colors'; did you mean colours\?"):
        load_encoder("colors,minilm")


def test_the_language_model_is_one_like_any_other() -> None:
    model = load_language_model("parrot:hello")
    assert model is not None
    drafts = model.write([Prompt("", ["a red wall"])], Decoding(samples=2))
    assert [draft.text for draft in drafts[0]] == ["hello a red wall"] * 2


def test_the_metric_is_one_like_any_other() -> None:
    report = evaluate(["a dog runs", "a cat"], [["a dog"], ["a cat"]], metrics="length,rouge-l")
    assert [row.name for row in report] == ["Length", "ROUGE-L"]
    assert next(row.value for row in report) == 2.5


def test_all_are_shown() -> None:
    shown = CliRunner().invoke(info).output
    assert "mean colours" in shown
    assert "words a caption" in shown
    assert "[zoo]'" in shown
