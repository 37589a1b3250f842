"""Language models, and the prompts they are given; see :mod:`recap.language.registry` for the names."""

from __future__ import annotations

from recap.language.base import Decoding, LanguageModel, PromptTooLongError, model_fingerprint
from recap.language.prompt import PromptTemplate, WorkedExample, trim_caption, write_drafts
from recap.language.registry import LANGUAGE_MODELS, LanguageModelInfo, list_language_models, load_language_model

__all__ = [
    "LANGUAGE_MODELS",
    "Decoding",
    "LanguageModel",
    "LanguageModelInfo",
    "PromptTemplate",
    "PromptTooLongError",
    "WorkedExample",
    "list_language_models",
    "load_language_model",
    "model_fingerprint",
    "trim_caption",
    "write_drafts",
]
