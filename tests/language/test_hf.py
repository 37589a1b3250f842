from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recap.errors import AssetError, InputError
from recap.language import load_language_model
from recap.language.base import Decoding, LanguageModel, PromptTooLongError, uniforms
from recap.language.hf import HuggingFaceModel
from recap.types import Draft, Prompt

KINDS = ["t5", "gpt2", "gptj", "llama"]
TEXTS = [
    "Similar images show: a dog on the beach This image shows:",
    "A cat",
    "Similar images show: two children in the park, a woman in a red coat, an old man This image shows:",
]
PROMPTS = [Prompt(text, ()) for text in TEXTS]
SAMPLED = Decoding(samples=4, temperature=0.8, top_k=0, top_p=0.9, max_tokens=12, seed=5)


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Any:
    return load_language_model(f"hf:{model_folder(request.param)}")


@pytest.fixture(params=["t5", "gpt2"])
def int8_model(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Any:
    return load_language_model(f"hf-int8:{model_folder(request.param)}")


def _naive(model: Any, torch: Any, text: str, decoding: Decoding, sample: int) -> tuple[Draft, str]:
    """Write one sentence with a whole forward pass for every token: no cache, no batch, no padding.

    The second value says what ended it.
    """
    prompt = model.tokenizer(text).input_ids
    sentence: list[int] = []
    total = 0.0
    reason = "length"
    for step in range(decoding.max_tokens):
        if model.seq2seq:
            out = model.model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *sentence]]))
        else:
            out = model.model(input_ids=torch.tensor([prompt + sentence]))
        logits = out.logits[0, -1].detach().double().numpy()
        logprobs = logits - np.logaddexp.reduce(logits)
        token = _choose(logprobs, decoding, float(uniforms(decoding, text)[step, sample]))
        if token == 1:
            reason = "end"
            break
        if model.tokenizer.decode([token]) == "\n":
            reason = "newline"
            break
        sentence.append(token)
        total += logprobs[token]
    return Draft(model.tokenizer.decode(sentence, skip_special_tokens=True).strip(), total), reason


def _choose(logprobs: np.ndarray, decoding: Decoding, uniform: float) -> int:
    if decoding.temperature == 0:
        return int(logprobs.argmax())
    p = np.exp(logprobs / decoding.temperature)
    order = np.argsort(-p, kind="stable")[: decoding.top_k or None]
    p = p[order] / p[order].sum()
    p[np.cumsum(p) - p >= decoding.top_p] = 0
    return int(order[np.searchsorted(np.cumsum(p / p.sum()), uniform, side="right")])


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(temperature=0, max_tokens=12),
        SAMPLED,
        Decoding(samples=3, temperature=1.2, top_k=5, top_p=0.8, max_tokens=12),
        Decoding(samples=3, temperature=1.0, top_k=0, top_p=1.0, max_tokens=12, seed=9),
    ],
)
def test_equals_a_naive_loop_without_cache_batch_or_padding(model: Any, torch: Any, decoding: Decoding) -> None:
    drafts = model.write(PROMPTS, decoding)
    for text, written in zip(TEXTS, drafts, strict=True):
        assert len(written) == (1 if decoding.temperature == 0 else decoding.samples)
        for sample, draft in enumerate(written):
            expected, _ = _naive(model, torch, text, decoding, sample)
            assert draft.text == expected.text
            assert draft.logprob == pytest.approx(expected.logprob, abs=1e-3)


def test_a_sentence_ends_at_the_end_token_at_a_newline_or_at_its_length(
    model_folder: Callable[[str], Path], torch: Any
) -> None:
    model: Any = load_language_model(f"hf:{model_folder('gptj')}")
    decoding = Decoding(samples=24, temperature=1.0, top_p=1.0, max_tokens=8)
    reasons = set()
    for sample, draft in enumerate(model.write(PROMPTS[:1], decoding)[0]):
        expected, reason = _naive(model, torch, TEXTS[0], decoding, sample)
        assert draft.text == expected.text
        assert draft.logprob == pytest.approx(expected.logprob, abs=1e-3)
        reasons.add(reason)
    assert reasons == {"end", "newline", "length"}


def test_greedy_equals_generate(model: Any, torch: Any) -> None:
    for prompt in PROMPTS:
        ids = torch.tensor([model.tokenizer(prompt.text).input_ids])
        mask = torch.ones_like(ids)
        out = model.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12)[0]
        new = out if model.seq2seq else out[ids.shape[1] :]
        text = model.tokenizer.decode(new, skip_special_tokens=True).split("\n")[0].strip()
        assert model.write([prompt], Decoding(temperature=0, max_tokens=12))[0][0].text == text


def test_samples_in_int8_follow_the_distribution_of_transformers(int8_model: Any, torch: Any) -> None:
    """First tokens: as often as the nucleus that ``generate`` cuts out of the float32 model's logits says."""
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    model, reference = int8_model, HuggingFaceModel(int8_model._source)
    ids = torch.tensor([reference.tokenizer(TEXTS[0]).input_ids])
    start = {"decoder_input_ids": torch.tensor([[0]])} if model.seq2seq else {}
    exact, quantized = (m.model(input_ids=ids, **start).logits[:, -1].detach() for m in (reference, model))
    assert 0 < float((exact - quantized).abs().mean()) < 0.05 * float(exact.std())
    cut = TopPLogitsWarper(0.9)(None, TemperatureLogitsWarper(0.8)(None, exact))
    expected = cut.softmax(-1)[0].double().numpy()
    drawn: list[int] = []
    model._decode = drawn.append
    decoding = Decoding(samples=3000, temperature=0.8, top_p=0.9, max_tokens=1)
    model._extend = lambda sentence, token, logprob: sentence.tokens.append(token)
    model.write(PROMPTS[:1], decoding)
    seen = np.bincount([token for (token,) in drawn], minlength=len(expected)) / len(drawn)  # type: ignore[misc]
    assert np.abs(seen - expected).sum() / 2 < 0.06, "total variation"
    assert seen[expected == 0].sum() < 0.02


def test_neighbours_in_the_batch_change_nothing(model: Any) -> None:
    together = model.write(PROMPTS, SAMPLED)
    alone = [model.write([prompt], SAMPLED)[0] for prompt in PROMPTS]
    for left, right in zip(together, alone, strict=True):
        assert [d.text for d in left] == [d.text for d in right]
        assert [d.logprob for d in left] == pytest.approx([d.logprob for d in right], abs=1e-4)


def test_neighbours_in_the_batch_change_nothing_in_int8(int8_model: Any) -> None:
    assert int8_model.write(PROMPTS, SAMPLED) == [int8_model.write([prompt], SAMPLED)[0] for prompt in PROMPTS]


def test_the_seed_decides(model: Any) -> None:
    other = Decoding(samples=4, temperature=0.8, max_tokens=12, seed=6)
    assert model.write(PROMPTS, SAMPLED) == model.write(PROMPTS, SAMPLED)
    assert model.write(PROMPTS, SAMPLED) != model.write(PROMPTS, other)
    assert len({draft.text for draft in model.write(PROMPTS[:1], SAMPLED)[0]}) > 1


def test_other_weights_have_another_fingerprint(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model: Any = load_language_model(f"hf:{model_folder('gpt2')}")
    assert load_language_model(f"hf-int8:{model_folder('gpt2')}").fingerprint != model.fingerprint  # type: ignore[union-attr]
    weights = next(model.model.parameters())
    copy = load_language_model(f"hf:{shutil.copytree(model._source, tmp_path / 'copy')}")
    assert copy.fingerprint == model.fingerprint  # type: ignore[union-attr]
    next(copy.model.parameters()).data = weights + 1  # type: ignore[union-attr]
    copy.model.save_pretrained(tmp_path / "copy")  # type: ignore[union-attr]
    other = load_language_model(f"hf:{tmp_path / 'copy'}")
    assert other.fingerprint != model.fingerprint  # type: ignore[union-attr]


def test_more_prompts_than_a_batch_come_back_in_order(model_folder: Callable[[str], Path], monkeypatch: Any) -> None:
    model = load_language_model(f"hf:{model_folder('gpt2')}")
    assert model is not None
    whole = model.write(PROMPTS, SAMPLED)
    monkeypatch.setattr("recap.language.hf.BATCH_ROWS", 5)
    assert [[d.text for d in row] for row in model.write(PROMPTS, SAMPLED)] == [[d.text for d in row] for row in whole]
    assert model.write([], SAMPLED) == []


def test_a_prompt_that_does_not_fit_is_an_error(model_folder: Callable[[str], Path]) -> None:
    long = Prompt("dog " * 300, ())
    model = load_language_model(f"hf:{model_folder('gpt2')}")
    assert isinstance(model, LanguageModel)
    with pytest.raises(PromptTooLongError, match=r"the prompt has \d+ tokens where hf:.* has room for 244"):
        model.write([PROMPTS[0], long], SAMPLED)
    with pytest.raises(InputError, match="empty"):
        model.write([Prompt("", ())], SAMPLED)
    relative = load_language_model(f"hf:{model_folder('t5')}")
    assert relative is not None
    assert len(relative.write([long], SAMPLED)[0]) == 4


def test_a_folder_that_is_none(tmp_path: Path, torch: Any) -> None:
    with pytest.raises(AssetError, match="could not be loaded as a language model"):
        load_language_model(f"hf:{tmp_path}")
