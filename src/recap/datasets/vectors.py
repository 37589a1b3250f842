"""Vectors of pictures in place of the pictures, for data sets whose pictures are not at hand.

A folder holds ``ids.npy``, the id of each picture, and a file of rows in the same order for each image encoder:
``tinyvit.npy``, rows of any length. ``vectors.json`` says which encoder made a file,
``{"tinyvit.npy": "FINGERPRINT"}``; a file that it does not name is believed to be of the encoder it is named after, and
a warning says so.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from recap.errors import EncoderMismatchError, InputError, RecapWarning
from recap.files import atomic_write, write_json
from recap.types import Vectors, unit_rows

IDS = "ids.npy"
FINGERPRINTS = "vectors.json"


class Named(Protocol):
    """What an image encoder is known by."""

    name: str
    fingerprint: str
    dimension: int


class PictureVectors:
    """Unit vectors of pictures by their ids."""

    def __init__(self, ids: Sequence[str], rows: npt.NDArray[np.floating]) -> None:
        if len(ids) != len(rows):
            raise InputError(f"{len(rows)} vectors beside the ids of {len(ids)} pictures")
        self.ids = tuple(ids)
        self._rows = rows
        self._place = {name: row for row, name in enumerate(self.ids)}

    @classmethod
    def read(cls, folder: str | Path, encoder: Named) -> Self:
        """Read the vectors of one image encoder; those of another are an error."""
        folder = Path(folder)
        rows = np.load(_find(folder, encoder), mmap_mode="r")
        if rows.ndim != 2 or rows.shape[1] != encoder.dimension:
            raise EncoderMismatchError(
                f"{folder}: vectors of shape {rows.shape}, where {encoder.name} makes rows of {encoder.dimension}"
            )
        return cls([str(name) for name in np.load(folder / IDS).tolist()], rows)

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def take(self, ids: Sequence[str]) -> Vectors:
        """Return a row of unit length for each picture."""
        return unit_rows(self._rows[[self._place[name] for name in ids]].astype(np.float32), otherwise=0.0)


def write_vectors(folder: str | Path, ids: Sequence[str | int], vectors: Vectors, encoder: Named) -> None:
    """Write vectors of pictures for ``PictureVectors.read``, beside those of other encoders for the same pictures."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    known = _fingerprints(folder)
    if known and np.load(folder / IDS).tolist() != list(ids):
        raise InputError(f"{folder} holds vectors of other pictures: give another folder")
    file = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in encoder.name) + ".npy"
    for name, values in ((IDS, np.asarray(ids)), (file, vectors)):
        with atomic_write(folder / name) as stream:
            np.save(stream, values)
    write_json(folder / FINGERPRINTS, {**known, file: encoder.fingerprint})


def _find(folder: Path, encoder: Named) -> Path:
    """Return the file with the vectors of an encoder."""
    known = _fingerprints(folder)
    for name, fingerprint in known.items():
        if fingerprint == encoder.fingerprint:
            return folder / name
    named = folder / f"{encoder.name}.npy"
    if named.name in known:
        raise EncoderMismatchError(
            f"{named} was made by another version of {encoder.name} than this one: encode the pictures again"
        )
    if "/" in encoder.name or not named.is_file():
        there = sorted(path.stem for path in folder.glob("*.npy") if not path.stem.endswith("ids"))
        raise EncoderMismatchError(
            f"{folder} holds vectors of {', '.join(there) or 'no encoder'}, not of {encoder.name}: take an encoder "
            "whose image side is one of them, or bring the pictures themselves"
        )
    message = f"{named}: no {FINGERPRINTS} says which version of {encoder.name} made it; taken to be this one"
    warnings.warn(message, RecapWarning, stacklevel=3)
    return named


def _fingerprints(folder: Path) -> dict[str, str]:
    path = folder / FINGERPRINTS
    if not path.exists():
        return {}
    try:
        return {str(name): str(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected an object of file names and fingerprints ({error})") from error
