"""Packs: a captioner as a folder that can be copied, shared and loaded anywhere.

    config.json                encoder, language model, settings, fingerprints, format version
    alignment.safetensors      the map
    statistics.safetensors     what the map was solved from, so that other maps and more pairs need no old data
    datastore/                 the captions and their vectors
    README.md                  a card

``config.json`` is written last, so a folder with one is complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from recap import __version__
from recap.alignment import LinearAlignment, PairStatistics
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError, InputError, PackError
from recap.files import atomic_folder, write_json
from recap.settings import Settings

if TYPE_CHECKING:
    from recap.captioner import ReCap

FORMAT = 1
CONFIG = "config.json"
ALIGNMENT = "alignment.safetensors"
STATISTICS = "statistics.safetensors"
DATASTORE = "datastore"
CARD = "README.md"
BUILTIN = "builtin"
"""The pack that comes with the package; a folder of the same name is meant by ./builtin."""


@dataclass(frozen=True, slots=True)
class PackContents:
    """Everything a pack holds, loaded; the language model by its name."""

    encoder: Encoder
    alignment: LinearAlignment
    statistics: PairStatistics
    datastore: Datastore
    settings: Settings
    language_model: str


def check_target(folder: Path) -> None:
    """Raise unless a pack may be written to ``folder``: it is not there, is empty, or holds a pack and nothing else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PackError(f"{folder} is a file; a pack is a folder")
    there = {path.name for path in folder.iterdir()}
    foreign = sorted(there - {CONFIG, ALIGNMENT, STATISTICS, DATASTORE, CARD})
    if foreign:
        raise PackError(f"{folder} holds other things than a pack, such as {foreign[0]}; give an empty or a new folder")
    if there:
        read_config(folder)


def save(captioner: ReCap, folder: Path, **facts: Any) -> None:
    """Write a captioner as a pack, in place of the one the folder held before; ``facts`` go into its config."""
    check_target(folder)
    with atomic_folder(folder) as target:
        captioner.alignment.save(target / ALIGNMENT)
        captioner.statistics.save(target / STATISTICS)
        captioner.datastore.copy_to(target / DATASTORE)
        (target / CARD).write_text(card(captioner), encoding="utf-8")
        write_json(target / CONFIG, {**_config(captioner), **facts})


def push(
    captioner: ReCap,
    repository: str,
    *,
    private: bool | None,
    revision: str | None,
    token: str | bool | None,
    commit_message: str,
) -> str:
    """Upload a captioner as a repository of the Hugging Face hub, made first if it is not there."""
    from huggingface_hub import HfApi

    from recap.assets.hub import explained

    api = HfApi(token=token)
    with TemporaryDirectory() as temporary, explained(repository):
        name = api.create_repo(repository, private=private, exist_ok=True).repo_id
        folder = Path(temporary) / "pack"
        save(captioner, folder)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=commit_message,
            delete_patterns=f"{DATASTORE}/*",
        )
    return str(commit.commit_url)


def load(
    name: str | Path, *, device: str, revision: str | None, token: str | bool | None, progress: bool
) -> PackContents:
    """Load a built-in pack, a folder, or a repository of the Hugging Face hub."""
    if name == BUILTIN:
        from recap.builtin import builtin_pack

        return read(builtin_pack(progress=progress), device)
    folder = Path(name)
    if not folder.is_dir():
        if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise PackError(f"{name}: no such folder. A pack is a folder, {BUILTIN}, or OWNER/NAME on the hub")
        from recap.assets import hub_folder

        folder = hub_folder(str(name), revision=revision, token=token)
    return read(folder, device)


def read(folder: Path, device: str = "cpu") -> PackContents:
    """Read the pack in a folder, and check that its vectors are of the encoder it names."""
    config = read_config(folder)
    encoder = load_encoder(config["encoder"], device=device)
    for side, made_by, here in (
        ("image", config["image_fingerprint"], encoder.image.fingerprint),
        ("text", config["text_fingerprint"], encoder.text.fingerprint),
    ):
        if made_by != here:
            raise EncoderMismatchError(
                f"{folder}: this pack was made with another version of the {side} encoder {encoder.name}; "
                "fit it again, or install the version it was made with"
            )
    return PackContents(
        encoder=encoder,
        alignment=LinearAlignment.load(folder / ALIGNMENT),
        statistics=PairStatistics.load(folder / STATISTICS),
        datastore=Datastore.load(folder / DATASTORE),
        settings=_settings(config, folder),
        language_model=config["language_model"],
    )


def _settings(config: dict[str, Any], folder: Path) -> Settings:
    try:
        return Settings.from_dict(config["settings"])
    except InputError as error:
        raise PackError(f"{folder / CONFIG}: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` of a pack says, checked as far as it can be without loading anything."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PackError(f"{folder} is not a pack: it has no {CONFIG}") from error
    except (OSError, ValueError) as error:
        raise PackError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise PackError(f"{path}: format {found!r} is not known to recap {__version__}, which reads format {FORMAT}")
    missing = {"encoder", "image_fingerprint", "text_fingerprint", "language_model", "settings"} - config.keys()
    if missing:
        raise PackError(f"{path}: {', '.join(sorted(missing))} missing")
    return config


def card(captioner: ReCap) -> str:
    """Return the card of a pack: what it is made of, in the form the Hugging Face hub shows."""
    sources = captioner.datastore.sources()
    named = ", ".join(f"{name or 'unnamed'} ({count:,})" for name, count in sorted(sources.items()))
    model = captioner.language_model.name if captioner.language_model else "none"
    return f"""---
library_name: recap
pipeline_tag: image-to-text
tags: [image-captioning, recap]
---
# A recap pack

Captions images by one linear map into caption space and {len(captioner.datastore):,} captions to retrieve from.

| | |
|---|---|
| encoder | {captioner.encoder.name} |
| map | {captioner.alignment.method}, fitted on {captioner.statistics.pairs:,.0f} pairs |
| sources of the captions | {named} |
| language model | {model} |
| selection | {captioner.settings.selection} |

```python
from recap import ReCap

captioner = ReCap.from_pretrained("path/to/this/folder")
print(captioner.caption("photo.jpg").text)
```

The captions in `datastore/` are the words of whoever wrote them: share this pack only as their licence allows.
"""


def _config(captioner: ReCap) -> dict[str, Any]:
    model = captioner.language_model
    return {
        "format": FORMAT,
        "recap_version": __version__,
        "encoder": captioner.encoder.name,
        "image_fingerprint": captioner.encoder.image.fingerprint,
        "text_fingerprint": captioner.encoder.text.fingerprint,
        "language_model": model.name if model else "none",
        "settings": captioner.settings.as_dict(),
    }
