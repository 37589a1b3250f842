"""ReCap: Algorithm 1 of the paper.

An image is mapped into caption space, the nearest captions are retrieved, a language model writes candidates from
them, and the candidate that fits best is kept. Fitting computes one linear map in closed form; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TypeVar, Unpack, overload

import numpy as np

from recap.datastore import CaptionStore
from recap.encoders.inputs import is_picture, several
from recap.errors import ImageError, InputError
from recap.fitting.base import FittedPack
from recap.language import write_drafts
from recap.language.words import is_english
from recap.packs.settings import BATCH, SettingChanges
from recap.selection import RULES, Proposals, gather_candidates, shorten
from recap.types import Candidate, Caption, Draft, Evidence, ImageLike, Prompt, Retrieved, Vectors, unit_rows

KEPT_CANDIDATES = 10
"""Number of candidates that are reported with a caption."""

Result = TypeVar("Result")


class ReCap(FittedPack):
    """A captioner: encoder, map, datastore and, where there is one, a language model.

    Make one with ``ReCap.fit(pairs)`` or ``ReCap.from_pretrained("builtin")``; see ``recap.fitting.base`` and
    ``recap.packs.base``.
    """

    @property
    def selection(self) -> str:
        """The rule that chooses among candidates: the one asked for, or what suits them."""
        suits = getattr(self.language_model, "selection", "consensus") if self._writes else "consensus"
        return self.settings.selection or suits

    @overload
    def __call__(  # type: ignore[overload-overlap]  # some pictures are iterable, too
        self, images: ImageLike, **settings: Unpack[SettingChanges]
    ) -> Caption: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: Iterator[ImageLike], **settings: Unpack[SettingChanges]
    ) -> Iterator[Caption]: ...

    @overload
    def __call__(self, images: Iterable[ImageLike], **settings: Unpack[SettingChanges]) -> list[Caption]: ...

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], **settings: Unpack[SettingChanges]
    ) -> Caption | list[Caption] | Iterator[Caption]:
        """Return the caption of one image, the captions of several, or those of a stream one by one as they are made.

        The first image that cannot be read raises ``ImageError``; ``caption_each`` goes on.
        """
        captioner = self.configured(**settings) if settings else self
        if is_picture(images):
            return captioner.caption(images)
        captions = map(raise_error, captioner.caption_each(several(images)))
        return captions if isinstance(images, Iterator) else list(captions)

    def caption(self, image: ImageLike, **settings: Unpack[SettingChanges]) -> Caption:
        """Return the caption of one image, with its evidence and candidates; settings hold for this call."""
        captioner = self.configured(**settings) if settings else self
        (row,) = captioner.encode_each([image])
        return captioner.caption_vectors(raise_error(row)[None])[0]

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors | ImageError]:
        """Yield for each image what ``caption_vectors`` takes, or the reason why there is none.

        That is its vector, and behind it the details that the language model can read, or NaN where they are unknown.
        """
        return self.encoder.encode_each(images, details=self.looks)

    def caption_each(self, images: Iterable[ImageLike]) -> Iterator[Caption | ImageError]:
        """Yield for each image, in order, its caption or the reason why there is none."""
        return self.describe_each(images, self.caption_vectors)

    def describe_each(
        self, images: Iterable[ImageLike], describe: Callable[[Vectors], Sequence[Result]]
    ) -> Iterator[Result | ImageError]:
        """Yield for each image, in order, what is said of it, or the reason why nothing is.

        ``describe`` gets what ``encode_each`` gives of the images that can be read, ``BATCH`` at a time.
        """
        encoded = self.encode_each(images)
        while batch := list(islice(encoded, BATCH)):
            readable = [vector for vector in batch if not isinstance(vector, ImageError)]
            said = iter(describe(np.stack(readable)) if readable else ())
            for vector in batch:
                yield vector if isinstance(vector, ImageError) else next(said)

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
        return self._select(Proposals(candidates, self._cosines(clip, [candidates], [judged])[0], evidence, clip[0]))

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
        return [Proposals(*row) for row in zip(candidates, cosines, evidence, queries, strict=True)]

    def retrieve(self, image: ImageLike, k: int | None = None, *, aligned: bool = True) -> Retrieved:
        """Return the captions nearest to an image; ``aligned=False`` where image and text encoder share a space."""
        return Retrieved(self.retrieve_vectors(self.encoder.encode_images([image]), k, aligned=aligned)[0])

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
        return self._writes and self.encoder.sight in getattr(self.language_model, "sights", ())

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
        """Return what the language model writes about each image."""
        model, settings = self.language_model, self.settings
        if model is None and settings.candidates == "lm":
            raise InputError(
                "candidates='lm' needs a language model: name one, such as smollm2 or hf:google/flan-t5-large"
            )
        if model is None or not self._writes:
            return [[] for _ in evidence]
        template = settings.template(completes=model.completes)

        def prompt(row: int, k: int) -> Prompt:
            texts = [item.text for item in evidence[row]]
            seen = None if details is None or np.isnan(details[row, 0]) else details[row]
            sight = {} if seen is None else {"details": seen, "sight": self.encoder.sight}
            made = template.render(texts[:k], vector=queries[row])
            return replace(made, space=self.encoder.text.fingerprint, pool=texts[: settings.pool], **sight)

        return write_drafts(model, settings.decoding, prompt, [min(settings.k, len(items)) for items in evidence])

    def _candidates(self, drafts: Sequence[Draft], evidence: Sequence[Evidence]) -> dict[str, Draft | None]:
        retrieved = evidence[: self.settings.pool]
        return gather_candidates(drafts, retrieved, prefer_drafts=self.settings.candidates == "lm")

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
        ranked = proposals.ranked(self.selection, self.settings.pool)
        best, confidence = self._without_doubtful_end(ranked[0], proposals)
        kept = [best, *(candidate for candidate in ranked if candidate.text != best.text)][:KEPT_CANDIDATES]
        shown = proposals.evidence[: self.settings.k]
        return Caption(best.text, best.cosine, shown, tuple(kept), self.selection, confidence)

    def _confidence(self, best: Candidate, evidence: Sequence[Evidence]) -> float | None:
        if self.calibration is None or self.calibration.method != self.settings.method:
            return None
        return self.calibration.confidence(best.text, best.cosine, evidence)

    def _without_doubtful_end(self, best: Candidate, proposals: Proposals) -> tuple[Candidate, float | None]:
        """Return a draft without an end that rests on nothing, if rule and language allow it, and its confidence."""
        confidence = self._confidence(best, proposals.evidence)
        if best.origin != "lm" or not is_english(self.settings.language) or not RULES.get(self.selection).shortens:
            return best, confidence
        if (text := shorten(best.text, proposals.evidence[: self.settings.pool], confidence)) == best.text:
            return best, confidence
        row = self.alignment.transform_texts(self.encoder.encode_texts([text]))[0]
        shorter = replace(best, text=text, cosine=float(row @ proposals.query), logprob=None)
        return shorter, self._confidence(shorter, proposals.evidence)


def raise_error(result: Result | ImageError) -> Result:
    """Return a result; the reason why there is none is raised."""
    if isinstance(result, ImageError):
        raise result
    return result
