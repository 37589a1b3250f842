"""Packs on the Hugging Face hub: up, and down into a folder of one's own."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from recap.errors import PackError, RecapWarning
from recap.files import atomic_folder
from recap.packs import folder as pack
from recap.packs.config import PackConfig
from recap.packs.verify import verify

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

    from recap.assets.hub import translate_errors

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
    from recap.packs.verify import verify

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
