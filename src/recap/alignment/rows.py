"""Rows of vectors as they come in: are they usable, how long are they, and which captions belong to which image.

Arrays with a few facts about them as safetensors files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from recap.errors import InputError, PackError
from recap.files import atomic_write
from recap.types import Vectors, unit_rows

Rows: TypeAlias = npt.NDArray[Any]
"""A 2-d array of numbers, one vector a row; may be memory-mapped and of any precision."""

Indices: TypeAlias = npt.NDArray[np.intp]

BLOCK = 2048
"""Rows that are worked on at once."""

ROUNDING = 1e-6
"""Length up to which the difference of a unit row from the mean is nothing but rounding."""

GATHERED_TEXTS = 8192
"""Caption rows copied at once where captions do not lie in equal runs."""


def as_rows(values: npt.ArrayLike, what: str, dimension: int | None = None) -> Rows:
    """Return ``values`` as rows of numbers without copying them, or say why that is impossible."""
    rows: Rows = np.asanyarray(values)
    if rows.ndim != 2:
        raise InputError(f"{what}: expected one vector a row (2 dimensions), got an array of shape {rows.shape}")
    if rows.size == 0:
        raise InputError(f"{what}: there are no vectors (shape {rows.shape})")
    if rows.dtype.kind not in "fiu":
        raise InputError(f"{what}: expected real numbers, got {rows.dtype}")
    if dimension is not None and rows.shape[1] != dimension:
        raise InputError(f"{what}: expected vectors of {dimension} numbers, got {rows.shape[1]}: another encoder?")
    return rows


def working_dtype(*arrays: Rows) -> np.dtype[Any]:
    """Return float64 where the input has more than float32 holds, and float32 otherwise."""
    return np.result_type(np.float32, *(array.dtype for array in arrays))


def row_lengths(rows: Rows, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.float64]:
    """Return the length of each row, from squares in a precision; those of rows that lie in C order are independent."""
    lengths = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(dtype or rows.dtype, copy=False)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lengths[start : start + BLOCK] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return lengths


def inverse_lengths(rows: Rows, what: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return 1 / length of each row; zero, NaN and infinite rows are an error that names them."""
    lengths = row_lengths(rows, dtype)
    # A square can leave the range of float32 although the row is fine: look at such rows again before complaining.
    doubtful = np.flatnonzero(~((lengths > 1e-15) & (lengths < 1e15)))
    if doubtful.size:
        with np.errstate(over="ignore", invalid="ignore"):
            lengths[doubtful] = np.linalg.norm(rows[doubtful].astype(np.float64), axis=1)
        _refuse(doubtful[~np.isfinite(lengths[doubtful])], what, "NaN or infinite values")
        _refuse(doubtful[lengths[doubtful] == 0], what, "only zeros")
    return np.reciprocal(lengths).astype(dtype)


def usable_unit_rows(rows: Rows, what: str) -> npt.NDArray[Any]:
    """Return a copy of ``rows`` in which each has length one; rows without a direction are an error that names them."""
    unit = unit_rows(rows)
    bad = np.flatnonzero(np.isnan(unit[:, 0]))
    if bad.size:
        zero = ~np.any(rows[bad], axis=1)
        _refuse(bad[~zero], what, "NaN or infinite values")
        _refuse(bad[zero], what, "only zeros")
    return unit


def centre_rows(rows: Rows, mean: Vectors) -> Vectors:
    """Return unit rows minus the mean; what rounding leaves of a row equal to the mean becomes zero."""
    moved: Vectors = rows - mean
    moved[row_lengths(moved) <= ROUNDING] = 0
    return moved


def centred_unit_rows(rows: Rows, mean: Vectors) -> Vectors:
    """Return unit rows minus the mean, at unit length again; a row equal to the mean becomes zero."""
    return unit_rows(rows - mean, shortest=ROUNDING, otherwise=0.0)


def check_weights(weights: npt.ArrayLike | None, texts: int) -> npt.NDArray[np.float64] | None:
    """Return the weights of the pairs as float64: one for each text, finite and not negative."""
    if weights is None:
        return None
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (texts,):
        raise InputError(f"weights: expected one for each of {texts} texts, got an array of shape {checked.shape}")
    bad = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if bad.size:
        raise InputError(f"weights: must be finite and not negative, but {_listed(bad, 'row')} is not")
    return checked


@dataclass(frozen=True, slots=True)
class Captions:
    """Which texts belong to which image: image i has ``counts[i]`` of them, from ``starts[i]`` on in ``order``."""

    counts: Indices
    starts: Indices
    order: Indices | None
    """Texts sorted by image; None when they lie like that already."""

    def masses(self, weights: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
        """Return for each image the weight of all its texts together."""
        if weights is None:
            return self.counts.astype(np.float64)
        ordered = weights if self.order is None else weights[self.order]
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        return np.bincount(owners, weights=ordered, minlength=len(self.counts)).astype(np.float64)

    def sums(self, texts: Rows, factors: npt.NDArray[Any], images: slice) -> npt.NDArray[Any]:
        """Return for each of a run of images the sum of its texts, text j multiplied by ``factors[j]``."""
        counts, starts = self.counts[images], self.starts[images]
        size = int(counts[0])
        if self.order is None and size > 0 and (counts == size).all():
            run = slice(int(starts[0]), int(starts[0]) + size * len(counts))
            return _weighted_sums(texts[run], factors[run].reshape(-1, size))
        sums = np.zeros((len(counts), texts.shape[1]), dtype=factors.dtype)
        for size in np.unique(counts[counts > 0]).tolist():
            members = np.flatnonzero(counts == size)
            step = max(1, GATHERED_TEXTS // size)
            for first in range(0, len(members), step):
                some = members[first : first + step]
                places = (starts[some][:, None] + np.arange(size)).ravel()
                index = places if self.order is None else self.order[places]
                sums[some] = _weighted_sums(texts[index], factors[index].reshape(-1, size))
        return sums


def assign_captions(images: int, texts: int, groups: npt.ArrayLike | None, counts: npt.ArrayLike | None) -> Captions:
    """Return which texts belong to which images, given the numbers of both.

    Give ``groups`` (for each text the row of its image), ``counts`` (the texts of each image, which lie in the order
    of the images), or neither: row i of the one belongs to row i of the other.
    """
    if groups is not None and counts is not None:
        raise InputError("give groups or counts, not both: each says which texts belong to which image")
    if counts is not None:
        return _from_counts(images, texts, _integers(counts, "counts"))
    if groups is not None:
        return _from_groups(images, texts, _integers(groups, "groups"))
    if images != texts:
        raise InputError(
            f"{images} images but {texts} texts: rows in pairs must be equally many; "
            "for several captions an image say with groups= which image each text belongs to"
        )
    return Captions(np.ones(images, dtype=np.intp), np.arange(images), None)


def _from_counts(images: int, texts: int, counts: Indices) -> Captions:
    if len(counts) != images:
        raise InputError(f"counts: expected one for each of {images} images, got {len(counts)}")
    if (counts < 0).any():
        raise InputError(f"counts: cannot be negative, but {_listed(np.flatnonzero(counts < 0), 'row')} is")
    if counts.sum() != texts:
        raise InputError(f"counts: they add up to {counts.sum()}, but there are {texts} texts")
    return Captions(counts, np.cumsum(counts) - counts, None)


def _from_groups(images: int, texts: int, groups: Indices) -> Captions:
    if len(groups) != texts:
        raise InputError(f"groups: expected one for each of {texts} texts, got {len(groups)}")
    outside = np.flatnonzero((groups < 0) | (groups >= images))
    if outside.size:
        first = outside[0]
        raise InputError(f"groups: text {first} belongs to image {groups[first]}, but there are {images} images")
    counts = np.bincount(groups, minlength=images).astype(np.intp)
    order = None if (np.diff(groups) >= 0).all() else np.argsort(groups, kind="stable")
    return Captions(counts, np.cumsum(counts) - counts, order)


def _integers(values: npt.ArrayLike, what: str) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{what}: expected a list of whole numbers, got {array.dtype} of shape {array.shape}")
    return array.astype(np.intp, copy=False)


def _weighted_sums(texts: Rows, factors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return sums over equal runs of texts; unit length, weight and sum in one pass over the memory."""
    images, size = factors.shape
    runs = texts.astype(factors.dtype, copy=False).reshape(images, size, -1)
    sums: npt.NDArray[Any] = np.einsum("nm,nmd->nd", factors, runs)
    return sums


def _refuse(rows: Indices, what: str, why: str) -> None:
    if rows.size:
        raise InputError(f"{what}: {_listed(rows, 'row')} holds {why}; leave such vectors out, they have no direction")


def _listed(rows: Indices, noun: str) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return f"{noun} {shown}" + (f" (and {rows.size - 5} more)" if rows.size > 5 else "")


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
