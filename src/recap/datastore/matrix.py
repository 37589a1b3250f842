"""One matrix in a safetensors file: written in a stream, read by mapping it into memory.

The format is eight bytes with the length of a json header, the header, and the numbers. It is written and read
here directly because the library wants all of a tensor at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from recap.errors import PackError

TYPES = {"float32": "F32", "float16": "F16", "int64": "I64"}
ALIGNMENT = 64
MAX_HEADER = 1 << 20


def write_matrix(
    file: BinaryIO, name: str, shape: tuple[int, ...], dtype: str, pieces: Iterable[npt.NDArray[Any]]
) -> None:
    """Write ``pieces``, which together make up an array of ``shape``, as the tensor ``name``."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    header = json.dumps({name: {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}}).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    stored = np.dtype(dtype).newbyteorder("<")
    for piece in pieces:
        file.write(np.ascontiguousarray(piece, dtype=stored).data)


def map_matrix(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the tensor ``name`` of a file, mapped; ``PackError`` names the file when it is not as expected."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name] if length <= MAX_HEADER else None
        wanted = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [0, size]}
        if entry != wanted:
            raise PackError(f"{path} does not hold the {dtype} array of shape {shape} that the manifest promises")
        if path.stat().st_size != 8 + length + size:
            raise PackError(f"{path} is truncated or damaged: {path.stat().st_size} bytes, not {8 + length + size}")
        if size == 0:
            return np.empty(shape, dtype=dtype)
        return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r", offset=8 + length, shape=shape)
    except FileNotFoundError as error:
        raise PackError(f"{path} is missing; the store needs it") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackError(f"{path} is not a readable safetensors file: {error}") from error
