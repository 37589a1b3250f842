"""Packs joined with each other, put on the Hugging Face hub, and brought down into a folder of one's own.

Joining needs no pictures: what was summed for the maps is added up, captions come together, the map is solved again.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from recap.alignment import LinearAlignment
from recap.datastore import Datastore, DiskStore, MutableStore
from recap.datastore.base import require_same_encoder
from recap.datastore.manifest import DISK
from recap.errors import InputError, PackError, RecapWarning
from recap.files import atomic_folder
from recap.packs import folder as pack
from recap.packs.base import Pack
from recap.packs.captions import staging
from recap.packs.config import About, PackConfig
from recap.packs.register import Pictures
from recap.packs.verify import verify

P = TypeVar("P", bound=Pack)

NEARLY_ALL = 0.9
"""Share of the pairs from which on the confidence of a pack holds for what it is joined with."""


def merge(
    packs: Sequence[P], *, method: str | None = None, datastore: MutableStore | None = None, progress: bool = False
) -> P:
    """Return a captioner as if fitted to the pairs of all packs, with the captions of all of them.

    They come into ``datastore``, an empty store; by default into memory.
    Encoder, settings and language model are the first one's, the map too unless ``method`` names another.
    So is the confidence, if nearly all pairs are the first one's; otherwise there is none until it is fitted anew.
    Pictures that two packs have in common count twice in the map; a warning says how many there are.
    """
    if len(packs) < 2:
        raise InputError("merging takes at least two packs")
    first = packs[0]
    statistics = first.statistics
    datastore = _empty(first) if datastore is None else datastore
    datastore.progress = progress
    pictures: Pictures | None = Pictures(vectors=[])
    for number, captioner in enumerate(packs):
        store = captioner.datastore
        if not isinstance(store, MutableStore):
            raise InputError("only packs with a datastore of their own can be merged")
        require_same_encoder(datastore, store)
        if number:
            statistics = statistics + captioner.statistics
        theirs, ours, known = store.ids, datastore.merge(store), captioner.pictures
        pictures = None if pictures is None or known is None else pictures.joined(known, theirs, ours)
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
    if _hardly_differs(merged, first):
        merged.calibration = first.calibration
    _warn_of_losses(packs, merged)
    return merged


def _hardly_differs(merged: Pack, first: Pack) -> bool:
    """Tell whether captions of a joined pack are made as those of the first: by its map, from its pairs."""
    same_map = merged.settings.method == first.settings.method
    return same_map and first.statistics.pairs >= NEARLY_ALL * merged.statistics.pairs


def merge_packs(names: Sequence[str], out: Path, *, method: str | None = None) -> Pack:
    """Merge packs by name and write the result to a folder, which may hold one of them.

    Where the captions of one of them are on disk or in a database, all go to the disk, and never all into memory.
    """
    pack.check_target(out)
    with pack.changing(out):
        first = Pack.from_pretrained(names[0], progress=True)
        others = [Pack.from_pretrained(name, language_model="none", progress=True) for name in names[1:]]
        large = not all(isinstance(one.datastore, Datastore) for one in (first, *others))
        with staging(out, DISK if large else None) as make_store:
            store = make_store(first.encoder.text)
            merged = merge([first, *others], method=method, datastore=store, progress=True)
            if isinstance(merged.datastore, DiskStore):
                merged.datastore.commit()  # so that the pack can have the same files
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


def _warn_of_losses(packs: Sequence[Pack], merged: Pack) -> None:
    hashes = [{picture.sha256 for picture in captioner.pictures or ()} for captioner in packs]
    twice = sum(len(known) for known in hashes) - len(set().union(*hashes))
    if twice:
        message = f"{twice} pictures are in more than one of the packs, and count for each of them"
        warnings.warn(message, RecapWarning, stacklevel=3)
    if merged.calibration is None and any(captioner.calibration for captioner in packs):
        message = "the confidence was fitted to single packs: captions have none until recap pack calibrate fits it"
        warnings.warn(message, RecapWarning, stacklevel=3)
    languages = {captioner.settings.language for captioner in packs}
    for one, other in pairwise(sorted(languages)):
        warnings.warn(f"captions in {one} and {other} come together in one pack", RecapWarning, stacklevel=3)


LEFT_BEHIND = ["**/.lock", ".lock", "**/.*.tmp"]
"""What belongs to this machine only."""


def push_verified(folder: Path, repository: str, **options: Any) -> str:
    """Upload the pack in a folder if it is sound, and warn if it has no licence; ``options`` are those of ``push``."""
    for check in verify(folder):
        if check.problem:
            raise PackError(f"not uploaded: {check.problem}")
    if not PackConfig.read(folder).about.licence:
        message = "the card names no licence, so nobody may use this pack; see recap fit --licence"
        warnings.warn(message, RecapWarning, stacklevel=2)
    return push(folder, repository, **options)


def push(
    folder: Path,
    repository: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    commit_message: str = "Upload a recap pack",
) -> str:
    """Upload the pack in a folder as a repository of the hub, made first if it is not there; return its address."""
    from huggingface_hub import HfApi

    from recap.assets.registry import translate_errors

    elsewhere = PackConfig.read(folder).datastore
    if elsewhere:
        raise PackError(
            f"{folder}: its captions are in {elsewhere}, which others cannot reach; bring them into the pack first "
            f"(recap datastore move {folder} flat)"
        )
    api = HfApi(token=token)
    with translate_errors(repository):
        name = api.create_repo(repository, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=commit_message,
            allow_patterns=[*pack.NAMES, f"{pack.DATASTORE}/*"],
            ignore_patterns=LEFT_BEHIND,
            delete_patterns=[f"{pack.DATASTORE}/*", "pictures.*", pack.CONFIDENCE],
        )
    return str(commit.commit_url)


def pull(repository: str, folder: Path, *, revision: str | None = None, token: str | bool | None = None) -> None:
    """Download a pack from the hub into a folder, all of it or nothing, and check it."""
    from recap.assets import hub_folder

    pack.check_target(folder)
    snapshot = hub_folder(repository, revision=revision, token=token)
    with pack.changing(folder):
        pack.check_target(folder)
        with atomic_folder(folder) as target:
            for name in pack.NAMES:
                if (snapshot / name).is_dir():
                    shutil.copytree(snapshot / name, target / name)
                elif (snapshot / name).is_file():
                    shutil.copyfile(snapshot / name, target / name)
            broken = [check for check in verify(target) if check.problem]
            if broken:
                raise PackError(f"{repository}: what came from the hub is no sound pack: {broken[0].problem}")
