"""ReCap: Algorithm 1 of the paper.

An image is mapped into caption space, the nearest captions are retrieved, a language model writes candidates from
them, and the candidate that fits best is kept. Fitting computes one linear map in closed form; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.confidence import Calibration
from recap.datastore import CaptionStore, MutableStore
from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError, ImageError, InputError
from recap.fitting import update as updating
from recap.fitting.fit import EncodedPairs, encode_pairs, finish_fit, worked_examples
from recap.fitting.pairs import FitReport, Pairs
from recap.language import LanguageModel, PromptTemplate, PromptTooLongError, load_language_model
from recap.packs import folder as pack
from recap.packs.card import About
from recap.packs.register import Pictures
from recap.selection import RULES, Scores, is_degenerate
from recap.settings import Settings
from recap.types import Candidate, Caption, Draft, Evidence, ImageLike, Prompt, Vectors, unit_rows

if TYPE_CHECKING:
    from recap.fitting.tuning import Trial

KEPT_CANDIDATES = 10
"""So many of the best candidates are reported with a caption."""

BATCH = 32
"""So many images are retrieved for, written about and judged at a time."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """What might be said about an image, before one is chosen."""

    drafts: dict[str, Draft | None]
    """Every candidate once, with the draft it came from, or None for a retrieved one."""
    cosines: Vectors
    """The aligned cosine of each candidate with the image."""
    evidence: tuple[Evidence, ...]
    """Everything that was retrieved, most similar first."""

    @property
    def logprobs(self) -> Scores:
        """The log-probability of each candidate, NaN for retrieved ones."""
        return np.array([draft.logprob if draft else np.nan for draft in self.drafts.values()])


class ReCap:
    """A captioner: encoder, map, datastore and, where there is one, a language model.

    Make one with ``ReCap.fit(pairs)`` or ``ReCap.from_pretrained("builtin")``.
    """

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
        self.report = FitReport()
        """What went into the last fit or update, and what was wrong with the rest."""
        _check_encoders(encoder, self.alignment, statistics, datastore)
        if not len(datastore):
            raise InputError("the datastore is empty: there is nothing to retrieve")
        self.datastore: CaptionStore = datastore.centred_by(self.alignment.text_mean_)

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
        **settings: Any,
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
            calibrate: whether to fit the confidence of captions, on at most 300 of the pictures and at least 20.
            about: author, licence and description for the card.
            progress: whether to show a bar.
            datastore: an empty one to take the captions, such as a ``DiskStore`` for more than fit into memory.
            settings: any of ``recap.settings.Settings``, such as ``method="ols"``, ``k=13``, ``temperature=0.1``.
        """
        chosen = Settings().but(**settings)
        loaded = load_encoder(encoder, device=device) if isinstance(encoder, str) else encoder
        model = _language_model(language_model, device)
        encoded = encode_pairs(
            pairs,
            loaded,
            source=source,
            validation=validation,
            keep_vectors=keep_vectors,
            progress=progress,
            datastore=datastore,
        )
        fitted = cls.from_encoded(encoded, loaded, language_model=model, settings=chosen, about=about, device=device)
        return finish_fit(fitted, encoded, measure=validation is not None, tune=tune, calibrate=calibrate)

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
        return updating.update(self, pairs, source=source, progress=progress, calibrate=calibrate)

    def forget(self, ids: Collection[str], pairs: Pairs | None = None, *, source: str | None = None) -> int:
        """Withdraw pictures and their captions: as if fitted without them. Return how many captions went.

        Unless the pack keeps vectors, the pictures have to be given again, in ``pairs``. The confidence of captions,
        which was fitted with them, is dropped.
        """
        return updating.forget(self, ids, pairs, source=source)

    def configured(self, *, language_model: str | LanguageModel | None = None, **settings: Any) -> Self:
        """Return a captioner that shares everything with this one but some settings or the language model."""
        twin = copy(self)
        twin.settings = self.settings.but(**settings)
        if language_model is not None:
            twin.language_model = _language_model(language_model, self.device)
        if twin.settings.method != self.settings.method:
            params = {**self.alignment.get_params(), "method": twin.settings.method}
            twin.alignment = LinearAlignment.from_statistics(self.statistics, **params)
            twin.datastore = self.datastore.centred_by(twin.alignment.text_mean_)
        return twin

    def __repr__(self) -> str:
        model = self.language_model.name if self.language_model else "none"
        store = f"{len(self.datastore)} captions"
        return (
            f"ReCap(encoder={self.encoder.name!r}, map={self.alignment.method!r}, datastore={store}, model={model!r})"
        )

    @property
    def selection(self) -> str:
        """The rule that chooses among candidates: the one asked for, or what suits them."""
        suits = getattr(self.language_model, "selection", "consensus") if self._writes else "consensus"
        return self.settings.selection or suits

    def caption(self, image: ImageLike, **settings: Any) -> Caption:
        """Return the caption of one image, with its evidence and candidates; settings hold for this call."""
        captioner = self.configured(**settings) if settings else self
        (row,) = captioner.encode_each([image])
        if isinstance(row, ImageError):
            raise row
        return captioner.caption_vectors(row[None])[0]

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors | ImageError]:
        """Yield for each image what ``caption_vectors`` takes, or the reason why there is none.

        That is its vector, and behind it the details that the language model can read.
        """
        return self.encoder.encode_each(images, details=self.looks)

    def caption_each(self, images: Iterable[ImageLike]) -> Iterator[Caption | ImageError]:
        """Yield for each image, in order, its caption or the reason why there is none."""
        encoded = self.encode_each(images)
        while batch := list(islice(encoded, BATCH)):
            readable = [vector for vector in batch if not isinstance(vector, ImageError)]
            captions = iter(self.caption_vectors(np.stack(readable)) if readable else ())
            for vector in batch:
                yield vector if isinstance(vector, ImageError) else next(captions)

    def caption_frames(self, images: Sequence[ImageLike]) -> Caption:
        """Return one caption for a clip that is given as its frames.

        Captions are retrieved for every frame, and have the similarity to the frame they fit best. Candidates are
        judged by their cosine with the mean of the frames.
        """
        if not images:
            raise InputError("a clip needs at least one frame")
        vectors = self.encoder.encode_images(images)
        frames = self.alignment.transform(vectors)
        wanted = max(self.settings.k, self.settings.pool)
        found = self.datastore.search(frames, wanted)
        ids, similarities = found.ids[found.ids >= 0], found.similarities[found.ids >= 0]
        order = np.lexsort((ids, -similarities))
        _, first = np.unique(ids[order], return_index=True)
        best = order[np.sort(first)][:wanted]
        evidence = self.datastore.evidence(ids[best], similarities[best])
        clip = unit_rows(frames.mean(0, keepdims=True), otherwise=0.0)
        candidates = self._candidates(self._write(clip, [evidence])[0], evidence)
        judged = self.datastore.evidence(ids[best], self.datastore.vectors(ids[best]) @ clip[0])
        return self._select(Proposals(candidates, self._cosines(clip, [candidates], [judged])[0], evidence))

    def caption_vectors(
        self,
        vectors: Vectors,
        *,
        exclude_image_ids: Sequence[str | None] | None = None,
        exclude_texts: Sequence[Collection[str]] | None = None,
    ) -> list[Caption]:
        """Return captions for images whose vectors are there already, as ``encode_each`` or the encoder gives them.

        ``exclude_image_ids`` names for each image whose captions must not be retrieved for it: its own, when images
        of the datastore are captioned. ``exclude_texts`` gives for each image the captions that must not be.
        """
        proposals = self.propose(vectors, exclude_image_ids=exclude_image_ids, exclude_texts=exclude_texts)
        return [self._select(proposal) for proposal in proposals]

    def propose(
        self,
        vectors: Vectors,
        *,
        exclude_image_ids: Sequence[str | None] | None = None,
        exclude_texts: Sequence[Collection[str]] | None = None,
    ) -> list[Proposals]:
        """Return for each image what ``caption_vectors`` would choose from."""
        vectors, details = self._split(vectors)
        queries = self.alignment.transform(vectors)
        evidence = self._evidence(queries, exclude_image_ids, exclude_texts or [()] * len(queries))
        if not all(evidence):
            raise InputError("nothing is left to retrieve for some of the images: the datastore is too small")
        drafts = self._write(queries, evidence, details)
        candidates = [self._candidates(*row) for row in zip(drafts, evidence, strict=True)]
        cosines = self._cosines(queries, candidates, evidence)
        return [Proposals(*row) for row in zip(candidates, cosines, evidence, strict=True)]

    def retrieve(self, image: ImageLike, k: int | None = None, *, aligned: bool = True) -> tuple[Evidence, ...]:
        """Return the captions nearest to an image; ``aligned=False`` where image and text encoder share a space."""
        return self.retrieve_vectors(self.encoder.encode_images([image]), k, aligned=aligned)[0]

    def retrieve_vectors(
        self, vectors: Vectors, k: int | None = None, *, aligned: bool = True
    ) -> list[tuple[Evidence, ...]]:
        """Return the captions nearest to images whose vectors are there already."""
        vectors, _ = self._split(vectors)
        if aligned:
            queries, store = self.alignment.transform(vectors), self.datastore
        elif self.encoder.shares_space:
            queries, store = vectors, self._uncentred
        else:
            raise InputError(
                f"without alignment images cannot be compared with captions here: the encoder {self.encoder.name} "
                "has no space that both share"
            )
        found = store.search(queries, k or self.settings.k)
        return [store.evidence(*row) for row in zip(found.ids, found.similarities, strict=True)]

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
        from recap.packs.hub import push_captioner

        return push_captioner(
            self, repository, private=private, revision=revision, token=token, commit_message=commit_message
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
        contents = pack.load(name, device=device, revision=revision, token=token, progress=progress, cache=cache)
        model = contents.language_model if language_model is None else language_model
        loaded = cls(
            contents.encoder,
            contents.statistics,
            contents.datastore,
            language_model=_language_model(model, device),
            settings=contents.settings,
            alignment=contents.alignment,
            device=device,
        )
        loaded.about, loaded.pictures = contents.about, contents.pictures
        loaded.calibration = contents.calibration
        return loaded

    @property
    def shorter_side(self) -> int:
        """The size pictures are scaled to before they are looked at; 0 where the encoder does not say."""
        return int(getattr(self.encoder.image, "shorter_side", 0))

    def vectors_of(self, rows: Vectors) -> Vectors:
        """Return the vectors among what ``encode_each`` gives."""
        return self._split(rows)[0]

    @property
    def looks(self) -> bool:
        """Whether the language model reads more of an image than its vector."""
        sight = self.encoder.sight
        return self._writes and bool(sight) and getattr(self.language_model, "sight", "") == sight

    @property
    def _writes(self) -> bool:
        """Whether the language model is asked at all."""
        return self.language_model is not None and self.settings.candidates != "retrieved"

    def _split(self, rows: Vectors) -> tuple[Vectors, Vectors | None]:
        """Return the vectors of images, and the details behind them where there are some."""
        vectors, details = np.split(rows, [self.encoder.image.dimension], axis=1)
        return vectors, details if details.size else None

    @cached_property
    def _uncentred(self) -> CaptionStore:
        return self.datastore.centred_by(None)

    def _evidence(
        self,
        queries: Vectors,
        exclude_image_ids: Sequence[str | None] | None,
        exclude_texts: Sequence[Collection[str]],
    ) -> list[tuple[Evidence, ...]]:
        """Return what is retrieved for each image; for every text that is left out the next nearest moves up."""
        wanted = max(self.settings.k, self.settings.pool)
        asked = wanted + max(map(len, exclude_texts))
        while True:
            found = self.datastore.search(queries, asked, exclude_image_ids=exclude_image_ids)
            rows = [self.datastore.evidence(*row) for row in zip(found.ids, found.similarities, strict=True)]
            kept = [
                tuple(item for item in row if item.text not in texts)
                for row, texts in zip(rows, exclude_texts, strict=True)
            ]
            # one text may be there many times; a row that is not full has all there is
            if all(len(k) >= wanted or len(row) < asked for k, row in zip(kept, rows, strict=True)):
                return [row[:wanted] for row in kept]
            asked *= 2

    def _write(
        self, queries: Vectors, evidence: Sequence[Sequence[Evidence]], details: Vectors | None = None
    ) -> list[list[Draft]]:
        model = self.language_model
        if model is None and self.settings.candidates == "lm":
            raise InputError(
                "candidates='lm' needs a language model: name one, such as smollm2 or hf:google/flan-t5-large"
            )
        if model is None or self.settings.candidates == "retrieved":
            return [[] for _ in evidence]
        template = self.settings.template(completes=model.completes)
        prompts = [self._prompt(template, *row, self.settings.k) for row in zip(queries, evidence, strict=True)]
        if details is not None:
            sight = self.encoder.sight
            prompts = [replace(one, details=row, sight=sight) for one, row in zip(prompts, details, strict=True)]
        try:
            return model.write(prompts, self.settings.decoding)
        except PromptTooLongError:
            rows = zip(prompts, queries, evidence, strict=True)
            return [self._write_what_fits(model, template, *row) for row in rows]

    def _prompt(self, template: PromptTemplate, query: Vectors, evidence: Sequence[Evidence], k: int) -> Prompt:
        texts = [item.text for item in evidence]
        prompt = template.render(texts[:k], vector=query)
        return replace(prompt, space=self.encoder.text.fingerprint, pool=texts[: self.settings.pool])

    def _write_what_fits(
        self,
        model: LanguageModel,
        template: PromptTemplate,
        prompt: Prompt,
        query: Vectors,
        evidence: Sequence[Evidence],
    ) -> list[Draft]:
        """Write about one image, leaving out the less similar half of the captions until the prompt fits the model."""
        k = min(self.settings.k, len(evidence))
        while k:
            try:
                return model.write([prompt], self.settings.decoding)[0]
            except PromptTooLongError:
                k //= 2
                prompt = self._prompt(template, query, evidence, k) if k else prompt
        return []

    def _candidates(self, drafts: Sequence[Draft], evidence: Sequence[Evidence]) -> dict[str, Draft | None]:
        """Return each candidate once, with the draft it came from; there is always at least one."""
        written: dict[str, Draft | None] = {}
        for draft in drafts:
            if not is_degenerate(draft.text):
                written.setdefault(draft.text, draft)
        if self.settings.candidates == "lm" and written:
            return written
        retrieved: dict[str, Draft | None] = {item.text: None for item in evidence[: self.settings.pool]}
        return {**retrieved, **written}

    def _cosines(
        self,
        queries: Vectors,
        candidates: Sequence[dict[str, Draft | None]],
        evidence: Sequence[Sequence[Evidence]],
    ) -> list[Vectors]:
        """Return the aligned cosine of every candidate with its image; only sentences of the model are encoded."""
        known = [{item.text: item.similarity for item in items} for items in evidence]
        pairs = zip(candidates, known, strict=True)
        new = list(dict.fromkeys(text for group, there in pairs for text in group if text not in there))
        rows = self.alignment.transform_texts(self.encoder.encode_texts(new)) if new else queries[:0]
        place = {text: row for row, text in enumerate(new)}
        cosines = []
        for query, group, there in zip(queries, candidates, known, strict=True):
            values = [there[text] if text in there else float(rows[place[text]] @ query) for text in group]
            cosines.append(np.array(values, dtype=np.float32))
        return cosines

    def _select(self, proposals: Proposals) -> Caption:
        candidates, cosines, evidence = proposals.drafts, proposals.cosines, proposals.evidence
        texts = list(candidates)
        scores = RULES.get(self.selection).score(texts, cosines, evidence[: self.settings.pool], proposals.logprobs)
        ranked = sorted(range(len(texts)), key=lambda row: (-scores[row], -cosines[row], texts[row]))
        kept = []
        for row in ranked[:KEPT_CANDIDATES]:
            draft = candidates[texts[row]]
            kept.append(
                Candidate(
                    texts[row],
                    score=float(scores[row]),
                    cosine=float(cosines[row]),
                    origin="lm" if draft else "retrieved",
                    logprob=draft.logprob if draft else None,
                )
            )
        best, shown = kept[0], evidence[: self.settings.k]
        confidence = self._confidence(best, evidence)
        return Caption(best.text, best.cosine, shown, tuple(kept), self.selection, confidence)

    def _confidence(self, chosen: Candidate, evidence: Sequence[Evidence]) -> float | None:
        if self.calibration is None or self.calibration.method != self.settings.method:
            return None
        return self.calibration.confidence(chosen.text, chosen.cosine, evidence)


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


def _language_model(model: str | LanguageModel | None, device: str) -> LanguageModel | None:
    return load_language_model(model, device=device) if isinstance(model, str) else model
