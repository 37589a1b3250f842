"""GGUF models on llama.cpp, through xllamacpp: no torch, a hundred megabytes, any CPU.

xllamacpp shows llama.cpp as its server, called in the same process. What follows from that:

- ``n`` sentences are asked for in one request. The server reads the prompt once, copies its state to ``n`` slots and
  writes them side by side; sentence ``i`` is drawn with seed + ``i``.
- Its log-probabilities are those of the model before temperature and cuts, and leave out the token that ends a
  sentence. Its samplers run in the order named in the request; by default the temperature would come last.
- Logits differ in their last bits with the number of tokens read at once, hence with what the server still has in its
  cache. So that drafts do not depend on the prompts before, the cache holds, when a prompt is read, either nothing
  or exactly what stands before its last blank line: the worked examples, the same for image after image.
- The server opens a port on the loopback interface and offers no way not to. It is locked with a random key.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from recap.assets import fetch
from recap.errors import AssetError, RecapError
from recap.language.base import Decoding, PromptTooLongError, files_fingerprint, prompt_seed
from recap.types import Draft, Prompt

SLOTS = 32
"""Batch size: sentences written side by side. More samples than that take another reading of the prompt."""

CONTEXT = 4096
"""Tokens of prompt and sentences together, unless the model was made for fewer."""


class LlamaCppModel:
    """A GGUF file, on the CPU or on a GPU that this build of xllamacpp knows."""

    completes = True

    def __init__(self, source: str | Path, *, device: str = "cpu", threads: int | None = None) -> None:
        path = _fetch(str(source))
        import xllamacpp

        if not path.is_file():
            raise AssetError(f"there is no GGUF file at {path}")
        self.name = f"llamacpp:{source}"
        self._path = path
        parameters = _configure(xllamacpp.CommonParams(), path, device, threads)
        try:
            self._server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise AssetError(f"{path} could not be loaded ({error}): is it a complete GGUF file?") from error
        self._prefix = ""
        self._lock = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the GGUF file."""
        return files_fingerprint([self._path], "llamacpp")

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return the drafts for each prompt: one when greedy, else ``decoding.samples``."""
        return [self._write_one(prompt.text, decoding) for prompt in prompts]

    def _write_one(self, text: str, decoding: Decoding) -> list[Draft]:
        samples = decoding.sentences
        seed = prompt_seed(decoding.seed, text)
        # the sentences may take half of the context, and leave the other half to the prompt
        together = max(1, min(samples, SLOTS, CONTEXT // 2 // decoding.max_tokens))
        drafts: list[Draft] = []
        with self._lock:
            for start in range(0, samples, together):
                count = min(together, samples - start)
                cached = self._read_prefix(text)
                drafts += self._sample(text, decoding, count, seed + start, cached)
        return drafts

    def _read_prefix(self, text: str) -> bool:
        """Bring the cache of the first slot to exactly what stands before the last blank line of the prompt."""
        end = text.rfind("\n\n") + 2
        if end < 2:
            return False
        prefix = text[:end]
        answer = self._request(prompt=prefix, max_tokens=0, cache_prompt=prefix == self._prefix)
        self._prefix = prefix
        if answer["timings"]["prompt_n"] > 1:
            # the last token of a known prefix is always read alone: here it was not, so do as next time
            self._request(prompt=prefix, max_tokens=0, cache_prompt=True)
        return True

    def _sample(self, text: str, decoding: Decoding, count: int, seed: int, cached: bool) -> list[Draft]:
        answer = self._request(
            prompt=text,
            n=count,
            cache_prompt=cached,
            max_tokens=decoding.max_tokens,
            seed=seed,
            samplers=["temperature", "top_k", "top_p"],
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            logprobs=1,
            stop=["\n"],
        )
        choices = answer["choices"]
        if len(choices) != count:
            raise RecapError(f"xllamacpp wrote {len(choices)} sentences instead of {count}: a newer version is needed")
        written = [_tokens(choice) for choice in choices]
        for choice, tokens in zip(choices, written, strict=True):
            if choice["finish_reason"] == "length" and len(tokens) < decoding.max_tokens:
                read = answer["usage"]["prompt_tokens"]
                raise PromptTooLongError(self.name, read, read + len(tokens) - decoding.max_tokens)
        return [
            Draft(choice["text"].strip(), sum(token["logprob"] for token in tokens))
            for choice, tokens in zip(choices, written, strict=True)
        ]

    def _request(self, **values: Any) -> dict[str, Any]:
        """Ask the server, always in the same slot, and turn its complaints into errors of ours."""
        answer: dict[str, Any] = self._server.handle_completions({"id_slot": 0, **values})
        error = answer.get("error")
        if error is None:
            return answer
        if "n_prompt_tokens" in error:
            raise PromptTooLongError(self.name, error["n_prompt_tokens"], error["n_ctx"])
        raise RecapError(f"{self.name} could not write: {error.get('message', error)}")


def _fetch(source: str) -> Path:
    """Return the path of a GGUF file; what is no path is the name of an asset."""
    if Path(source).is_file() or (source.endswith(".gguf") and not source.startswith("hub:")):
        return Path(source)
    return fetch(source)


def _configure(parameters: Any, path: Path, device: str, threads: int | None) -> Any:
    """Set what the server needs to know before it loads the model."""
    parameters.model.path = str(path)
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = SLOTS
    parameters.kv_unified = True
    parameters.n_gpu_layers = 0 if device == "cpu" else 999
    parameters.fit_params = False
    parameters.warmup = False
    parameters.verbosity = -1
    # no state of earlier prompts comes back from anywhere but the slot itself
    parameters.cache_ram_mib = 0
    parameters.cache_idle_slots = False
    parameters.api_keys = [secrets.token_hex(16)]
    if threads is not None:
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
    return parameters


def _tokens(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens of a sentence with their log-probabilities, without the one that ended it."""
    tokens: list[dict[str, Any]] = (choice["logprobs"] or {}).get("content", [])
    if tokens and choice["finish_reason"] == "stop" and not tokens[-1]["bytes"]:
        return tokens[:-1]
    return tokens
