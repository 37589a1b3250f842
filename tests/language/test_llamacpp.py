from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recap.errors import AssetError
from recap.language import load_language_model
from recap.language.base import Decoding, PromptTooLongError
from recap.types import Prompt

EXAMPLES = "Similar images show: a cat\nThis image shows: A cat sleeps on a sofa.\n\n"
PROMPTS = [
    Prompt(text, ())
    for text in (
        EXAMPLES + "Similar images show: a dog on the beach\nThis image shows:",
        EXAMPLES + "Similar images show: two children\nThis image shows:",
        "A woman in a red coat",
        EXAMPLES + "Similar images show: two children in the park\nThis image shows:",
    )
]
SAMPLED = Decoding(samples=6, temperature=0.8, top_p=0.9, max_tokens=12, seed=5)


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Turn rows from the rotary layout of transformers (halves) into that of llama.cpp (pairs)."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_gguf(folder: Path, path: Path) -> None:
    """Write the tiny Llama of a folder as a GGUF file."""
    import gguf
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(config.vocab_size)))
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (config.vocab_size - 3))
    writer.add_token_merges([" ".join(pair) for pair in _merges(tokenizer)])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if "q_proj" in name:
            values = _permuted(values, config.num_attention_heads)
        if "k_proj" in name:
            values = _permuted(values, config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merges(tokenizer: Any) -> list[list[str]]:
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]


@pytest.fixture(scope="module")
def path(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(model_folder("llama"), path)
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return load_language_model(f"llamacpp:{path}", threads=1)


def test_greedy_equals_transformers(model: Any, model_folder: Callable[[str], Path]) -> None:
    reference = load_language_model(f"hf:{model_folder('llama')}")
    assert reference is not None
    greedy = Decoding(temperature=0, max_tokens=20)
    for ours, theirs in zip(model.write(PROMPTS, greedy), reference.write(PROMPTS, greedy), strict=True):
        assert [d.text for d in ours] == [d.text for d in theirs]
        assert [d.logprob for d in ours] == pytest.approx([d.logprob for d in theirs], abs=0.05)


def test_drafts_depend_on_prompt_and_seed_only(model: Any, path: Path) -> None:
    forwards = model.write(PROMPTS, SAMPLED)
    assert model.write(PROMPTS[::-1], SAMPLED)[::-1] == forwards
    assert [model.write([p, p], SAMPLED)[1] for p in PROMPTS] == forwards
    other = load_language_model(f"llamacpp:{path}", threads=1)
    assert other is not None
    assert other.write(PROMPTS[1:2], SAMPLED) == forwards[1:2]
    assert [len(row) for row in forwards] == [6, 6, 6, 6]
    assert len({d.text for d in forwards[0]}) > 1
    assert model.write(PROMPTS, Decoding(samples=6, temperature=0.8, top_p=0.9, max_tokens=12, seed=6)) != forwards


def test_samples_follow_the_distribution_of_transformers(
    model: Any, model_folder: Callable[[str], Path], torch: Any
) -> None:
    """First tokens: none outside the nucleus of the top k at this temperature, and each as often as it should be."""
    reference: Any = load_language_model(f"hf:{model_folder('llama')}")
    text = "A brown dog"
    ids = torch.tensor([reference.tokenizer(text).input_ids])
    logprobs = reference.model(input_ids=ids).logits[0, -1].detach().double().log_softmax(-1)
    values, tokens = (logprobs / 0.7).topk(8)
    p = values.softmax(-1).numpy()
    p[np.cumsum(p) - p >= 0.8] = 0
    p /= p.sum()
    count = 640
    drafts = model.write([Prompt(text, ())], Decoding(samples=count, temperature=0.7, top_k=8, top_p=0.8, max_tokens=1))
    distance = np.abs(np.array([[d.logprob] for d in drafts[0]]) - logprobs[tokens].numpy())
    assert distance.min(1).max() < 5e-3, "a token outside the top k, or a log-probability after temperature"
    seen = np.arange(8) == distance.argmin(1)[:, None]
    error = np.sqrt(p * (1 - p) / count)
    assert (np.abs(seen.mean(0) - p) <= 4.5 * error).all()


def test_another_file_has_another_fingerprint(model: Any, path: Path, tmp_path: Path) -> None:
    moved, other = (tmp_path / name / path.name for name in ("moved", "other"))
    for target in (moved, other):
        target.parent.mkdir()
        shutil.copy(path, target)
    with other.open("ab") as file:
        file.write(b"more")
    for copy, equal in ((moved, True), (other, False)):
        loaded = load_language_model(f"llamacpp:{copy}")
        assert loaded is not None
        assert (loaded.fingerprint == model.fingerprint) is equal
        loaded.write(PROMPTS[:1], SAMPLED)  # a server that has not answered yet does not end


def test_a_prompt_that_does_not_fit_is_an_error(model: Any) -> None:
    with pytest.raises(PromptTooLongError) as caught:
        model.write([Prompt("dog " * 500, ())], SAMPLED)
    assert caught.value.tokens > caught.value.room == 256
    with pytest.raises(PromptTooLongError):
        model.write([Prompt("q" * 240, ())], Decoding(temperature=0, max_tokens=100))


def test_its_port_is_locked(model: Any) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{model._server.listening_address}/v1/models", timeout=5)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="there is no GGUF file"):
        load_language_model(f"llamacpp:{tmp_path / 'absent.gguf'}")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(AssetError, match="complete GGUF file"):
        load_language_model(f"llamacpp:{broken}")
