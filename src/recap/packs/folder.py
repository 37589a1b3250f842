"""Packs: a captioner as a folder that can be copied, shared and loaded anywhere.

    config.json                encoder, language model, settings, fingerprints, what is known about it, format version
    alignment.safetensors      the map
    statistics.safetensors     what the map was solved from, so that other maps and more pairs need no old data
    datastore/                 the captions and their vectors, unless the config has the address of a database with them
    pictures.parquet           names and hashes of the pictures, so that they can be withdrawn (see packs/pictures.py)
    pictures.safetensors       their vectors, on request
    confidence.json            what a score is worth in this pack, where that was measured
    README.md                  a card

``config.json`` is written last, so a folder with one is complete. One process at a time changes a pack, and what killed
ones have left is removed. The lock is an empty file beside the folder, ``.NAME.lock``, since the folder itself is
replaced as a whole. Readers need none: the config has a generation, which is compared after everything has been read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.alignment import LinearAlignment, PairStatistics
from recap.confidence import Calibration
from recap.datastore import CaptionStore, DatastoreView, MutableStore
from recap.encoders import Encoder
from recap.encoders.network import cores
from recap.errors import PackError, RecapError, damaged
from recap.files import atomic_folder, atomic_write, exclusive, file_sha256, leftovers
from recap.language import LanguageModel, load_language_model
from recap.packs.config import CONFIG as CONFIG
from recap.packs.config import DATASTORE as DATASTORE
from recap.packs.config import Facts, PackConfig, new_card, refreshed
from recap.packs.register import TABLE, VECTORS, Pictures
from recap.types import check_kinds

if TYPE_CHECKING:
    from recap.packs.base import Pack

ALIGNMENT = "alignment.safetensors"
STATISTICS = "statistics.safetensors"
CONFIDENCE = "confidence.json"
CARD = "README.md"
NAMES = (CONFIG, ALIGNMENT, STATISTICS, DATASTORE, TABLE, VECTORS, CONFIDENCE, CARD)
"""Everything that may lie in the folder of a pack."""

ATTEMPTS = 20
"""Number of times a pack is read that changes meanwhile."""

BUILTIN = "builtin"
FAST = "builtin-fast"
BUILTINS = (BUILTIN, FAST, "builtin-large")
"""The packs that come with the package, the last by the name that the first had before it became the default; a folder
of the same name is meant by ./builtin."""


@dataclass(frozen=True, slots=True)
class PackContents:
    """Everything a pack holds, loaded."""

    config: PackConfig
    encoder: Encoder
    language_model: LanguageModel | None
    alignment: LinearAlignment
    statistics: PairStatistics
    datastore: CaptionStore
    pictures: Pictures | None
    calibration: Calibration | None


def check_target(folder: Path, *, replace: bool = True) -> None:
    """Raise unless a pack may be written to ``folder``: it is not there, is empty, or holds a pack and nothing else.

    Without ``replace`` it must not hold a pack either.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PackError(f"{folder} is a file; a pack is a folder")
    unfinished = {path for name in NAMES for path in leftovers(folder / name)}
    there = {path.name for path in folder.iterdir() if path not in unfinished}
    foreign = sorted(there - {*NAMES})
    if foreign:
        raise PackError(f"{folder} holds other things than a pack, such as {foreign[0]}; give an empty or a new folder")
    if there:
        PackConfig.read(folder)
        if not replace:
            raise PackError(f"{folder} holds a pack: --force replaces it, and --update {folder} adds to it")


def save(captioner: Pack, folder: Path, *, captions: int | None = None) -> None:
    """Write a captioner as a pack, in place of the one the folder held before; ``captions`` goes into its config."""
    with changing(folder):
        _save(captioner, folder, captions)


def _save(captioner: Pack, folder: Path, captions: int | None) -> None:
    check_target(folder)
    store, statistics, model = captioner.datastore, captioner.statistics, captioner.language_model
    with _replacing(store, folder / DATASTORE), atomic_folder(folder) as target:
        captioner.alignment.save(target / ALIGNMENT)
        statistics.save(target / STATISTICS)
        if not store.url:
            store.copy_to(target / DATASTORE)
        if captioner.pictures is not None:
            captioner.pictures.save(target)
        if captioner.calibration is not None:
            captioner.calibration.save(target / CONFIDENCE)
        config = PackConfig(
            folder=target,
            encoder=captioner.encoder.name,
            image_fingerprint=captioner.encoder.image.fingerprint,
            text_fingerprint=captioner.encoder.text.fingerprint,
            language_model=model.name if model else "none",
            settings=captioner.settings,
            about=captioner.about,
            datastore=store.url,
            captions=captions,
            files=_listed(target),
        )
        facts = _facts(config, captioner.alignment.method, statistics.pairs, store)
        (target / CARD).write_text(new_card(facts), encoding="utf-8")
        config.write()


def load(
    name: str | Path,
    *,
    device: str,
    revision: str | None,
    token: str | bool | None,
    progress: bool,
    cache: str | Path | None = None,
    language_model: str | LanguageModel | None = None,
) -> PackContents:
    """Load a built-in pack, a folder, or a repository of the Hugging Face hub."""
    contents = read(find(name, revision=revision, token=token, progress=progress), device, cache, language_model)
    if name in BUILTINS:
        from recap.packs.builtin import packaged_file

        return replace(contents, calibration=Calibration.load(packaged_file(CONFIDENCE, str(name))))
    return contents


def find(
    name: str | Path, *, revision: str | None = None, token: str | bool | None = None, progress: bool = False
) -> Path:
    """Return the folder of a built-in pack, a folder, or a repository of the Hugging Face hub."""
    if name in BUILTINS:
        from recap.packs.builtin import builtin_pack

        return builtin_pack(str(name), progress=progress)
    check_name(name)
    folder = Path(name)
    if folder.is_dir():
        return folder
    from recap.assets import hub_folder

    return hub_folder(str(name), revision=revision, token=token)


def check_name(name: str | Path) -> None:
    """Raise ``PackError`` unless a name can be one of a pack; whether the hub has it is not asked."""
    if name in BUILTINS or Path(name).is_dir():
        return
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise PackError(f"{name}: no such folder. A pack is a folder, {', '.join(BUILTINS)}, or OWNER/NAME on the hub")


def read(
    folder: Path,
    device: str = "cpu",
    cache: str | Path | None = None,
    language_model: str | LanguageModel | None = None,
) -> PackContents:
    """Read the pack in a folder, and check that its vectors are of the encoder it names.

    All of it is of one state, even where another process replaces the pack meanwhile.
    """
    for _ in range(ATTEMPTS):
        config = PackConfig.read(folder)
        try:
            contents = _read(config, device, cache, language_model)
        except (RecapError, OSError):
            if config.is_current():
                raise
        else:
            if config.is_current():
                return contents
    raise PackError(f"{folder}: other processes change it again and again; try again when they are done")


def _read(
    config: PackConfig, device: str, cache: str | Path | None, language_model: str | LanguageModel | None
) -> PackContents:
    folder = config.folder
    model = config.language_model if language_model is None else language_model
    with ThreadPoolExecutor(min(2, cores())) as threads:  # most of the time goes into the networks
        encoder = threads.submit(config.load_encoder, device, cache)
        loaded = threads.submit(resolve_language_model, model, device)
        contents = PackContents(
            config=config,
            alignment=LinearAlignment.load(folder / ALIGNMENT),
            statistics=PairStatistics.load(folder / STATISTICS),
            datastore=config.open_datastore(),
            pictures=Pictures.load(folder),
            calibration=_read_calibration(folder / CONFIDENCE),
            encoder=encoder.result(),
            language_model=loaded.result(),
        )
    _check_dimensions(contents, folder)
    return contents


def resolve_language_model(model: str | LanguageModel | None, device: str) -> LanguageModel | None:
    """Return a language model that is given by its name or as it is."""
    return load_language_model(model, device=device) if isinstance(model, str) else model


def _read_calibration(path: Path) -> Calibration | None:
    if not path.exists():
        return None
    with damaged(path):
        if not path.is_file():
            raise ValueError("it is not a file")
        calibration = Calibration.load(path)
        check_kinds(calibration)
        return calibration


def _check_dimensions(contents: PackContents, folder: Path) -> None:
    """Raise unless the parts fit each other; what is multiplied later need not be looked at again."""
    encoder = contents.encoder
    wanted = (encoder.text.dimension, encoder.image.dimension)
    found = {
        ALIGNMENT: contents.alignment.W_.shape,
        STATISTICS: (contents.statistics.d_text, contents.statistics.d_image),
        DATASTORE: (contents.datastore.dimension, wanted[1]),
    }
    for name, shape in found.items():
        if shape != wanted:
            raise PackError(f"{folder / name} is of {shape} dimensions, where the encoder has {wanted}")


def read_datastore(folder: Path) -> MutableStore | DatastoreView:
    """Open the captions of a pack, wherever they are."""
    return PackConfig.read(folder).open_datastore()


def read_own_datastore(folder: Path) -> MutableStore:
    """Open the captions of a pack to change them."""
    if (folder / DATASTORE).is_symlink():
        raise PackError(f"{folder / DATASTORE} is a symbolic link: change the pack it leads to")
    store = read_datastore(folder)
    if not isinstance(store, MutableStore):
        raise PackError(f"{folder}: its captions are in several collections, which are changed one by one")
    return store


def read_statistics(name: str) -> tuple[str, PairStatistics]:
    """Return the encoder's name and the statistics of a pack, without its datastore."""
    if name in BUILTINS:
        from recap.packs.builtin import packaged_file

        return name, PairStatistics.load(packaged_file(STATISTICS, name))  # it is named like its encoder
    folder = find(name, progress=True)
    return PackConfig.read(folder).encoder, PairStatistics.load(folder / STATISTICS)


def read_facts(folder: Path, datastore: CaptionStore) -> Facts:
    """Return what the card of the pack in a folder has to say; ``datastore`` is the pack's."""
    alignment = LinearAlignment.load(folder / ALIGNMENT)
    return _facts(PackConfig.read(folder), alignment.method, alignment.n_pairs_, datastore)


def _facts(config: PackConfig, method: str, pairs: float, datastore: CaptionStore) -> Facts:
    return Facts(
        config.encoder, method, pairs, datastore.sources(), config.language_model, config.settings, config.about
    )


def refresh_card(folder: Path, datastore: CaptionStore) -> None:
    """Bring the card of a pack up to date after its captions have changed; what its author wrote stays."""
    path, facts = folder / CARD, read_facts(folder, datastore)
    with damaged(path):
        text = path.read_text(encoding="utf-8") if path.is_file() else new_card(facts)
    # a pack may come from elsewhere, and a link in it lead anywhere
    with atomic_write(path, follow=False) as file:
        file.write(refreshed(text, facts).encode())


def _replacing(datastore: CaptionStore, folder: Path) -> AbstractContextManager[None]:
    return datastore.replaced_at(folder) if isinstance(datastore, MutableStore) else nullcontext()


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of the files that only change when the whole pack is written."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (CONFIG, CARD))
    return {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in files}


@contextmanager
def changing(folder: str | Path) -> Iterator[None]:
    """Keep other processes from changing the pack in a folder while the block runs; it may be entered again inside."""
    target = Path(os.path.realpath(folder))
    # without a right to write there nobody can replace the pack, and its datastore has a lock of its own
    if target.parent.is_dir() and not os.access(target.parent, os.W_OK):
        yield
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f".{target.name}.lock")):
        _sweep(target)
        yield


def _sweep(target: Path) -> None:
    """Remove what killed processes have left of a pack; whoever is at work on one holds its lock."""
    # a kill between two renames may have left the pack itself under such a name, where names cannot be exchanged
    if not (target / CONFIG).is_file():
        return
    for path in leftovers(target):
        _remove(path)
    for name in NAMES:
        for path in leftovers(target / name):
            if not path.is_dir() or not _is_held(target / name):
                _remove(path)


def _is_held(datastore: Path) -> bool:
    """Tell whether somebody is writing a datastore anew, who has its lock, if not the pack's."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(datastore / ".lock").acquire(blocking=False):
            return False
    except (Timeout, OSError):
        return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
