"""A pack from pairs or their vectors, in parts: what ``recap fit`` does where ``ReCap.fit`` would not do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.assets import cache_dir
from recap.captioner import ReCap
from recap.encoders import load_encoder
from recap.fitting.fit import Pairs
from recap.language import load_language_model
from recap.packs.about import About
from recap.packs.captions import MakeStore
from recap.parallel import storage
from recap.parallel.confidence import SomePictures
from recap.parallel.embedding import embed
from recap.parallel.fitting import fit_vectors
from recap.parallel.parts import find_parts
from recap.parallel.runners import runner
from recap.parallel.shards import VectorFolder, is_vectors
from recap.settings import Settings

if TYPE_CHECKING:
    from recap.fitting.tuning import Trial


def is_for_parts(pairs: str, images: str | None = None) -> bool:
    """Tell whether pairs or their pictures lie in a bucket, or are there as vectors."""
    return storage.is_url(pairs) or storage.is_url(images or "") or is_vectors(pairs)


def vectors_beside(target: Path) -> Path:
    """Return where the vectors of a pack's pairs are until it is written."""
    return target.with_name(f".{target.name}.vectors")


def fit_in_parts(
    pairs: str,
    encoder: str,
    address: str | None,
    target: Path,
    *,
    images: str | None = None,
    splits: Collection[str] | None = None,
    device: str = "cpu",
    source: str = "",
    validation: float | Pairs | None = None,
    keep_vectors: bool = False,
    progress: bool = False,
    language_model: str = "none",
    tune: bool | Callable[[Trial], None] = False,
    about: About | None = None,
    make_store: MakeStore = lambda text: None,
    calibrate: bool = False,
    **settings: Any,
) -> ReCap:
    """Fit a captioner to pairs; their vectors are made first, unless they are what is given.

    Args:
        pairs: what ``find_parts`` cuts into parts, or a folder of vectors.
        encoder: its name; vectors know by which they were made.
        address: of a Ray cluster; None for this machine.
        target: the pack; vectors are kept beside it until it is there, so that a killed fit goes on.
        images: where the pictures of a file lie.
        splits: of a Karpathy file.
        device: where the encoders run.
        source: a name for these captions in the datastore.
        validation: a share of the pictures, or other pairs.
        keep_vectors: whether the pack keeps image vectors.
        progress: whether to show bars.
        language_model: its name.
        tune: as in ``ReCap.fit``, and all that follows.
        about: author, licence and description for the card.
        make_store: returns an empty store to take the captions; None for one in memory.
        calibrate: whether to fit the confidence of captions, on some of the vectors.
        settings: any of ``recap.settings.Settings``.
    """
    # what is wrong with these is said before the work
    chosen, model = Settings().but(**settings), load_language_model(language_model, device=device)
    who, given = runner(address), is_vectors(pairs)
    folder = VectorFolder(storage.absolute(pairs) if given else str(vectors_beside(target.absolute())))
    name = folder.space.encoder if given and encoder == "builtin" else encoder
    loaded = load_encoder(name, device=device, cache=cache_dir() / "vectors.sqlite")
    if not given:
        parts = find_parts(pairs, images=images, splits=splits, captions_required=True)
        embed(parts, folder.place, loaded, runner=who, device=device, progress=progress)
    some = SomePictures() if calibrate else None
    encoded = fit_vectors(
        folder,
        loaded,
        runner=who,
        source=source,
        validation=validation,
        keep_vectors=keep_vectors,
        progress=progress,
        datastore=make_store(loaded.text),
        some=some,
    )
    captioner = ReCap.from_encoded(encoded, loaded, language_model=model, settings=chosen, about=about, device=device)
    if validation is not None or tune:
        from recap.fitting.tuning import judged

        captioner = judged(captioner, encoded.validation, tune=tune)
    if some is not None:
        captioner.calibration = some.calibration(captioner)
    return captioner
