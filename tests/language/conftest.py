"""Tiny random models with a real tokenizer, saved as a user would have them on disk."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CORPUS = [
    "A brown dog runs across the green grass with a ball in its mouth.",
    "Two children play football in the park.",
    "A woman in a red coat rides a bicycle down the street.",
    "A cat sleeps on a sofa beside the window.\nAn old man reads the newspaper.",
    "Similar images show: a dog on the beach, a dog in the sea This image shows: a wet dog.\n\n",
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


@pytest.fixture(scope="session")
def bpe() -> Any:
    """A byte-level BPE, as GPT-2 has it; ids 0 to 2 are special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _config(kind: str, size: int) -> Any:
    import transformers as t

    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    if kind == "t5":
        return t.T5Config(
            vocab_size=size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
            tie_word_embeddings=False, decoder_start_token_id=0, dropout_rate=0.0, **(ends | {"bos_token_id": 0}),
        )  # fmt: skip
    if kind == "gpt2":
        return t.GPT2Config(
            vocab_size=size, n_positions=256, n_embd=32, n_layer=2, n_head=4, tie_word_embeddings=False, **ends
        )
    if kind == "gptj":
        return t.GPTJConfig(vocab_size=size, n_positions=256, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **ends)
    return t.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, rms_norm_eps=1e-5, **ends,
    )  # fmt: skip


def _as_flan_t5_is_published(path: Path) -> None:
    """Say in the words of older versions, as the hub has them, that the decoder's outputs are not scaled."""
    values = json.loads(path.read_text())
    values.pop("scale_decoder_outputs", None)
    path.write_text(json.dumps(values | {"tie_word_embeddings": False}))


@pytest.fixture(scope="session")
def model_folder(torch: Any, bpe: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the kind of a model to the folder of a tiny one."""
    from tokenizers import Tokenizer, processors
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind in made:
            return made[kind]
        own = Tokenizer.from_str(bpe.to_str())
        if kind == "t5":
            own.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        torch.manual_seed(7)
        config = _config(kind, own.get_vocab_size())
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = auto.from_config(config)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        for weight in model.parameters():
            # untrained weights are so small that a model says the same word for ever
            if weight.ndim > 1:
                weight.data.normal_(0, 1 / weight.shape[-1] ** 0.5)
        broken = [token for token in range(own.get_vocab_size()) if "\ufffd" in own.decode([token])]
        model.lm_head.weight.data *= 2
        model.lm_head.weight.data[broken] *= 0.1  # bytes that are no character by themselves
        if model.lm_head.bias is not None:
            model.lm_head.bias.data[[1, own.encode("\n").ids[0]]] = 2.0
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        if kind == "t5":
            _as_flan_t5_is_published(folder / "config.json")
        specials = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=own, **specials).save_pretrained(folder)
        made[kind] = folder
        return folder

    return make
