"""Is a pack sound? Every file, every number that has to agree with another, and the captions themselves."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.datastore import DatastoreView, MutableStore
from recap.datastore.manifest import MANIFEST
from recap.errors import PackError
from recap.files import check_seal, file_sha256
from recap.packs import folder as pack
from recap.packs.config import FORMAT, PackConfig, refreshed
from recap.packs.register import Pictures

TOLERANCE = 1e-4
"""How far the map may lie from the one that the statistics give; BLAS differs a little between machines."""

UNIT_TOLERANCE = 1e-3
BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    problem: str = ""
    """What is wrong, with the file; empty when nothing is."""
    detail: str = ""


class _Parts:
    """The parts of a pack, each loaded once; one that cannot be loaded raises whenever it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def config(self) -> PackConfig:
        return PackConfig.read(self.folder)

    @cached_property
    def alignment(self) -> LinearAlignment:
        return LinearAlignment.load(self.folder / pack.ALIGNMENT)

    @cached_property
    def statistics(self) -> PairStatistics:
        return PairStatistics.load(self.folder / pack.STATISTICS)

    @property
    def place(self) -> str:
        """Where the captions are."""
        return str(self.config.datastore or self.folder / pack.DATASTORE)

    @cached_property
    def datastore(self) -> MutableStore | DatastoreView:
        return self.config.open_datastore(verify=True)

    @cached_property
    def pictures(self) -> Pictures | None:
        return Pictures.load(self.folder)


def verify(folder: Path, *, encoder: bool = False) -> Iterator[Check]:
    """Yield what was checked and what is wrong; ``encoder`` also loads the encoder and compares its fingerprints.

    Every check is made, whatever the others say: one broken file does not hide another.
    """
    parts = _Parts(folder)
    checks: dict[str, Callable[[_Parts], str]] = {
        "config": _config,
        "files": _files,
        "map": _map,
        "statistics": _statistics,
        "map agrees with statistics": _agreement,
        "datastore": _datastore,
        "vectors": _vectors,
        "pictures": _pictures,
        "card": _card,
    }
    if encoder:
        checks["encoder"] = _encoder
    for name, look in checks.items():
        try:
            with np.errstate(all="ignore"):
                detail = look(parts)
        except Exception as error:  # numbers from damaged files raise nearly anything
            yield Check(name, problem=str(error) or type(error).__name__)
        else:
            yield Check(name, detail=detail)


def _config(parts: _Parts) -> str:
    encoder = parts.config.encoder
    check_seal(parts.folder / pack.CONFIG)
    return f"format {FORMAT}, encoder {encoder}"


def _files(parts: _Parts) -> str:
    listed = parts.config.files
    for name, known in listed.items():
        path = parts.folder / name
        if not path.is_file():
            raise PackError(f"{path} is missing")
        if path.stat().st_size != known["bytes"]:
            raise PackError(f"{path} is truncated or damaged: {path.stat().st_size} bytes, not {known['bytes']}")
        if file_sha256(path) != known["sha256"]:
            raise PackError(f"{path} is damaged: its sha256 differs from the one in {pack.CONFIG}")
    return f"{len(listed)} with their sha256" if listed else "an older pack, which lists none"


def _map(parts: _Parts) -> str:
    path, alignment = parts.folder / pack.ALIGNMENT, parts.alignment
    _same_encoders(path, parts.config, alignment.image_encoder_, alignment.text_encoder_)
    shape = (len(alignment.text_mean_), len(alignment.image_mean_))
    if alignment.W_.shape != shape:
        raise PackError(f"{path}: the map has the shape {alignment.W_.shape}, its means {shape}")
    return f"{alignment.method}, {shape[1]} to {shape[0]} dimensions"


def _statistics(parts: _Parts) -> str:
    path, statistics = parts.folder / pack.STATISTICS, parts.statistics
    _same_encoders(path, parts.config, statistics.image_encoder, statistics.text_encoder)
    moments = statistics.centred()
    if not all(np.isfinite(part).all() for part in moments if part is not None):
        raise PackError(f"{path} holds NaN or infinite values")
    return f"{statistics.pairs:,.0f} pairs"


def _agreement(parts: _Parts) -> str:
    known = parts.alignment
    again = LinearAlignment.from_statistics(parts.statistics, **known.get_params())
    if again.W_.shape != known.W_.shape:
        raise PackError(f"{parts.folder}: map {known.W_.shape} and statistics {again.W_.shape} differ in shape")
    difference = float(np.abs(again.W_ - known.W_).max())
    if not difference <= TOLERANCE:
        raise PackError(
            f"{parts.folder / pack.ALIGNMENT}: not the map that the statistics give (off by {difference:.2g})"
        )
    return f"off by {difference:.1g}"


def _datastore(parts: _Parts) -> str:
    place, store, mean = parts.place, parts.datastore, parts.alignment.text_mean_
    if not parts.config.datastore:
        check_seal(parts.folder / pack.DATASTORE / MANIFEST)
    if not len(store):
        raise PackError(f"{place} is empty: there is nothing to retrieve")
    if store.fingerprint != parts.config.text_fingerprint:
        raise PackError(f"{place}: its vectors were made by another text encoder than the pack's")
    if store.dimension != len(mean):
        raise PackError(f"{place}: {store.dimension} dimensions, where the map has {len(mean)}")
    if len(np.unique(store.ids)) != len(store):
        raise PackError(f"{place}: some ids occur twice")
    store.centred_by(mean)  # raises where captions are centred for good, and by another mean
    return f"{len(store):,} captions of {len(store.sources())} sources"


def _vectors(parts: _Parts) -> str:
    store = parts.datastore
    known = store.ids
    for start in range(0, len(store), BLOCK):
        ids = known[start : start + BLOCK]
        rows = store.raw_vectors(ids)
        wrong = np.flatnonzero(~(np.abs(np.linalg.norm(rows, axis=1) - 1) <= UNIT_TOLERANCE))
        if len(wrong):
            raise PackError(f"{parts.place}: the vector of caption {ids[wrong[0]]} is not of unit length")
    return "all finite and of unit length"


def _pictures(parts: _Parts) -> str:
    pictures = parts.pictures
    if pictures is None:
        return "not recorded: none can be withdrawn"
    vectors = pictures.vectors
    width = len(parts.alignment.image_mean_)
    if vectors is not None and len(pictures) and (vectors.shape[1] != width or not np.isfinite(vectors).all()):
        raise PackError(f"{parts.folder}: the vectors of the pictures are not finite, or not {width} numbers each")
    captions = sum(len(picture.caption_ids) for picture in pictures)
    if captions > parts.statistics.pairs + 0.5:
        raise PackError(f"{parts.folder}: {captions} pairs are recorded, but the map was fitted to fewer")
    return f"{len(pictures):,}, {'with' if vectors is not None else 'without'} vectors"


def _card(parts: _Parts) -> str:
    path = parts.folder / pack.CARD
    if not path.is_file():
        raise PackError(f"{path} is missing, or is no file")
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n") or "\n---\n" not in text[4:]:
        raise PackError(f"{path} has no front matter, by which the hub sorts packs")
    if any(unicodedata.category(character) == "Cc" and character not in "\t\n\r" for character in text):
        raise PackError(f"{path} is damaged: it holds control characters")
    behind = refreshed(text, pack.read_facts(parts.folder, parts.datastore)) != text
    return "with front matter" + (", and a step behind the pack" if behind else "")


def _encoder(parts: _Parts) -> str:
    return parts.config.load_encoder().name


def _same_encoders(path: Path, config: PackConfig, image: str, text: str) -> None:
    for side, found, named in (("image", image, config.image_fingerprint), ("text", text, config.text_fingerprint)):
        if found and found != named:
            raise PackError(f"{path} was made with another {side} encoder than {pack.CONFIG} says")


def describe(name: str) -> dict[str, Any]:
    """Return the facts about a pack as plain values; nothing heavy is loaded."""
    folder = pack.find(name, progress=True)
    store = pack.read_datastore(folder)
    facts, pictures, config = pack.read_facts(folder, store), Pictures.load(folder), PackConfig.read(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "folder": str(folder),
        "made by recap": config.recap_version,
        "encoder": facts.encoder,
        "map": facts.method,
        "pairs": facts.pairs,
        "pictures": None if pictures is None else len(pictures),
        "image vectors kept": pictures is not None and pictures.vectors is not None,
        "captions": len(store),
        "datastore": store.facts(),
        "sources": dict(facts.sources),
        "language": facts.settings.language,
        "language model": facts.language_model,
        "confidence": "fitted" if name in pack.BUILTINS or (folder / pack.CONFIDENCE).exists() else "not fitted",
        "settings": {
            "k": facts.settings.k,
            "pool": facts.settings.pool,
            "selection": facts.settings.selection or "what suits the language model",
            "candidates": facts.settings.candidates,
            "temperature": facts.settings.decoding.temperature,
            "samples": facts.settings.decoding.samples,
        },
        "description": facts.about.description,
        "author": facts.about.author,
        "licence": facts.about.licence,
        "numbers": facts.about.numbers,
        "megabytes": round(size / 1e6, 1),
    }


def format_facts(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the facts of ``describe`` as lines for a reader."""
    for key, value in facts.items():
        if isinstance(value, dict):
            yield f"{key}:{'' if value else ' none'}"
            yield from (f"  {inner or 'unnamed'}: {_format(figure)}" for inner, figure in value.items())
        else:
            yield f"{key}: {_format(value)}"


def _format(value: Any) -> str:
    if value is None or value == "":
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
