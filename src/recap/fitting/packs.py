"""Packs from files of pairs: fitted, updated, and pictures withdrawn, here or on a cluster; what ``recap fit`` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.assets import vector_file
from recap.datasets import PairFiles
from recap.datastore import DiskArguments, DiskStore
from recap.encoders import Encoder, load_encoder
from recap.errors import InputError
from recap.fitting.confidence import fit_calibration
from recap.fitting.embedding import embed
from recap.fitting.tuning import Trial
from recap.fitting.vectors import VectorFolder, is_vectors
from recap.language import load_language_model
from recap.packs.captions import check_place, move, staging
from recap.packs.config import About
from recap.packs.folder import changing, check_target
from recap.packs.settings import Settings
from recap.parallel import storage
from recap.parallel.parts import find_parts
from recap.parallel.runners import runner

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.confidence import Calibration


def fit_pack(
    pairs: str,
    target: Path,
    *,
    encoder: str = "builtin",
    images: str | None = None,
    splits: tuple[str, ...] = (),
    source: str = "",
    validation: str | None = None,
    tune: Callable[[Trial], None] | None = None,
    language_model: str | None = None,
    language: str | None = None,
    device: str = "cpu",
    keep_vectors: bool = False,
    calibrate: bool = True,
    about: dict[str, str | None] | None = None,
    datastore: str | None = None,
    ray: str | None = None,
    force: bool = False,
    **settings: Any,
) -> ReCap:
    """Fit a pack to pairs and save it; the options are those of ``recap fit``. Settings that are None are left out."""
    check_target(target, replace=force)
    if datastore is not None:
        check_place(datastore)
    from recap.captioner import ReCap

    # the writer in the package was trained on English
    model = language_model or ("writer" if (language or "en").startswith("en") else "none")
    changed = {name: value for name, value in {"language": language, **settings}.items() if value is not None}
    Settings().but(**changed)  # what is wrong with these is said before the work
    options: dict[str, Any] = {
        "language_model": load_language_model(model, device=device),
        "device": device,
        "source": source or Path(pairs).stem,
        "validation": parse_validation(validation or ("0.1" if tune else None), pairs, images),
        "tune": tune or False,
        "keep_vectors": keep_vectors,
        "calibrate": calibrate,
        "about": About().but(**(about or {})),
        "progress": True,
        **changed,
    }
    with staging(target, datastore) as make_store:
        if ray is None and not is_for_parts(pairs, images):
            files: PairFiles | VectorFolder = PairFiles(pairs, images=images, splits=splits or None)
            loaded = _load_encoder(encoder, device)
        else:
            files, loaded = embed_in_parts(pairs, encoder, ray, target, images=images, splits=splits, device=device)
        captioner = ReCap.fit(files, encoder=loaded, datastore=make_store(loaded.text), **options)
        if isinstance(captioner.datastore, DiskStore):
            captioner.datastore.commit()  # so that the pack can have the same files
        _save(captioner, target, datastore)
    return captioner


def embed_in_parts(
    pairs: str, encoder: str, ray: str | None, target: Path, *, images: str | None, splits: Collection[str], device: str
) -> tuple[VectorFolder, Encoder]:
    """Return the vectors of pairs and their encoder; they are made first, unless they are what is given.

    They are kept beside the pack until it is there, so that a killed fit goes on.
    """
    given, who = is_vectors(pairs), runner(ray)
    folder = VectorFolder(storage.absolute(pairs) if given else str(vectors_beside(target.absolute())), who)
    loaded = _load_encoder(folder.space.encoder if given and encoder == "builtin" else encoder, device)
    if not given:
        parts = find_parts(pairs, images=images, splits=splits or None, captions_required=True)
        embed(parts, folder.place, loaded, runner=who, device=device, progress=True)
    return folder, loaded


def is_for_parts(pairs: str, images: str | None = None) -> bool:
    """Tell whether pairs or their pictures lie in a bucket, or are there as vectors."""
    return storage.is_url(pairs) or storage.is_url(images or "") or is_vectors(pairs)


def vectors_beside(target: Path) -> Path:
    """Return where the vectors of a pack's pairs are until it is written."""
    return target.with_name(f".{target.name}.vectors")


def update_pack(
    pack: str,
    pairs: str,
    target: Path,
    *,
    images: str | None = None,
    splits: tuple[str, ...] = (),
    source: str = "",
    device: str = "cpu",
    calibrate: bool = True,
    about: dict[str, str | None] | None = None,
    datastore: str | None = None,
    force: bool = False,
) -> ReCap:
    """Add pairs to a pack and save it, there or as another."""
    check_target(target, replace=force or target == Path(pack))
    if datastore is not None:
        check_place(datastore)
    # what is added must meet the pack that was read
    with changing(target):
        known = PairFiles(pairs, images=images, splits=splits or None)
        captioner = _load(pack, device, about)
        captioner.update(known, source=source or Path(pairs).stem, progress=True, calibrate=calibrate)
        _save(captioner, target, datastore)
    return captioner


def withdraw_pictures(
    pack: str,
    names: Collection[str],
    target: Path,
    *,
    pairs: str | None = None,
    images: str | None = None,
    source: str = "",
    device: str = "cpu",
    about: dict[str, str | None] | None = None,
    force: bool = False,
) -> tuple[ReCap, int]:
    """Take pictures out of a pack and save it; return it, and how many captions went."""
    check_target(target, replace=force or target == Path(pack))
    with changing(target):
        known = None if pairs is None else PairFiles(pairs, images=images)
        captioner = _load(pack, device, about)
        gone = captioner.forget(names, known, source=source or None)
        captioner.save_pretrained(target)
    return captioner, gone


def calibrate_pack(
    folder: Path,
    pairs: str | None = None,
    *,
    images: Path | None = None,
    splits: tuple[str, ...] = (),
    fitted: bool = True,
    pictures: int = 1000,
) -> Calibration:
    """Fit the confidence of the pack in a folder and save it there; see ``fit_calibration``."""
    known = None if pairs is None else PairFiles(pairs, images=images, splits=splits or None)
    with changing(folder):
        captioner = _load(str(folder), "cpu", None)
        captioner.calibration = fit_calibration(captioner, known, fitted=fitted, pictures=pictures, progress=True)
        captioner.save_pretrained(folder)
    return captioner.calibration


def parse_validation(text: str | None, pairs: str, images: str | None) -> float | PairFiles | None:
    """Return the share of pictures, the file, or the split of ``pairs`` that ``--validation`` names."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        if "://" in (images or ""):
            message = f"--validation {text}: of pictures in a bucket only a share can be held out"
            raise InputError(message) from None
        if Path(text).exists():
            return PairFiles(text, images=images)
        if Path(pairs).suffix.lower() == ".json":
            return PairFiles(pairs, images=images, splits=[text])
    raise InputError(f"--validation {text}: neither a share, nor a file, nor a split of a Karpathy file")


def parse_names(text: str) -> list[str]:
    """Return the names in a file, one a line, or between commas."""
    path = Path(text)
    listed = path.read_text(encoding="utf-8").split("\n") if path.is_file() else text.split(",")
    names = [name.strip() for name in listed if name.strip()]
    if not names:
        raise InputError(f"--forget {text}: no names of pictures")
    return names


def summarize(captioner: ReCap, rest: str) -> Iterator[str]:
    """Yield what a reader should know about a fit, the pack last; ``rest`` says where the other troubles are listed."""
    report, numbers = captioner.report, captioner.about.numbers
    yield from report.summary(rest)
    yield from (
        f"validation {name}: {numbers[name]:.1f}" for name in ("cider_d", "i2t_r1", "t2i_r1") if name in numbers
    )
    if captioner.seconds:
        yield "seconds: " + ", ".join(f"{part} {seconds:.1f}" for part, seconds in captioner.seconds.items())
    known = report.pictures if captioner.pictures is None else len(captioner.pictures)
    added = f"{report.pictures:,} pictures added; " if known > report.pictures else ""
    yield f"{added}{captioner.alignment.method} fitted on {captioner.statistics.pairs:,.0f} pairs of {known:,} pictures"


def _load_encoder(name: str, device: str) -> Encoder:
    return load_encoder(name, device=device, cache=vector_file())


def _load(pack: str, device: str, about: dict[str, str | None] | None) -> ReCap:
    from recap.captioner import ReCap

    captioner = ReCap.from_pretrained(pack, device=device, progress=True, cache=vector_file())
    captioner.about = captioner.about.but(**(about or {}))
    return captioner


def _save(captioner: ReCap, target: Path, datastore: str | None) -> None:
    captioner.save_pretrained(target)
    if datastore is not None and not (datastore == DiskArguments.kind and isinstance(captioner.datastore, DiskStore)):
        move(target, datastore, progress=True)
    shutil.rmtree(vectors_beside(target), ignore_errors=True)
