"""How a captioner comes from pairs, takes up more of them, and forgets some."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, Unpack, cast

from recap.datastore import MutableStore
from recap.encoders import Encoder, load_encoder
from recap.errors import InputError
from recap.fitting import update as updating
from recap.fitting.fit import EncodedPairs, encode_pairs, finish_fit, suited_to, worked_examples
from recap.fitting.pairs import FitReport, Pairs
from recap.language import LanguageModel
from recap.packs.base import Pack, resolve_language_model
from recap.packs.config import About
from recap.packs.settings import SettingChanges, Settings

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
        """
        chosen = Settings().but(**settings)
        loaded = load_encoder(encoder, device=device) if isinstance(encoder, str) else encoder
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
        measure = validation is not None
        finished = finish_fit(
            fitted._captioner, encoded, measure=measure, tune=tune, calibrate=calibrate, progress=progress
        )
        return cast("Self", finished)

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
        return updating.update(self._captioner, pairs, source=source, progress=progress, calibrate=calibrate)

    def forget(self, ids: Collection[str], pairs: Pairs | None = None, *, source: str | None = None) -> int:
        """Withdraw pictures and their captions: as if fitted without them. Return how many captions went.

        Unless the pack keeps vectors, the pictures have to be given again, in ``pairs``. The confidence of captions,
        which was fitted with them, is dropped.
        """
        return updating.forget(self._captioner, ids, pairs, source=source)

    @property
    def _captioner(self) -> ReCap:
        return cast("ReCap", self)
