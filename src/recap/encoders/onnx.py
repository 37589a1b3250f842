"""Encoders that run on onnxruntime: the built-in ones and any pair exported to a folder.

A folder for ``onnx:FOLDER`` holds ``image.onnx`` (input: float32 pixels, batch first), ``text.onnx`` (inputs: any of
``input_ids``, ``attention_mask``, ``token_type_ids``, ``position_ids``), ``tokenizer.json`` and ``config.json``::

    {
      "image": {"size": 224, "mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28],
                "interpolation": "bicubic", "resize": "shortest", "pooling": "none"},
      "text": {"max_length": 77, "pooling": "none", "padding": false, "pad_id": 0}
    }

All keys but ``size`` and ``max_length`` may be left out; means and deviations are then those of ImageNet.
``pooling`` is what to do with an output that has one row for each patch or token: ``mean``, ``first``, or ``none``
when the output is a vector already. ``padding`` is for models that were trained on texts filled up to ``max_length``
with ``pad_id``; all others are given each text at its own length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recap.encoders.base import LoadOptions
from recap.encoders.network import CachedTextEncoder, SingleImageEncoder, cores, fingerprint_of
from recap.encoders.preprocess import Pixels, Preprocess
from recap.errors import InputError, check_name
from recap.files import file_sha256
from recap.types import Vectors

Item = TypeVar("Item")

POOLINGS = ("mean", "first", "none")
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_BATCH_AXES = ("batch", "batch_size", "pictures")
"""What exporters call the axis of a batch."""


def open_session(path: Path, *, device: str = "cpu", alone: bool = False) -> Any:
    """Open an ONNX file for inference on ``cpu`` or ``cuda``.

    The session itself has one thread. Several threads that call it, each with one item, encode more for every second
    of processor time than one call with several threads and a batch (TinyViT: 29 against 22 pictures). A network that
    is told so (``alone``) opens in a third of the time (DINOv2: 70 instead of 205 ms).
    """
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if device == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise InputError("device cuda: this onnxruntime has no CUDA; install onnxruntime-gpu, or use device cpu")
        providers.insert(0, "CUDAExecutionProvider")
    elif device != "cpu":
        raise InputError(f"device {device}: onnxruntime encoders run on cpu or cuda")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for axis in _BATCH_AXES if alone else ():
        options.add_free_dimension_override_by_name(axis, 1)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the library's exceptions have no common base
        raise InputError(f"{path}: not a model that onnxruntime can open ({error})") from error


def open_sessions(paths: Sequence[Path], *, device: str = "cpu", alone: bool = False) -> list[Any]:
    """Open several ONNX files side by side: onnxruntime optimises each in a thread of ours."""
    with ThreadPoolExecutor(min(len(paths), cores())) as threads:
        return list(threads.map(lambda path: open_session(path, device=device, alone=alone), paths))


class Chain:
    """ONNX files run one after the other: each reads the first output of the one before.

    The last one may also read, as its second input, what the network ``beside`` the others makes of the first input.
    ``alone`` says that no batch has more than one item.
    """

    def __init__(
        self, paths: Path | Sequence[Path], *, beside: Path | None = None, device: str = "cpu", alone: bool = False
    ) -> None:
        self.paths = (paths,) if isinstance(paths, Path) else tuple(paths)
        others = () if beside is None else (beside,)
        sessions = open_sessions((*self.paths, *others), device=device, alone=alone)
        self._sessions, self._beside = sessions[: len(self.paths)], sessions[-1] if others else None
        self.inputs = self._sessions[0].get_inputs()

    def run(self, feed: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the first output of the last file."""
        first, *others = self._sessions
        output = _first_output(first, feed)
        for session in others:
            names = [item.name for item in session.get_inputs()]
            inputs = {names[0]: output}
            if self._beside and len(names) > 1:
                inputs[names[1]] = _first_output(self._beside, feed)
            output = _first_output(session, inputs)
        return output

    @property
    def width(self) -> int | None:
        """The length of the vectors that come out, where the last file says it."""
        *others, width = self._sessions[-1].get_outputs()[0].shape
        return width if len(others) == 1 and isinstance(width, int) else None

    def sha256(self) -> str:
        """Return a checksum of all the files."""
        sums = [_model_sha256(path) for path in self.paths]
        return sums[0] if len(sums) == 1 else fingerprint_of(*sums)


def _first_output(session: Any, feed: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    output: npt.NDArray[Any] = session.run([session.get_outputs()[0].name], feed)[0]
    return output


class OnnxImageEncoder(SingleImageEncoder):
    """An image encoder in one or several ONNX files. On the processor each picture is run alone."""

    def __init__(
        self,
        path: Path | Sequence[Path],
        preprocessing: Preprocess,
        *,
        name: str,
        pooling: str = "none",
        beside: Path | None = None,
        details: int = 0,
        sight: str = "",
        sha256: str | None = None,
        options: LoadOptions | None = None,
    ) -> None:
        """Open the model; ``sha256`` is its checksum when that is known already.

        The last ``details`` numbers of an output are no part of the vector; ``sight`` says whose they are, where they
        are not its own. ``beside`` is a further network, see ``Chain``.
        """
        options = options or LoadOptions()
        check_name("pooling", pooling, POOLINGS)
        self._pooling = pooling
        self._alone = options.device == "cpu"
        self._network = Chain(path, beside=beside, device=options.device, alone=self._alone)
        self._input = self._network.inputs[0].name
        shape = self._network.inputs[0].shape
        if isinstance(shape[0], int) and not (shape[0] == 1 and self._alone):
            raise InputError(f"{path}: the batch size is fixed at {shape[0]}; export the model with a free batch axis")
        if any(isinstance(side, int) and side != preprocessing.size for side in shape[2:]):
            raise InputError(f"{path}: the model reads pictures of {shape[2:]}, but size is {preprocessing.size}")
        width = self._network.width if sha256 and pooling == "none" else None
        if width is None:  # a file of somebody's own: whether it works is seen here
            width = self.forward(np.zeros((1, 3, preprocessing.size, preprocessing.size), np.float32)).shape[1]
        fingerprint = fingerprint_of("image", sha256 or self._network.sha256(), preprocessing.fingerprint(), pooling)
        super().__init__(
            preprocessing=preprocessing,
            name=name,
            fingerprint=fingerprint,
            dimension=width - details,
            batch_size=max(16, 2 * cores()),
            cache=options.cache,
            details=details,
            sight=sight or (fingerprint if details else ""),
        )

    def forward(self, batch: Pixels) -> Vectors:
        """Run the network and pool its output."""
        if not self._alone:
            return self._run(batch)
        return np.concatenate(in_threads(self._run, [batch[i : i + 1] for i in range(len(batch))]))

    def _run(self, batch: Pixels) -> Vectors:
        return pool(self._network.run({self._input: batch}), self._pooling)


class OnnxTextEncoder(CachedTextEncoder):
    """A text encoder in one or several ONNX files, with a ``tokenizer.json``.

    Texts of one length share a batch where the graph allows it. By default each is run alone: with dynamic quantisation
    a vector would depend on its neighbours (all-MiniLM-L6-v2 as published in int8: cosine 0.993 between two batches).
    """

    def __init__(
        self,
        path: Path | Sequence[Path],
        tokenizer: Path,
        *,
        name: str,
        max_length: int,
        pooling: str = "mean",
        padding: bool = False,
        pad_id: int = 0,
        batch_size: int = 1,
        sha256: str | None = None,
        options: LoadOptions | None = None,
    ) -> None:
        """Open the model; ``sha256`` is its checksum when that is known already.

        A ``batch_size`` above 1 is for graphs in which no text of a batch depends on the others.
        """
        options = options or LoadOptions()
        check_name("pooling", pooling, POOLINGS)
        self._pooling = pooling
        self._max_length, self._padding, self._pad_id = max_length, padding, pad_id
        self._batch_size = batch_size
        self._tokenizer = _open_tokenizer(tokenizer, max_length)
        self._network = Chain(path, device=options.device)
        self._inputs = {item.name: _integer_type(item.type) for item in self._network.inputs}
        if unknown := set(self._inputs) - set(_TEXT_INPUTS):
            raise InputError(f"{path}: unknown inputs {sorted(unknown)}; a text model reads {', '.join(_TEXT_INPUTS)}")
        shape = json.dumps([max_length, pooling, padding, pad_id])
        width = self._network.width if sha256 and pooling == "none" else None
        super().__init__(
            name=name,
            fingerprint=fingerprint_of("text", sha256 or self._network.sha256(), file_sha256(tokenizer), shape),
            dimension=width or self._run(self.tokenize([""])[0]).shape[1],
            cache=options.cache,
        )

    def tokenize(self, texts: Sequence[str]) -> tuple[Sequence[list[int]], int]:
        """Return the ids of each text, cut so that the end token survives, and how many were cut."""
        encodings = self._tokenizer.encode_batch(list(texts))
        return [encoding.ids for encoding in encodings], sum(bool(encoding.overflowing) for encoding in encodings)

    def forward(self, tokens: Sequence[list[int]]) -> Vectors:
        """Run texts of one length together, several batches at a time."""
        lengths = np.array([len(ids) for ids in tokens])
        batches = [
            same[start : start + self._batch_size]
            for same in (np.flatnonzero(lengths == length) for length in sorted(set(lengths.tolist())))
            for start in range(0, len(same), self._batch_size)
        ]
        found = in_threads(self._run, [[tokens[place] for place in batch] for batch in batches])
        rows = np.empty((len(tokens), found[0].shape[1]), np.float32)
        rows[np.concatenate(batches)] = np.concatenate(found)
        return rows

    def _run(self, texts: Sequence[list[int]]) -> Vectors:
        """Return one row for each of some texts of one length."""
        length = len(texts[0])
        width = self._max_length if self._padding else length
        ids = np.full((len(texts), width), self._pad_id)
        ids[:, :length] = texts
        values = {
            "input_ids": ids,
            "attention_mask": np.broadcast_to(np.arange(width) < length, ids.shape),
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.broadcast_to(np.arange(width), ids.shape),
        }
        feed = {name: np.ascontiguousarray(values[name], kind) for name, kind in self._inputs.items()}
        output = self._network.run(feed)
        if self._pooling == "mean":
            output = output[:, :length]
        return pool(output, self._pooling)


def in_threads(run: Callable[[Item], Vectors], items: Sequence[Item]) -> list[Vectors]:
    """Return ``run`` of every item, computed by as many threads as there are cores."""
    if len(items) == 1 or cores() == 1:
        return [run(item) for item in items]
    with ThreadPoolExecutor(cores(), thread_name_prefix="recap-encode") as threads:
        return list(threads.map(run, items))


def pool(output: npt.NDArray[Any], pooling: str) -> Vectors:
    """Bring an output of shape (batch, ..., d) to (batch, d)."""
    if pooling == "none":
        if output.ndim != 2:
            raise InputError(f"the model's output has the shape {output.shape}; set pooling to mean or first")
        return output.astype(np.float32, copy=False)
    rows = output.reshape(len(output), -1, output.shape[-1]).astype(np.float32, copy=False)
    return np.asarray(rows.mean(axis=1) if pooling == "mean" else rows[:, 0], np.float32)


def load_image_side(place: str | Path, options: LoadOptions | None = None) -> OnnxImageEncoder:
    """Return the image encoder of an exported pair."""
    folder = Path(place).resolve()
    config = _config(folder, "image")
    pooling = config.pop("pooling", "none")
    known = [field.name for field in fields(Preprocess)]
    _refuse_unknown(folder, config, known)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
    try:
        preprocessing = Preprocess(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: image: {error}") from error
    model = _present(folder, "image.onnx")
    return OnnxImageEncoder(model, preprocessing, name=f"onnx:{folder}", pooling=pooling, options=options)


def load_text_side(place: str | Path, options: LoadOptions | None = None) -> OnnxTextEncoder:
    """Return the text encoder of an exported pair."""
    folder = Path(place).resolve()
    config = _config(folder, "text")
    _refuse_unknown(folder, config, ["max_length", "pooling", "padding", "pad_id"])
    if not isinstance(config.get("max_length"), int):
        raise InputError(f"{folder / 'config.json'}: text: max_length, the window in tokens, is missing")
    model, tokenizer = _present(folder, "text.onnx"), _present(folder, "tokenizer.json")
    config.setdefault("pooling", "none")
    return OnnxTextEncoder(model, tokenizer, name=f"onnx:{folder}", **config, options=options)


def _config(folder: Path, side: str) -> dict[str, Any]:
    path = _present(folder, "config.json")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid json ({error})") from error
    part = config.get(side) if isinstance(config, dict) else None
    if not isinstance(part, dict):
        raise InputError(f"{path}: there is no part {side!r}")
    return dict(part)


def _present(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError(f"{folder}: not an exported pair, there is no {name}")
    return path


def _refuse_unknown(folder: Path, config: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := set(config) - set(known):
        raise InputError(f"{folder / 'config.json'}: unknown keys {sorted(unknown)}; known are {', '.join(known)}")


def _open_tokenizer(path: Path, max_length: int) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"{path}: not a tokenizer.json ({error})") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def _integer_type(name: str) -> type[np.signedinteger[Any]]:
    return np.int32 if name == "tensor(int32)" else np.int64


def _model_sha256(path: Path) -> str:
    """Return a checksum of a model and of the files its large weights may be kept in (``NAME.data``, ``NAME_data``)."""
    parts = [path, *sorted(path.parent.glob(path.name + "[._]data*"))]
    return fingerprint_of(*map(file_sha256, parts)) if len(parts) > 1 else file_sha256(path)
