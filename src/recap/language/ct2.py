"""Sequence-to-sequence models on CTranslate2: FLAN-T5 in int8, without torch.

About the seed. CTranslate2 samples inside its worker threads, each with a random state that is seeded once, from a
value global to the process, when the thread first draws. Its Python interface gives no logits without running the
encoder again for every token, so there is no loop of our own to write, and a translator that has drawn before cannot
be seeded again. What can be done is to start a new one: for every prompt that is sampled, the seed is set, the model
is opened again, from the page cache and with nothing to compute, and all samples are drawn from one reading of the
prompt. At the size of FLAN-T5-base in int8 the opening is a twelfth of the time that ten sentences take. Greedy
decoding needs no seed and keeps the translator it has.

``convert_to_ct2`` makes a folder of CTranslate2 from one of transformers: smaller, faster, and without torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from recap.errors import AssetError, InputError, MissingExtraError, check_name
from recap.files import atomic_folder
from recap.language.base import Decoding, files_fingerprint, prompt_seed
from recap.types import Draft, Prompt

TOKENIZER = "tokenizer.json"

_SEEDING = threading.Lock()
"""The seed is global to the process: one translator after the other takes its own."""


class CTranslate2Model:
    """A folder that ``convert_to_ct2`` wrote."""

    completes = False

    def __init__(self, folder: str | Path, *, device: str = "cpu", threads: int | None = None) -> None:
        try:
            import ctranslate2
        except ImportError as error:
            raise MissingExtraError("a model of CTranslate2", "ct2") from error
        from tokenizers import Tokenizer

        self.folder = Path(folder)
        self.name = f"ct2:{folder}"
        if not ctranslate2.contains_model(str(folder)) or not (self.folder / TOKENIZER).is_file():
            raise AssetError(f"{folder} is no folder written by `recap convert`: it needs model.bin and {TOKENIZER}")
        self._tokenizer = Tokenizer.from_file(str(self.folder / TOKENIZER))
        self._options = {"device": device, "intra_threads": threads or 0}
        settings = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self._end = self._tokenizer.token_to_id(settings["eos_token"])
        self._translator: Any = self._open()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the files of the folder."""
        return files_fingerprint((path for path in self.folder.iterdir() if path.is_file()), "ct2")

    def _open(self) -> Any:
        import ctranslate2

        try:
            return ctranslate2.Translator(str(self.folder), **self._options)
        except (RuntimeError, ValueError) as error:
            raise AssetError(f"{self.folder} could not be loaded: {error}") from error

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``."""
        return [self._write_one(prompt.text, decoding) for prompt in prompts]

    def _write_one(self, text: str, decoding: Decoding) -> list[Draft]:
        import ctranslate2

        source = self._tokenizer.encode(text).tokens
        with _SEEDING:
            if decoding.temperature == 0:
                return self._translate(source, decoding)
            ctranslate2.set_random_seed(prompt_seed(decoding.seed, text))
            # first let go of the old one: there may be no room for two
            self._translator = None
            self._translator = self._open()
            return self._translate(
                source,
                decoding,
                num_hypotheses=decoding.samples,
                sampling_topk=decoding.top_k,
                sampling_topp=decoding.top_p,
                sampling_temperature=decoding.temperature,
            )

    def _translate(self, source: list[str], decoding: Decoding, **options: Any) -> list[Draft]:
        """Write the sentences for one prompt, gathering the log-probabilities of their tokens as they come."""
        steps: list[tuple[int, int, float]] = []

        # a worker thread may be the last to let go of this function: if it held the translator, that thread would
        # have to wait for its own end
        def gather(step: Any) -> bool:
            steps.append((step.hypothesis_id, step.token_id, step.log_prob))
            return False

        self._translator.translate_batch(
            [source],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=decoding.max_tokens,
            min_decoding_length=0,
            return_scores=True,
            callback=gather,
            **options,
        )
        rows: list[list[tuple[int, float]]] = [[] for _ in range(options.get("num_hypotheses", 1))]
        for hypothesis, token, logprob in steps:
            rows[hypothesis].append((token, logprob))
        return [self._draft(row) for row in rows]

    def _draft(self, row: list[tuple[int, float]]) -> Draft:
        """Return the sentence up to its end token or a newline."""
        ids: list[int] = []
        total = 0.0
        for token, logprob in row:
            if token == self._end or "\n" in self._tokenizer.decode([token]):
                break
            ids.append(token)
            total += logprob
        return Draft(self._tokenizer.decode(ids).strip(), total)


QUANTIZATIONS = ("int8", "int8_float32", "int16", "float16", "bfloat16", "float32")


def convert_to_ct2(model_folder: str | Path, out: str | Path, quantization: str = "int8") -> Path:
    """Convert a sequence-to-sequence model such as FLAN-T5 and return the new folder.

    The folder appears when it is complete, and not before; one that exists already is left alone.
    """
    out = Path(out)
    check_name("quantization", quantization, QUANTIZATIONS)
    if out.exists():
        raise InputError(f"{out} exists already: remove it, or choose another place")
    with atomic_folder(out) as made:
        _convert(str(model_folder), made, quantization)
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
        _converter(source).convert(str(made), quantization=quantization, force=True)
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
