"""How a captioner comes from pairs, takes up more of them, and forgets some: exactly, without the other pairs.

The map is a function of sums over the pairs. What is added to or subtracted from them gives the map of a fit from
scratch, up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.datastore import MutableStore
from recap.encoders import Encoder, load_encoder
from recap.encoders.images import digest
from recap.encoders.inputs import read
from recap.errors import InputError
from recap.fitting.confidence import calibrate_fitted, drop_calibration
from recap.fitting.fit import EncodedPairs, encode_pairs, finish_fit, suited_to, worked_examples
from recap.fitting.pairs import FITTED, FitReport, KnownPairs, Pairs, as_pairs, keys_of
from recap.language import LanguageModel
from recap.packs.base import Pack, resolve_language_model
from recap.packs.config import About
from recap.packs.register import Picture, Pictures, captions_digest, shorten
from recap.packs.settings import SettingChanges, Settings
from recap.types import Pair, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.fitting.tuning import Trial


class FittedPack(Pack):
    """A pack that is fitted to pairs: the part of a ``ReCap`` that makes and changes it."""

    report = FitReport()
    """What went into the last fit or update, and what was wrong with the rest."""
    seconds: Mapping[str, float] = MappingProxyType({})
    """What each part of the last fit took: encoding, map, validation, confidence."""

    @classmethod
    def fit(
        cls,
        pairs: Pairs,
        *,
        encoder: str | Encoder = "builtin",
        language_model: str | LanguageModel | None = "writer",
        device: str = "cpu",
        source: str = "",
        validation: float | Pairs | None = None,
        tune: bool | Callable[[Trial], None] = False,
        keep_vectors: bool = False,
        calibrate: bool = True,
        about: About | None = None,
        progress: bool = False,
        datastore: MutableStore | None = None,
        **settings: Unpack[SettingChanges],
    ) -> Self:
        """Fit the map to pairs and take their captions as datastore.

        Pictures that cannot be read are left out and listed in ``problems``; ``report`` says more.

        Args:
            pairs: ``Pair`` objects, ``(image, caption)`` or ``(image, [captions])`` tuples, or the path of a folder
                or file that ``recap.datasets.read_pairs`` understands.
            encoder: a name as in ``recap.encoders``, or an encoder.
            language_model: a name as in ``recap.language``, or a model; None for no language model.
            device: ``cpu``, ``cuda`` or ``mps``.
            source: a name for these captions in the datastore.
            validation: a share of the pictures, or other pairs, to measure with; they are not fitted.
            tune: whether to choose settings on the validation pictures (see ``recap.fitting.tuning``); or what is to be
                told of each trial.
            keep_vectors: whether the pack keeps image vectors, so that ``forget`` needs nothing but names.
            calibrate: whether to fit the confidence of captions, on at most 200 of the pictures and at least 20.
            about: author, licence and description for the card.
            progress: whether to show a bar.
            datastore: an empty one to take the captions, such as a ``DiskStore`` for more than fit into memory.
            settings: any of ``recap.packs.settings.Settings``, such as ``method="ols"``, ``k=13``, ``temperature=0.1``.
                The map is ``whitened`` unless named where the encoder's two sides share a space, else ``procrustes``.
        """
        from recap.captioner import ReCap  # which is made of this

        chosen = Settings().but(**settings)
        loaded = load_encoder(encoder, device=device) if isinstance(encoder, str) else encoder
        if loaded.shares_space and "method" not in settings:
            chosen = chosen.but(method="whitened")
        model = resolve_language_model(language_model, device)
        started = time.perf_counter()
        encoded = encode_pairs(
            pairs,
            loaded,
            source=source,
            validation=validation,
            keep_vectors=keep_vectors,
            progress=progress,
            datastore=datastore,
        )
        between = time.perf_counter()
        fitted = cls.from_encoded(encoded, loaded, language_model=model, settings=chosen, about=about, device=device)
        fitted.seconds = {"encoding": between - started, "map": time.perf_counter() - between}
        assert isinstance(fitted, ReCap)
        measure = validation is not None
        return finish_fit(fitted, encoded, measure=measure, tune=tune, calibrate=calibrate, progress=progress)

    @classmethod
    def from_encoded(
        cls,
        encoded: EncodedPairs,
        encoder: Encoder,
        *,
        language_model: LanguageModel | None,
        settings: Settings,
        about: About | None = None,
        device: str = "cpu",
    ) -> Self:
        """Return the captioner of pairs that are encoded already; the arguments mean the same as those of ``fit``."""
        parts = (encoder, encoded.statistics, encoded.datastore)
        settings = suited_to(settings, language_model, encoded.sample)
        fitted = cls(*parts, language_model=language_model, settings=settings, device=device)
        examples = worked_examples(encoded.sample, fitted.alignment, fitted.datastore)
        fitted.settings = settings.but(examples=settings.examples or examples)
        fitted.pictures, fitted.report = encoded.pictures, encoded.report
        fitted.about = (about or About()).but(data=encoded.report.counts())
        return fitted

    @property
    def problems(self) -> tuple[InputError, ...]:
        """What could not be used when this captioner was fitted or updated."""
        return self.report.broken

    def update(self, pairs: Pairs, *, source: str = "", progress: bool = False, calibrate: bool = True) -> FitReport:
        """Fit the map to more pairs without the old ones, and add their captions: as if fitted to all at once.

        With ``calibrate`` the confidence of captions is fitted anew; otherwise it is dropped.
        """
        return _update(self._captioner, pairs, source=source, progress=progress, calibrate=calibrate)

    def forget(self, ids: Collection[str], pairs: Pairs | None = None, *, source: str | None = None) -> int:
        """Withdraw pictures and their captions: as if fitted without them. Return how many captions went.

        Unless the pack keeps vectors, the pictures have to be given again, in ``pairs``. The confidence of captions,
        which was fitted with them, is dropped.
        """
        return _forget(self._captioner, ids, pairs, source=source)

    @property
    def _captioner(self) -> ReCap:
        from recap.captioner import ReCap

        assert isinstance(self, ReCap)
        return self


def _update(
    captioner: ReCap, pairs: Pairs, *, source: str = "", progress: bool = False, calibrate: bool = True
) -> FitReport:
    """Add pairs to the map and their captions to the datastore; pairs that are in the pack already are left out."""
    store = _own_store(captioner)
    store.progress = progress
    pictures = captioner.pictures
    keeps = pictures is not None and pictures.vectors is not None
    encoded = encode_pairs(
        pairs,
        captioner.encoder,
        source=source,
        progress=progress,
        keep_vectors=keeps,
        known=_known(pictures, store),
    )
    theirs, ours = encoded.datastore.ids, store.merge(encoded.datastore)
    if pictures is not None:
        captioner.pictures = pictures.joined(encoded.pictures, theirs, ours)
    _solve(captioner, captioner.statistics + encoded.statistics, store)
    data = dict(captioner.about.data)
    for name, count in encoded.report.counts().items():
        data[name] = data.get(name, 0) + count
    captioner.about = captioner.about.but(data=data, numbers={}, tuned=())
    captioner.report = encoded.report
    if calibrate:
        captioner.calibration = calibrate_fitted(captioner, encoded.sample, progress=progress)
    else:
        drop_calibration(captioner, "the confidence of captions was fitted to the pack as it was before")
    return encoded.report


def _forget(captioner: ReCap, ids: Collection[str], pairs: Pairs | None = None, *, source: str | None = None) -> int:
    """Take pictures and their captions out of map, datastore and examples; return how many captions went.

    The vectors to subtract are the pack's own where it keeps them; otherwise ``pairs`` holds the pictures once more,
    and only the very same files are accepted. Nothing changes unless all of them can be withdrawn.
    """
    store, pictures = _own_store(captioner), captioner.pictures
    if pictures is None:
        raise InputError("this pack does not record its pictures, so none can be withdrawn: fit it again without them")
    places = pictures.find(ids, source)
    gone = pictures.at(places)
    given = {} if pairs is None else {pair.id: pair for pair in as_pairs(pairs) if pair.id in set(ids)}
    vectors = pictures.vectors
    images = vectors[places] if vectors is not None else _encoded_again(captioner, gone, given)
    texts = [_caption_vectors(captioner, store, picture, given) for picture in gone]
    statistics = captioner.statistics - _statistics(captioner.statistics, images, texts)
    if statistics.pairs == 0:
        raise InputError("nothing would be left of this pack: delete its folder instead")
    doomed = np.concatenate([store.find(source=p.source, image_ids=p.id) for p in gone])
    if len(doomed) == len(store):
        raise InputError("no caption would be left in the datastore: delete the pack's folder instead")
    removed = {row.text for row in store.rows(doomed)}
    store.remove(doomed)
    captioner.pictures = pictures.without(places)
    _solve(captioner, statistics, store)
    _forget_examples(captioner, removed)
    drop_calibration(captioner, "the confidence of captions was fitted on these pictures, too")
    data = {**captioner.about.data, "pictures": len(captioner.pictures), "captions": len(store)}
    captioner.about = captioner.about.but(data=data, numbers={}, tuned=())
    return len(doomed)


def _own_store(captioner: ReCap) -> MutableStore:
    store = captioner.datastore
    if not isinstance(store, MutableStore):
        raise InputError("a captioner of several datastores cannot be changed: change the packs they come from")
    if store.url:
        raise InputError(
            f"the captions are in {store.url}, centred by the map that would change: bring them into the pack first "
            "(recap datastore move PACK disk), and back afterwards"
        )
    return store


def _known(pictures: Pictures | None, store: MutableStore) -> KnownPairs:
    """Return the pairs of the pack."""
    texts = {row.id: row.text for row in store}
    known = list(pictures or ())
    captions = ([texts[number] for number in picture.caption_ids if number in texts] for picture in known)
    keys = keys_of((p.sha256, own, FITTED) for p, own in zip(known, captions, strict=True))
    return KnownPairs([picture.id for picture in known], keys)


def _encoded_again(captioner: ReCap, gone: Sequence[Picture], given: dict[str, Pair]) -> Vectors:
    missing = sorted(picture.id for picture in gone if picture.id not in given)
    if missing:
        raise InputError(
            f"the pack keeps no image vectors, so the pictures have to be given again; missing: {shorten(missing)}"
        )
    contents = [read(given[picture.id].image) for picture in gone]
    others = [p.id for p, content in zip(gone, contents, strict=True) if digest(content, p.id).hex() != p.sha256]
    if others:
        raise InputError(f"not the pictures that were fitted, but others of the same name: {shorten(others)}")
    return captioner.encoder.encode_images(contents)


def _caption_vectors(captioner: ReCap, store: MutableStore, picture: Picture, given: dict[str, Pair]) -> Vectors:
    """Return the vectors of the captions a picture was fitted with: the datastore's, or those of the same words."""
    there = np.isin(picture.caption_ids, store.ids)
    if there.all():
        return store.raw_vectors(picture.caption_ids)
    captions = given[picture.id].captions if picture.id in given else ()
    unique = tuple(dict.fromkeys(captions))
    if captions_digest(unique) != picture.captions_sha256:
        raise InputError(
            f"{picture.id}: some of its captions have left the datastore since it was fitted; give the picture again "
            "with the captions it had then"
        )
    return captioner.encoder.encode_texts(unique)


def _statistics(like: PairStatistics, images: Vectors, texts: Sequence[Vectors]) -> PairStatistics:
    rows = np.concatenate(texts).astype(np.float64)
    return like.zeros_like().update(images.astype(np.float64), rows, counts=[len(part) for part in texts])


def _solve(captioner: ReCap, statistics: PairStatistics, store: MutableStore) -> None:
    captioner.statistics = statistics
    captioner.alignment = LinearAlignment.from_statistics(statistics, **captioner.alignment.get_params())
    captioner.datastore = store.centred_by(captioner.alignment.text_mean_)
    # a view of the old centre, made when it was first asked for
    captioner.__dict__.pop("_uncentred", None)


def _forget_examples(captioner: ReCap, removed: set[str]) -> None:
    """Drop the worked examples that hold words of a caption that nobody else wrote too."""
    still = {row.text for row in captioner.datastore} if isinstance(captioner.datastore, MutableStore) else set()
    lost = removed - still
    kept = tuple(e for e in captioner.settings.examples if not lost & {e.caption, *e.captions})
    captioner.settings = captioner.settings.but(examples=kept)
