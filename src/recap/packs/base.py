"""A captioner in memory, without what it does: its parts, and its ways to the disk and to the hub."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, Unpack

from recap.alignment import LinearAlignment, PairStatistics
from recap.confidence import Calibration
from recap.datastore import CaptionStore
from recap.encoders import Encoder
from recap.errors import EncoderMismatchError, InputError
from recap.language import LanguageModel
from recap.packs import folder as pack
from recap.packs.config import About
from recap.packs.folder import resolve_language_model as resolve_language_model
from recap.packs.register import Pictures
from recap.packs.search import PictureIndex, PictureSearch
from recap.packs.settings import SettingChanges, Settings
from recap.types import Found


class Pack:
    """Encoder, map, datastore, settings and, where there is one, a language model."""

    def __init__(
        self,
        encoder: Encoder,
        statistics: PairStatistics,
        datastore: CaptionStore,
        *,
        language_model: LanguageModel | None = None,
        settings: Settings | None = None,
        alignment: LinearAlignment | None = None,
        device: str = "cpu",
    ) -> None:
        self.encoder = encoder
        self.statistics = statistics
        self.language_model = language_model
        chosen = settings or Settings()
        self.alignment = alignment or LinearAlignment.from_statistics(statistics, chosen.method)
        self.settings = chosen.but(method=self.alignment.method)
        self.device = device
        self.about = About()
        """Who made the pack, from what, and what was measured."""
        self.pictures: Pictures | None = None
        """The pictures it was fitted with, by name and hash."""
        self.calibration: Calibration | None = None
        """How to tell the confidence of a caption; without it captions have none."""
        _check_encoders(encoder, self.alignment, statistics, datastore)
        if not len(datastore):
            raise InputError("the datastore is empty: there is nothing to retrieve")
        self.datastore: CaptionStore = datastore.centred_by(self.alignment.text_mean_)

    def configured(
        self, *, language_model: str | LanguageModel | None = None, **settings: Unpack[SettingChanges]
    ) -> Self:
        """Return one that shares everything with this one but some settings or the language model."""
        twin = copy(self)
        twin.settings = self.settings.but(**settings)
        if language_model is not None:
            twin.language_model = resolve_language_model(language_model, self.device)
        if twin.settings.method != self.settings.method:
            params = {**self.alignment.get_params(), "method": twin.settings.method}
            twin.alignment = LinearAlignment.from_statistics(self.statistics, **params)
            twin.datastore = self.datastore.centred_by(twin.alignment.text_mean_)
        return twin

    def index(
        self, pictures: str | Path | Iterable[str | Path], *, cache: str | Path | None = None, progress: bool = False
    ) -> PictureIndex:
        """Return the pictures of a folder, or of paths, folders and glob patterns, ready to be searched by a text.

        Its ``problems`` are those that cannot be read. ``cache`` is a file of vectors: with one, nothing that has not
        changed is read again.
        """
        return PictureSearch.of(self).index(pictures, cache=cache, progress=progress)

    def search(
        self,
        text: str,
        pictures: PictureIndex | str | Path | Iterable[str | Path],
        k: int = 20,
        *,
        cache: str | Path | None = None,
    ) -> tuple[Found, ...]:
        """Return the pictures that a text describes best, best first; what ``index`` returned or what it takes."""
        index = pictures if isinstance(pictures, PictureIndex) else self.index(pictures, cache=cache)
        return PictureSearch.of(self).search(text, index, k)

    def __repr__(self) -> str:
        model = self.language_model.name if self.language_model else "none"
        parts = f"encoder={self.encoder.name!r}, map={self.alignment.method!r}"
        return f"{type(self).__name__}({parts}, datastore={len(self.datastore)} captions, model={model!r})"

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pack to a folder, all of it or nothing."""
        pack.save(self, Path(folder))

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a recap pack",
    ) -> str:
        """Put the pack on the Hugging Face hub as ``OWNER/NAME``, and return its address."""
        from recap.packs.sharing import push

        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / "pack"
            pack.save(self, folder)
            return push(
                folder, repository, private=private, revision=revision, token=token, commit_message=commit_message
            )

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        language_model: str | LanguageModel | None = None,
        device: str = "cpu",
        revision: str | None = None,
        token: str | bool | None = None,
        progress: bool = False,
        cache: str | Path | None = None,
    ) -> Self:
        """Load a pack: ``builtin``, a folder, or the name of a repository on the Hugging Face hub.

        Args:
            name: which pack.
            language_model: another language model than the pack's; ``"none"`` for no language model.
            device: ``cpu``, ``cuda`` or ``mps``.
            revision: branch, tag or commit on the hub.
            token: access token for the hub.
            progress: whether to show a bar when the built-in pack is made on first use.
            cache: a file of vectors, so that nothing is encoded twice.
        """
        contents = pack.load(
            name,
            device=device,
            progress=progress,
            cache=cache,
            language_model=language_model,
            revision=revision,
            token=token,
        )
        config = contents.config
        loaded = cls(
            contents.encoder,
            contents.statistics,
            contents.datastore,
            language_model=contents.language_model,
            settings=config.settings,
            alignment=contents.alignment,
            device=device,
        )
        loaded.about, loaded.pictures, loaded.calibration = config.about, contents.pictures, contents.calibration
        return loaded


def _check_encoders(
    encoder: Encoder, alignment: LinearAlignment, statistics: PairStatistics, datastore: CaptionStore
) -> None:
    """Raise unless map, statistics and datastore were made with this encoder; a map may not say with which."""
    for what, made_by, here in (
        ("map", alignment.image_encoder_, encoder.image),
        ("map", alignment.text_encoder_, encoder.text),
        ("statistics", statistics.image_encoder, encoder.image),
        ("statistics", statistics.text_encoder, encoder.text),
        ("datastore", datastore.fingerprint, encoder.text),
    ):
        if made_by != here.fingerprint and (made_by or what == "datastore"):
            raise EncoderMismatchError(
                f"the {what} was made with another encoder than this {here.name}: make it again with this one"
            )
