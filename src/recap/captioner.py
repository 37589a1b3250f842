"""ReCap: Algorithm 1 of the paper.

An image is mapped into caption space, the nearest captions are retrieved, a language model writes candidates from
them, and the candidate that fits best is kept. Fitting computes one linear map in closed form; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.datastore import CaptionStore
from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError, ImageError, InputError
from recap.fitting import PairLike, encode_pairs, worked_examples
from recap.language import Decoding, LanguageModel, PromptTemplate, PromptTooLongError, load_language_model
from recap.selection import RULES, is_degenerate
from recap.settings import Settings
from recap.types import Candidate, Caption, Draft, Evidence, ImageLike, Vectors

KEPT_CANDIDATES = 10
"""So many of the best candidates are reported with a caption."""

BATCH = 32
"""So many images are retrieved for, written about and judged at a time."""


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
        self.problems: tuple[ImageError, ...] = ()
        """The pictures that could not be read when this captioner was fitted."""
        _check_encoders(encoder, self.alignment, statistics, datastore)
        if not len(datastore):
            raise InputError("the datastore is empty: there is nothing to retrieve")
        self.datastore: CaptionStore = datastore.centred_by(self.alignment.text_mean_)

    @classmethod
    def fit(
        cls,
        pairs: Iterable[PairLike] | str | Path,
        *,
        encoder: str | Encoder = "builtin",
        language_model: str | LanguageModel | None = None,
        device: str = "cpu",
        source: str = "",
        progress: bool = False,
        **settings: Any,
    ) -> Self:
        """Fit the map to pairs and take their captions as datastore.

        Pictures that cannot be read are left out and listed in ``problems``.

        Args:
            pairs: ``Pair`` objects, ``(image, caption)`` or ``(image, [captions])`` tuples, or the path of a folder
                or file that ``recap.datasets.read_pairs`` understands.
            encoder: a name as in ``recap.encoders``, or an encoder.
            language_model: a name as in ``recap.language``, or a model; none by default.
            device: ``cpu``, ``cuda`` or ``mps``.
            source: a name for these captions in the datastore.
            progress: whether to show a bar.
            settings: any of ``recap.settings.Settings``, such as ``method="ols"``, ``k=13``, ``temperature=0.1``.
        """
        chosen = Settings().but(**settings)
        loaded = load_encoder(encoder, device=device) if isinstance(encoder, str) else encoder
        model = _language_model(language_model, device)
        encoded = encode_pairs(pairs, loaded, source=source, progress=progress)
        parts = (loaded, encoded.statistics, encoded.datastore)
        fitted = cls(*parts, language_model=model, settings=chosen, device=device)
        examples = worked_examples(encoded.samples, fitted.alignment, fitted.datastore)
        fitted.settings = chosen.but(examples=chosen.examples or examples)
        fitted.problems = encoded.problems
        return fitted

    def configured(self, *, language_model: str | LanguageModel | None = None, **settings: Any) -> Self:
        """Return a captioner that shares everything with this one but some settings or the language model."""
        twin = copy(self)
        twin.settings = self.settings.but(**settings)
        if language_model is not None:
            twin.language_model = _language_model(language_model, self.device)
        if twin.settings.method != self.settings.method:
            twin.alignment = LinearAlignment.from_statistics(self.statistics, twin.settings.method)
            twin.datastore = self.datastore.centred_by(twin.alignment.text_mean_)
        return twin

    def __repr__(self) -> str:
        model = self.language_model.name if self.language_model else "none"
        store = f"{len(self.datastore)} captions"
        return (
            f"ReCap(encoder={self.encoder.name!r}, map={self.alignment.method!r}, datastore={store}, model={model!r})"
        )

    def caption(self, image: ImageLike, **settings: Any) -> Caption:
        """Return the caption of one image, with its evidence and candidates; settings hold for this call."""
        captioner = self.configured(**settings) if settings else self
        return captioner.caption_vectors(self.encoder.encode_images([image]))[0]

    def caption_each(self, images: Iterable[ImageLike]) -> Iterator[Caption | ImageError]:
        """Yield for each image, in order, its caption or the reason why there is none."""
        encoded = self.encoder.encode_each(images)
        while batch := list(islice(encoded, BATCH)):
            readable = [vector for vector in batch if not isinstance(vector, ImageError)]
            captions = iter(self.caption_vectors(np.stack(readable)) if readable else ())
            for vector in batch:
                yield vector if isinstance(vector, ImageError) else next(captions)

    def caption_vectors(
        self, vectors: Vectors, *, exclude_image_ids: Sequence[str | None] | None = None
    ) -> list[Caption]:
        """Return captions for images whose vectors are there already.

        ``exclude_image_ids`` names for each image whose captions must not be retrieved for it: its own, when images
        of the datastore are captioned.
        """
        # row by row, since BLAS rounds differently for other batch sizes and a caption must not depend on its batch
        queries = np.concatenate([self.alignment.transform(vector[None]) for vector in vectors])
        wanted = max(self.settings.k, self.settings.pool)
        found = self.datastore.search(queries, wanted, exclude_image_ids=exclude_image_ids)
        evidence = [self.datastore.evidence(*row) for row in zip(found.ids, found.similarities, strict=True)]
        if not all(evidence):
            raise InputError("nothing is left to retrieve for some of the images: the datastore is too small")
        drafts = self._write(queries, evidence)
        candidates = [self._candidates(*row) for row in zip(drafts, evidence, strict=True)]
        cosines = self._cosines(queries, candidates, evidence)
        return [self._select(*row) for row in zip(candidates, cosines, evidence, strict=True)]

    def retrieve(self, image: ImageLike, k: int | None = None, *, aligned: bool = True) -> tuple[Evidence, ...]:
        """Return the captions nearest to an image; ``aligned=False`` where image and text encoder share a space."""
        vectors = self.encoder.encode_images([image])
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
        return store.evidence(found.ids[0], found.similarities[0])

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
        return pack.push(
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
    ) -> Self:
        """Load a pack: ``builtin``, a folder, or the name of a repository on the Hugging Face hub.

        Args:
            name: which pack.
            language_model: another language model than the pack's; ``"none"`` for no language model.
            device: ``cpu``, ``cuda`` or ``mps``.
            revision: branch, tag or commit on the hub.
            token: access token for the hub.
            progress: whether to show a bar when the built-in pack is made on first use.
        """
        contents = pack.load(name, device=device, revision=revision, token=token, progress=progress)
        model = contents.language_model if language_model is None else language_model
        return cls(
            contents.encoder,
            contents.statistics,
            contents.datastore,
            language_model=_language_model(model, device),
            settings=contents.settings,
            alignment=contents.alignment,
            device=device,
        )

    @cached_property
    def _uncentred(self) -> CaptionStore:
        return self.datastore.centred_by(None)

    def _write(self, queries: Vectors, evidence: Sequence[Sequence[Evidence]]) -> list[list[Draft]]:
        model = self.language_model
        if model is None and self.settings.candidates == "lm":
            raise InputError(
                "candidates='lm' needs a language model: name one, such as smollm2 or hf:google/flan-t5-large"
            )
        if model is None or self.settings.candidates == "retrieved":
            return [[] for _ in evidence]
        retrieved = [[item.text for item in items[: self.settings.k]] for items in evidence]
        template = self.settings.template(completes=model.completes)
        try:
            prompts = [template.render(captions, vector=q) for captions, q in zip(retrieved, queries, strict=True)]
            return model.write(prompts, self.settings.decoding)
        except PromptTooLongError:
            pairs = zip(retrieved, queries, strict=True)
            return [_write_what_fits(model, template, captions, q, self.settings.decoding) for captions, q in pairs]

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

    def _select(self, candidates: dict[str, Draft | None], cosines: Vectors, evidence: tuple[Evidence, ...]) -> Caption:
        texts = list(candidates)
        scores = RULES[self.settings.selection](texts, cosines, evidence[: self.settings.pool])
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
        return Caption(kept[0].text, kept[0].cosine, evidence[: self.settings.k], tuple(kept), self.settings.selection)


def _write_what_fits(
    model: LanguageModel, template: PromptTemplate, captions: Sequence[str], vector: Vectors, decoding: Decoding
) -> list[Draft]:
    """Write about one image, leaving out the less similar half of the captions until the prompt fits the model."""
    while captions:
        try:
            return model.write([template.render(captions, vector=vector)], decoding)[0]
        except PromptTooLongError:
            captions = captions[: len(captions) // 2]
    return []


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
