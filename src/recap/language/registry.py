"""Language models by name.

writer               the caption model inside the package; the default
llamacpp:PATH.gguf   a GGUF file on llama.cpp; also ``llamacpp:smollm2`` or ``smollm2``, fetched when needed
hf:NAME_OR_FOLDER    transformers: sequence-to-sequence (FLAN-T5) or causal (GPT-2, GPT-J, Llama)
ct2:FOLDER           CTranslate2, as `recap convert` writes it
none                 no language model
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from recap.errors import InputError
from recap.language.base import LanguageModel


@dataclass(frozen=True, slots=True)
class LanguageModelInfo:
    """A language model, or a kind of them, as `recap info` shows it."""

    name: str
    what: str
    licence: str
    missing_extra: str | None = None
    """The extra to install before it can be used; None when it is available."""


def load_language_model(spec: str, *, device: str = "cpu", threads: int | None = None) -> LanguageModel | None:
    """Return the language model that ``spec`` names; None for ``none``."""
    kind, _, rest = spec.partition(":")
    if spec == "none":
        return None
    if spec == "writer":
        from recap.language.writer import WriterModel

        return WriterModel(threads=threads)
    if spec == "smollm2":
        kind, rest = "llamacpp", spec
    if kind == "llamacpp" and rest:
        from recap.language.llamacpp import LlamaCppModel

        return LlamaCppModel(_gguf(rest), name=f"llamacpp:{_absolute(rest)}", device=device, threads=threads)
    if kind == "hf" and rest:
        from recap.language.hf import HuggingFaceModel

        return HuggingFaceModel(_absolute(rest), device=device, threads=threads)
    if kind == "ct2" and rest:
        from recap.language.ct2 import CTranslate2Model

        return CTranslate2Model(_absolute(rest), device=device, threads=threads)
    raise _unknown(spec)


def check_language_model(spec: str) -> None:
    """Raise ``InputError`` unless ``spec`` is a name that ``load_language_model`` knows; nothing is loaded."""
    kind, _, rest = spec.partition(":")
    if spec not in ("none", "writer", "smollm2") and not (kind in ("llamacpp", "hf", "ct2") and rest):
        raise _unknown(spec)


def _unknown(spec: str) -> InputError:
    known = ", ".join(info.name for info in list_language_models())
    return InputError(f"unknown language model {spec!r}; known: {known}")


def _absolute(source: str) -> str:
    """Return a local path in full, so that a pack that keeps it works from any folder; other names as they are."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def _gguf(source: str) -> Path:
    """Return the path of a GGUF file; what is no path is something `recap.assets` can fetch."""
    if Path(source).is_file() or (source.endswith(".gguf") and not source.startswith("hub:")):
        return Path(source)
    from recap.assets import fetch

    return fetch(source)


def list_language_models() -> tuple[LanguageModelInfo, ...]:
    """Return what ``load_language_model`` knows."""
    hf = None if find_spec("torch") and find_spec("transformers") else "hf"
    ct2 = None if find_spec("ctranslate2") else "ct2"
    own = "the model's own"
    return (
        LanguageModelInfo("writer", "the caption model inside the package: the default", "Apache-2.0"),
        LanguageModelInfo("smollm2", "SmolLM2-135M-Instruct on llama.cpp, 98 MB", "Apache-2.0"),
        LanguageModelInfo("llamacpp:GGUF", "any GGUF file on llama.cpp", own),
        LanguageModelInfo("hf:NAME_OR_FOLDER", "FLAN-T5, GPT-2, GPT-J, Llama ... on transformers", own, hf),
        LanguageModelInfo("ct2:FOLDER", "FLAN-T5 on CTranslate2, made by `recap convert`", own, ct2),
        LanguageModelInfo("none", "no language model: the most central of the retrieved captions", ""),
    )
