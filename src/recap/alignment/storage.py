"""Arrays with a few facts about them as safetensors files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from recap.errors import PackError
from recap.files import atomic_write

VERSION = "1"

Tensors = dict[str, npt.NDArray[Any]]


def write_tensors(path: Path, kind: str, tensors: Tensors, facts: Mapping[str, str]) -> None:
    """Write arrays and facts, whole or not at all."""
    metadata = {"format": f"recap.{kind}", "version": VERSION, **facts}
    # safetensors writes an array's memory as it lies, whatever its strides say
    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata)
    with atomic_write(path) as file:
        file.write(data)


def read_tensors(
    path: Path, kind: str, required: Iterable[str], facts: Iterable[str]
) -> tuple[Tensors, Mapping[str, str]]:
    """Return the arrays and facts of a file that ``write_tensors`` wrote, with the named ones surely among them."""
    if path.exists() and not path.is_file():
        raise PackError(f"{path} is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: Tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise PackError(f"{path}: cannot be read as a safetensors file ({error})") from error
    if metadata.get("format") != f"recap.{kind}":
        raise PackError(f"{path}: this is not a file of {kind}, but {metadata.get('format', 'of an unknown kind')!r}")
    if metadata.get("version") != VERSION:
        raise PackError(
            f"{path}: version {metadata.get('version')} is unknown, this recap reads {VERSION}; update recap"
        )
    if not all(tensor.dtype.kind == "f" for tensor in tensors.values()):
        raise PackError(f"{path} is damaged: it holds other arrays than of floating point numbers")
    missing = [name for name in required if name not in tensors] + [name for name in facts if name not in metadata]
    if missing:
        raise PackError(f"{path}: incomplete, without {', '.join(missing)}; write it again")
    return tensors, metadata
