"""From a folder of transformers to a folder of CTranslate2: smaller, faster, and without torch from then on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from recap.errors import AssetError, InputError, MissingExtraError
from recap.language.ct2 import TOKENIZER

QUANTIZATIONS = ("int8", "int8_float32", "int16", "float16", "bfloat16", "float32")


def convert_to_ct2(model_folder: str | Path, out: str | Path, quantization: str = "int8") -> Path:
    """Convert a sequence-to-sequence model such as FLAN-T5 and return the new folder.

    The folder appears when it is complete, and not before; one that exists already is left alone.
    """
    out = Path(out)
    if quantization not in QUANTIZATIONS:
        raise InputError(f"unknown quantization {quantization!r}; known: {', '.join(QUANTIZATIONS)}")
    if out.exists():
        raise InputError(f"{out} exists already: remove it, or choose another place")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        made = Path(temporary) / "model"
        _convert(str(model_folder), made, quantization)
        _flush(made)
        made.rename(out)
    return out


def _convert(source: str, made: Path, quantization: str) -> None:
    try:
        import ctranslate2  # noqa: F401
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise MissingExtraError("conversion to CTranslate2", "hf,ct2") from error
    try:
        if not transformers.AutoConfig.from_pretrained(source).is_encoder_decoder:
            raise InputError(f"{source} is no sequence-to-sequence model; `ct2:` runs only these, such as FLAN-T5")
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        _converter(source).convert(str(made), quantization=quantization)
        tokenizer.backend_tokenizer.save(str(made / TOKENIZER))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise AssetError(f"{source} could not be converted: {error}") from error


def _converter(source: str) -> Any:
    """Return the converter of CTranslate2, told in its own words whether the decoder's outputs are scaled.

    T5 scales them and FLAN-T5 does not. CTranslate2 takes ``tie_word_embeddings`` for the sign of it, which
    transformers 5 sets for both and replaces by ``scale_decoder_outputs``: unmended, FLAN-T5 comes out with logits
    that are too small, right when greedy and noise when sampled.
    """
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_model(self, *arguments: Any, **options: Any) -> Any:
            model = super().load_model(*arguments, **options)
            scaled = getattr(model.config, "scale_decoder_outputs", None)
            if scaled is not None:
                model.config.tie_word_embeddings = scaled
            return model

    return Converter(source)


def _flush(folder: Path) -> None:
    """Make sure that the files are on the disk before the folder gets its name."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
