"""What people call a picture, brought to two forms: the bytes of a file, or a decoded picture.

A path, an address (``https://...``), the content of a file, an open file, a Pillow picture, or the pixels as an array
of numpy, torch or another library: grey (HxW), colours last (HxWx3, HxWx4), or colours first (3xHxW), as whole numbers
of 0..255 or fractions of 0..1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image

from recap.errors import ImageError, InputError
from recap.types import ImageLike

MAX_BYTES = 1 << 30
"""Size of a file."""
_CHANNELS = (1, 3, 4)
_KINDS = "a path, an address, bytes, an open file, a Pillow picture or an array"

# one open file may be given twice, and several threads read pictures
_open_files = threading.Lock()


def read(source: ImageLike) -> bytes | Image.Image:
    """Return the bytes of a picture's file; pixels become a picture, and a decoded picture comes back as it is."""
    if isinstance(source, bytes | Image.Image):
        return source
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    if is_web_address(source):
        from recap.encoders.fetching import fetch_picture  # the libraries of the web are many

        return fetch_picture(source)
    if isinstance(source, str | Path):
        return _read_path(Path(source))
    if hasattr(source, "read"):
        return _read_file(source)
    if _is_array(source):
        return _picture_of(source)
    hint = "; captioner(images) takes several" if isinstance(source, list | tuple) else ""
    raise InputError(f"an image is {_KINDS}, not {type(source).__name__}{hint}")


def several(images: Any) -> Iterator[ImageLike]:
    """Return pictures one by one; a single picture, which may be iterable as well, is an error."""
    if is_picture(images):
        raise InputError("images must be several images; put a single one in a list")
    if not isinstance(images, Iterable):
        raise InputError(f"images must be several images, each {_KINDS}, not {type(images).__name__}")
    return iter(images)


def is_picture(source: Any) -> TypeGuard[ImageLike]:
    """Tell one picture from several; an array of four dimensions is a batch of pictures."""
    if isinstance(source, str | Path | bytes | bytearray | memoryview | Image.Image) or hasattr(source, "read"):
        return True
    return _is_array(source) and source.ndim in (2, 3)


def is_web_address(source: object) -> TypeGuard[str]:
    """Tell the address of a picture in the web from a path."""
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))


def short_url(url: str) -> str:
    """Return an address for messages, without its query, which may hold a secret."""
    shown = "".join(character for character in url.partition("?")[0] if character.isprintable())
    return shown if len(shown) <= 100 else f"{shown[:100]}..."


def label(source: ImageLike) -> str:
    """Return a short name of a picture for messages."""
    if is_web_address(source):
        return short_url(source)
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return f"<{len(source)} bytes>"
    if isinstance(source, Image.Image):
        return f"<{source.mode} picture, {source.width}x{source.height}>"
    if _is_array(source):
        return f"<array of {'x'.join(map(str, getattr(source, 'shape', ())))}>"
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else f"<{type(source).__name__}>"


def _read_path(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ImageError(f"{path}: {_why_no_file(path)}")
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"{path}: larger than {MAX_BYTES >> 30} GiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{path}: cannot be read ({error})") from error


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        try:
            with os.scandir(path):
                return "a folder, not a file"
        except OSError as error:
            return f"a folder that cannot be read ({error.strerror})"
    if path.exists():
        return "not a file"
    hint = "; give an address as text, since a Path is none" if path.parts[:1] in (("http:",), ("https:",)) else ""
    return f"there is no such file{hint}"


def _read_file(file: Any) -> bytes:
    """Return all that an open file holds, wherever it was left; it stays open, and there."""
    try:
        with _open_files:
            place = file.tell() if file.seekable() else None
            if place:
                file.seek(0)
            content = file.read(MAX_BYTES + 1)
            if place is not None:
                file.seek(place)
    except (OSError, ValueError, AttributeError) as error:  # ValueError: it is closed
        raise ImageError(f"{label(file)}: cannot be read ({error})") from error
    if isinstance(content, str):
        raise ImageError(f'{label(file)}: opened as text; open pictures with mode "rb"')
    if not isinstance(content, bytes):
        raise ImageError(f"{label(file)}: reading gave no bytes but {type(content).__name__}")
    if len(content) > MAX_BYTES:
        raise ImageError(f"{label(file)}: larger than {MAX_BYTES >> 30} GiB")
    return content


def _is_array(source: Any) -> bool:
    return hasattr(source, "__array__") and hasattr(source, "ndim") and hasattr(source, "shape")


def _picture_of(source: Any) -> Image.Image:
    """Return the picture whose pixels an array holds."""
    name, tensor = label(source), hasattr(source, "detach")
    values = _values(source, name)
    if values.ndim == 4:
        raise ImageError(f"{name}: a batch of {len(values)} pictures; captioner(images) takes them all")
    if values.ndim == 3:
        values = _colours_last(values, name, tensor=tensor)
    elif values.ndim != 2:
        raise ImageError(f"{name}: pixels are an array of HxW, HxWx3, HxWx4 or 3xHxW")
    if values.size == 0:
        raise ImageError(f"{name}: the picture has no pixels")
    return Image.fromarray(np.ascontiguousarray(_eight_bits(values, name)))


def _values(source: Any, name: str) -> npt.NDArray[Any]:
    """Return an array; a tensor is brought here from its graph and its device, without importing its library."""
    try:
        if hasattr(source, "detach"):
            source = source.detach().cpu()
            # numpy has no bfloat16
            source = source.float() if source.is_floating_point() else source
        return np.asarray(source)
    except Exception as error:  # a library of its own, with errors of its own
        raise ImageError(f"{name}: cannot be read as an array ({error})") from error


def _colours_last(values: npt.NDArray[Any], name: str, *, tensor: bool) -> npt.NDArray[Any]:
    """Return HxW, HxWx3 or HxWx4; where both ends could be the colours, as the library is used to."""
    first, last = values.shape[0] in _CHANNELS, values.shape[-1] in _CHANNELS
    if not first and not last:
        raise ImageError(f"{name}: neither the first nor the last dimension holds 1, 3 or 4 colours")
    if first and (tensor or not last):
        values = np.moveaxis(values, 0, -1)
    return values[..., 0] if values.shape[-1] == 1 else values


def _eight_bits(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    """Return values of 0..255, from whole numbers of that range, 16 bits, or fractions of 0..1."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values * np.uint8(255)
    if values.dtype == np.uint16:
        return np.rint(values / 257.0).astype(np.uint8)
    whole = values.dtype.kind in "iu"
    if not whole and values.dtype.kind != "f":
        raise ImageError(f"{name}: pixels are numbers, not {values.dtype}")
    low, high, limit = float(values.min()), float(values.max()), 255 if whole else 1
    if not (low >= 0 and high <= limit):  # NaN is nowhere
        kind = "whole numbers" if whole else "fractions"
        hint = "" if whole else "; undo the normalisation first, or divide values of 0..255 by 255"
        raise ImageError(f"{name}: {kind} must be of 0..{limit}, not {low:g}..{high:g}{hint}")
    return np.rint(values * (1 if whole else 255.0)).astype(np.uint8)
