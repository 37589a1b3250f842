"""Several packs of one encoder as one: statistics add up, datastores join, the map is solved again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from recap.alignment import LinearAlignment
from recap.datastore import Datastore, MutableStore
from recap.datastore.base import require_same_encoder
from recap.errors import InputError, RecapWarning
from recap.packs import folder
from recap.packs.base import Pack
from recap.packs.card import About
from recap.packs.register import Pictures

P = TypeVar("P", bound=Pack)


def merge(packs: Sequence[P], *, method: str | None = None) -> P:
    """Return a captioner as if fitted to the pairs of all packs, with the captions of all of them.

    Encoder, settings and language model are the first one's, the map too unless ``method`` names another.
    Pictures that two packs have in common count twice in the map; a warning says how many there are.
    """
    if len(packs) < 2:
        raise InputError("merging takes at least two packs")
    first = packs[0]
    statistics = first.statistics
    datastore = _empty(first)
    pictures: Pictures | None = Pictures(vectors=[])
    for number, captioner in enumerate(packs):
        store = captioner.datastore
        if not isinstance(store, MutableStore):
            raise InputError("only packs with a datastore of their own can be merged")
        require_same_encoder(datastore, store)
        if number:
            statistics = statistics + captioner.statistics
        ids = dict(zip(store.ids.tolist(), datastore.merge(store).tolist(), strict=True))
        known = captioner.pictures
        pictures = None if pictures is None or known is None else pictures.joined(known, ids)
    _warn_of_losses(packs)
    params = first.alignment.get_params() | ({"method": method} if method else {})
    merged = type(first)(
        first.encoder,
        statistics,
        datastore,
        language_model=first.language_model,
        settings=first.settings.but(method=params["method"]),
        alignment=LinearAlignment.from_statistics(statistics, **params),
        device=first.device,
    )
    merged.pictures = pictures
    merged.about = _about([captioner.about for captioner in packs])
    return merged


def merge_packs(names: Sequence[str], out: Path, *, method: str | None = None) -> Pack:
    """Merge packs by name and write the result to a folder, which may hold one of them."""
    folder.check_target(out)
    with folder.changing(out):
        first = Pack.from_pretrained(names[0], progress=True)
        others = [Pack.from_pretrained(name, language_model="none", progress=True) for name in names[1:]]
        merged = merge([first, *others], method=method)
        merged.save_pretrained(out)
    return merged


def _empty(captioner: Pack) -> Datastore:
    text, store = captioner.encoder.text, captioner.datastore
    dtype = store.dtype if isinstance(store, Datastore) else "float32"
    return Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint, dtype=dtype)


def _about(all_of_them: Sequence[About]) -> About:
    """Join what was said about each; numbers were measured on other maps, and are left out."""

    def joined(name: str) -> str:
        return "; ".join(dict.fromkeys(text for about in all_of_them if (text := getattr(about, name))))

    counts: dict[str, int] = {}
    for about in all_of_them:
        for name, count in about.data.items():
            counts[name] = counts.get(name, 0) + count
    return About(joined("description"), joined("author"), joined("licence"), counts)


def _warn_of_losses(packs: Sequence[Pack]) -> None:
    hashes = [{picture.sha256 for picture in captioner.pictures or ()} for captioner in packs]
    twice = sum(len(known) for known in hashes) - len(set().union(*hashes))
    if twice:
        message = f"{twice} pictures are in more than one of the packs, and count for each of them"
        warnings.warn(message, RecapWarning, stacklevel=3)
    if any(captioner.calibration for captioner in packs):
        message = "the confidence was fitted to single packs: captions have none until recap pack calibrate fits it"
        warnings.warn(message, RecapWarning, stacklevel=3)
    languages = {captioner.settings.language for captioner in packs}
    for one, other in pairwise(sorted(languages)):
        warnings.warn(f"captions in {one} and {other} come together in one pack", RecapWarning, stacklevel=3)
