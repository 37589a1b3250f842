from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recap.errors import AssetError, InputError
from recap.language import load_language_model
from recap.language.base import Decoding
from recap.language.ct2 import convert_to_ct2
from recap.types import Prompt

PROMPTS = [
    Prompt(text, ())
    for text in ("Similar images show: a dog on the beach This image shows:", "A cat", "Two children in the park")
]
SAMPLED = Decoding(samples=6, temperature=0.8, top_p=0.9, max_tokens=12, seed=5)


@pytest.fixture(scope="module")
def folder(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ctranslate2")
    return convert_to_ct2(model_folder("t5"), tmp_path_factory.mktemp("ct2") / "model", "float32")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_language_model(f"ct2:{folder}", threads=1)


def test_greedy_equals_transformers(model: Any, model_folder: Callable[[str], Path]) -> None:
    reference = load_language_model(f"hf:{model_folder('t5')}")
    assert reference is not None
    greedy = Decoding(temperature=0, max_tokens=20)
    for ours, theirs in zip(model.write(PROMPTS, greedy), reference.write(PROMPTS, greedy), strict=True):
        assert [d.text for d in ours] == [d.text for d in theirs]
        assert [d.logprob for d in ours] == pytest.approx([d.logprob for d in theirs], abs=1e-3)


def test_drafts_depend_on_prompt_and_seed_only(model: Any, folder: Path) -> None:
    forwards = model.write(PROMPTS, SAMPLED)
    model.write(PROMPTS[:1], Decoding(temperature=0))
    assert model.write(PROMPTS[::-1], SAMPLED)[::-1] == forwards
    other = load_language_model(f"ct2:{folder}", threads=2)
    assert other is not None
    assert other.write(PROMPTS[1:2], SAMPLED) == forwards[1:2]
    assert [len(row) for row in forwards] == [6, 6, 6]
    assert len({d.text for d in forwards[0]}) > 1
    assert model.write(PROMPTS, Decoding(samples=6, temperature=0.8, top_p=0.9, max_tokens=12, seed=6)) != forwards


def test_samples_follow_the_distribution_of_transformers(
    model: Any, model_folder: Callable[[str], Path], torch: Any
) -> None:
    """First tokens: none outside the nucleus of the top k at this temperature, and each as often as it should be."""
    reference: Any = load_language_model(f"hf:{model_folder('t5')}")
    ids = torch.tensor([reference.tokenizer(PROMPTS[0].text).input_ids])
    logits = reference.model(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, -1].detach().double()
    logprobs = logits.log_softmax(-1)
    values, tokens = (logprobs / 0.7).topk(8)
    p = values.softmax(-1).numpy()
    p[np.cumsum(p) - p >= 0.8] = 0
    p /= p.sum()
    count = 2000
    decoding = Decoding(samples=count, temperature=0.7, top_k=8, top_p=0.8, max_tokens=1)
    drafts = model.write(PROMPTS[:1], decoding)[0]
    seen = np.array([[abs(d.logprob - float(logprobs[token])) < 1e-4 for token in tokens] for d in drafts])
    assert (seen.sum(1) == 1).all(), "a token outside the top k, or a log-probability after temperature"
    error = np.sqrt(p * (1 - p) / count)
    assert (np.abs(seen.mean(0) - p) <= 4.5 * error).all()


def test_int8_is_smaller_and_writes(folder: Path, model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    small = convert_to_ct2(model_folder("t5"), tmp_path / "new" / "int8")
    assert (small / "model.bin").stat().st_size < 0.6 * (folder / "model.bin").stat().st_size
    model = load_language_model(f"ct2:{small}")
    assert model is not None
    assert len(model.write(PROMPTS, SAMPLED)) == 3


def test_quantized_weights_have_another_fingerprint(
    folder: Path, model: Any, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    small = load_language_model(f"ct2:{convert_to_ct2(model_folder('t5'), tmp_path / 'int8')}")
    again = load_language_model(f"ct2:{folder}")
    assert small is not None
    assert again is not None
    assert again.fingerprint == model.fingerprint != small.fingerprint


def test_a_conversion_that_fails_leaves_nothing(
    model_folder: Callable[[str], Path], tmp_path: Path, folder: Path
) -> None:
    with pytest.raises(InputError, match="sequence-to-sequence"):
        convert_to_ct2(model_folder("gpt2"), tmp_path / "out")
    with pytest.raises(InputError, match="unknown quantization"):
        convert_to_ct2(model_folder("t5"), tmp_path / "out", "int3")
    with pytest.raises(AssetError, match="could not be converted"):
        convert_to_ct2(tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="exists already"):
        convert_to_ct2(model_folder("t5"), folder)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    with pytest.raises(AssetError, match="recap convert"):
        load_language_model(f"ct2:{tmp_path}")
