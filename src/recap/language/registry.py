"""Language models by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recap.language.base import LanguageModel
from recap.registry import Entry, Loader, Registry, load


@dataclass(frozen=True)
class LanguageModelInfo(Entry):
    """A language model, or a kind of them."""

    load: Loader | None = None
    """Returns the model; called with what stands behind the colon, if anything, and with ``device`` and ``threads``."""
    alias_of: str = ""
    """The name that this one is short for."""


_OTHERS = "the model's own"

LANGUAGE_MODELS = Registry(
    "language model",
    (
        LanguageModelInfo(
            "writer",
            "the caption model inside the package: the default",
            "recap.language.writer:load_writer",
            licence="Apache-2.0",
        ),
        LanguageModelInfo(
            "smollm2", "SmolLM2-135M-Instruct on llama.cpp, 98 MB", alias_of="llamacpp:smollm2", licence="Apache-2.0"
        ),
        LanguageModelInfo(
            "gemma3-270m", "Gemma-3-270M on llama.cpp, 253 MB", alias_of="llamacpp:gemma3-270m", licence="Gemma"
        ),
        LanguageModelInfo(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder-1.5B-Instruct on llama.cpp, 1.1 GB",
            alias_of="llamacpp:qwen2.5-coder-1.5b",
            licence="Apache-2.0",
        ),
        LanguageModelInfo(
            "llamacpp:GGUF", "any GGUF file on llama.cpp", "recap.language.llamacpp:LlamaCppModel", licence=_OTHERS
        ),
        LanguageModelInfo(
            "hf:NAME_OR_FOLDER",
            "FLAN-T5, GPT-2, GPT-J, Llama ... on transformers",
            "recap.language.hf:HuggingFaceModel",
            licence=_OTHERS,
            extra="hf",
            requires=("torch", "transformers"),
        ),
        LanguageModelInfo(
            "hf-int8:NAME_OR_FOLDER",
            "the same with weights in int8: faster on a CPU",
            "recap.language.hf:load_int8",
            licence=_OTHERS,
            extra="hf",
            requires=("torch", "transformers"),
        ),
        LanguageModelInfo(
            "ct2:FOLDER",
            "FLAN-T5 on CTranslate2, made by `recap convert`",
            "recap.language.ct2:CTranslate2Model",
            licence=_OTHERS,
            extra="ct2",
            requires=("ctranslate2",),
        ),
        LanguageModelInfo("none", "no language model: the most central of the retrieved captions"),
    ),
    group="recap.language_models",
)


def list_language_models() -> tuple[LanguageModelInfo, ...]:
    """Return what ``load_language_model`` knows."""
    return tuple(LANGUAGE_MODELS)


def load_language_model(spec: str, *, device: str = "cpu", threads: int | None = None) -> LanguageModel | None:
    """Return the language model that ``spec`` names; None for ``none``."""
    entry = LANGUAGE_MODELS.get(spec)
    if entry.alias_of:
        return load_language_model(entry.alias_of, device=device, threads=threads)
    if entry.load is None:
        return None
    model: LanguageModel = load(entry.load, _absolute(spec), device=device, threads=threads)
    return model


def _absolute(spec: str) -> str:
    """Return a name with a local path in full, so that a pack that keeps it works from any folder."""
    kind, colon, source = spec.partition(":")
    return f"{kind}:{Path(source).resolve()}" if colon and Path(source).exists() else spec
