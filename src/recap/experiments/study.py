"""Captions for encoded pictures: how experiments make them, the maps they try, and every metric for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from recap.alignment import LinearAlignment, search_beta
from recap.alignment.rows import centred_unit_rows
from recap.captioner import ReCap, raise_error
from recap.datastore import CaptionStore, Datastore, ImageTable
from recap.encoders import Encoder
from recap.errors import InputError, check_name
from recap.experiments.base import Setup
from recap.experiments.data import Bench, Split
from recap.experiments.table import Cell
from recap.language import LanguageModel, load_language_model
from recap.metrics.corpus import MetricResult, in_points, mean_result
from recap.metrics.evaluate import evaluate
from recap.metrics.report import Report
from recap.packs.settings import Settings
from recap.selection import by_consensus, is_degenerate
from recap.types import Draft, Evidence, ImageLike, Vectors

WRITER = "writer"
"""Writes the captions unless ``--lm`` says otherwise: the model that packs have."""

DRAWING_OPTIONS = ("k", "pool", "temperature", "samples", "selection")
SETTINGS_OPTIONS = ("settings", *DRAWING_OPTIONS)

PAPER_BEST = {
    "coco": (13, 0.1, 10),
    "flickr30k": (18, 0.3, 20),
    "vizwiz": (4, 0.5, 30),
    "msrvtt": (5, 0.5, 20),
    "xrays": (5, 0.5, 20),
}
"""k, temperature and number of samples that did best in the paper."""
ALIKE = {"flickr8k": "flickr30k"}
"""Whose numbers of the paper stand beside those of a data set that it does not have."""


def model_name(model: LanguageModel | None) -> str:
    """Return the name of a language model as tables have it."""
    return model.name if model else "no language model"


def paper_data(setup: Setup) -> str:
    """Return the data set of the paper whose numbers stand beside ours."""
    return ALIKE.get(setup.on, setup.on)


def paper_best(setup: Setup) -> tuple[int, float, int]:
    """Return the paper's best k, temperature and number of samples for this data set, or for one like it."""
    return PAPER_BEST[paper_data(setup)]


def settings_kind(setup: Setup, model: LanguageModel | None) -> str:
    """Return whose settings captions are made with: ``pack`` or ``paper``.

    ``--option settings=`` says so; by default a pack's for the writer, whose they are, and the paper's for any other.
    """
    own = model is None or model.name == WRITER
    kind = setup.option("settings", "pack" if own else "paper")
    if kind not in ("pack", "paper"):
        raise InputError(f"settings={kind}: expected pack or paper")
    return kind


def caption_settings(setup: Setup, model: LanguageModel | None) -> Settings:
    """Return how captions are made, as ``settings_kind`` says.

    The paper's are OLS, the aligned cosine, and the temperature, samples and k that did best on the data set. ``k``,
    ``pool``, ``temperature``, ``samples`` and ``selection`` change single ones.
    """
    kind, chosen = settings_kind(setup, model), Settings().but(seed=setup.seed)
    if kind == "paper":
        k, temperature, samples = paper_best(setup)
        written = {} if model is None else {"candidates": "lm"}
        chosen = chosen.but(method="ols", k=k, selection="cosine", temperature=temperature, samples=samples, **written)
    k = setup.number("k", chosen.k)
    return chosen.but(
        k=k,
        # the paper knows no other captions than those in the prompt
        pool=setup.number("pool", k if kind == "paper" else chosen.pool),
        temperature=setup.real("temperature", chosen.decoding.temperature),
        samples=setup.number("samples", chosen.decoding.samples),
        selection=setup.option("selection", chosen.selection or "") or None,
    )


def settings_note(settings: Settings, model: LanguageModel | None, **stated: str) -> str:
    """Return how captions were made, for a table; ``stated`` says it of settings that differ between its rows."""
    rule = settings.selection or getattr(model, "selection", "consensus")
    facts: dict[str, object] = {"map": settings.method, "selection rule": rule}
    if model is not None:
        drawn = settings.decoding
        facts |= {"temperature": f"{drawn.temperature:g}", "samples": drawn.samples, "k": settings.k}
    else:  # nothing is drawn
        stated = {name: value for name, value in stated.items() if name in ("map", "k")}
    if model is None or settings.candidates != "lm":
        pool = "k" if model is None and "k" in stated else settings.pool
        facts["candidates among"] = f"the {pool} nearest captions" + (", too" if model else "")
    return f"Captions: {', '.join(f'{name} {value}' for name, value in (facts | stated).items())}."


METHODS = {
    "ZS": "identity",
    "IT": "it",
    "beta-PR": "beta-procrustes",
    "LFA": "lfa",
    "PR": "procrustes",
    "OLS": "ols",
    "ridge": "ridge",
}
"""Labels of rows, and what the estimator calls them."""

SHARED_ONLY = ("ZS", "beta-PR")
"""What compares images with texts as the encoder made them."""


@dataclass(frozen=True)
class Fitted:
    """A map under its label, with the CPU seconds it took."""

    label: str
    alignment: LinearAlignment
    seconds: float


def fit_all(train: Split, encoder: Encoder, setup: Setup) -> Iterator[Fitted]:
    """Yield every map that means something for this encoder, fitted; the option ``maps`` names those to take only."""
    chosen, seed = parse_maps(setup), setup.seed
    for label, method in METHODS.items():
        if label in chosen and (encoder.shares_space or label not in SHARED_ONLY):
            started = time.process_time()
            alignment = train.fit(method, beta=_beta(label, train, encoder, seed), seed=seed)
            yield Fitted(label, alignment, time.process_time() - started)


def parse_maps(setup: Setup) -> list[str]:
    """Return the labels of the maps that ``--option maps=PR,OLS`` asks for; all of them without it."""
    asked = setup.listed("maps", ",".join(METHODS))
    for name in asked:
        check_name("map", name, METHODS)
    return asked


def unavailable_maps(encoder: Encoder) -> tuple[str, ...]:
    """Return a note about the maps that mean nothing for this encoder."""
    if encoder.shares_space:
        return ()
    names = " and ".join(SHARED_ONLY)
    return (f"{names} need an encoder whose images and texts share one space; {encoder.name} has none.",)


def _beta(label: str, train: Split, encoder: Encoder, seed: int) -> float:
    """Return beta: searched for beta-PR and for LFA, which starts from it; none where no space is shared."""
    if not encoder.shares_space or label not in ("beta-PR", "LFA"):
        return 0.0
    return search_beta(train.images, train.texts, train.owners, seed=seed)


POOL_IMAGES = 20
"""Pictures whose captions unimodal retrieval takes: about as many captions as ``Settings.pool``."""


class Study(Bench):
    """A bench with a language model: what experiments that caption share."""

    def __init__(self, setup: Setup, default_model: str = WRITER) -> None:
        super().__init__(setup)
        self._default_model = default_model
        self._seen: dict[tuple[str, int], Vectors] = {}

    @cached_property
    def train(self) -> Split:
        """What maps are fitted to."""
        return self.load(self.setup.on, "train")

    @cached_property
    def store(self) -> Datastore:
        """The training captions."""
        return self.train.store(self.encoder)

    @cached_property
    def model(self) -> LanguageModel | None:
        """That of the setup, or the experiment's default."""
        return load_language_model(self.setup.language_model or self._default_model)

    @cached_property
    def settings(self) -> Settings:
        """How captions are made."""
        return caption_settings(self.setup, self.model)

    def make_captioner(
        self, alignment: LinearAlignment, store: CaptionStore | None = None, settings: Settings | None = None
    ) -> ReCap:
        """Return a captioner with a map; other settings are those of captions without a language model."""
        return ReCap(
            self.encoder,
            alignment.statistics_,
            store or self.store,
            language_model=None if settings else self.model,
            settings=settings or self.settings,
            alignment=alignment,
        )

    def caption(self, alignment: LinearAlignment, test: Split, *how: Any) -> list[str]:
        """Return captions of pictures with a map; ``how`` as in ``make_captioner``."""
        captioner = self.make_captioner(alignment, *how)
        return [caption.text for caption in captioner.caption_vectors(self.rows_of(test, captioner))]

    def rows_of(self, test: Split, captioner: ReCap) -> Vectors:
        """Return what a captioner is given of pictures: their vectors, and behind them the details that it reads.

        Where pictures are not at hand, and of items that are several pictures, there are the vectors alone.
        """
        if not captioner.looks or not test.can_be_seen:
            return test.images
        key = test.title, len(test.ids)
        if key not in self._seen:
            self._seen[key] = np.stack([raise_error(row) for row in captioner.encode_each(test.pictures)])
        return self._seen[key]

    def titled(self, test: Split) -> str:
        """Return the heading of a table about a split."""
        reads = getattr(self.model, "sights", ()) and not test.can_be_seen
        return test.titled(self.encoder.name, model_name(self.model) + (" (from vectors alone)" if reads else ""))

    def notes(self, **stated: str) -> tuple[str, str]:
        """Return how captions are made and who judges them, for a table; ``stated`` as in ``settings_note``."""
        return settings_note(self.settings, self.model, **stated), judged_note(self)


def unimodal_captions(study: Study, images: Vectors, *, write: bool = True) -> list[str]:
    """Return captions from those of the pictures that look alike (UM in the paper).

    There is no map, so nothing can be compared with the picture: the consensus of the retrieved captions decides, with
    and without a language model (``write``), among those that the settings allow.
    """
    language_model, chosen = (study.model, study.settings) if write else (None, Settings())
    found = unimodal_evidence(study.train, study.store, images)
    drafts: list[list[Draft]] = [[] for _ in found]
    if language_model is not None:
        template = chosen.template(completes=language_model.completes)
        prompts = [
            replace(template.render(texts[: chosen.k]), pool=texts[: chosen.pool])
            for texts in ([item.text for item in evidence] for evidence in found)
        ]
        drafts = language_model.write(prompts, chosen.decoding)
    alone = chosen.candidates == "lm"
    return [_by_consensus(*row, alone=alone) for row in zip(found, drafts, strict=True)]


def unimodal_evidence(
    train: Split, store: Datastore, images: Vectors, pictures: int = POOL_IMAGES
) -> list[tuple[Evidence, ...]]:
    """Return for each picture the captions of the training pictures that look most like it."""
    mean = train.images.mean(axis=0)
    table = ImageTable(train.images.shape[1], center=mean)
    table.add_images(train.ids, train.images)
    found = table.search_captions(store, centred_unit_rows(images, mean), pictures)
    return [store.evidence(*row) for row in zip(found.ids, found.similarities, strict=True)]


def _by_consensus(evidence: Sequence[Evidence], drafts: Sequence[Draft], *, alone: bool) -> str:
    """Return the sentence most like the evidence; ``alone``: one that was written, if any is of use."""
    nearest = {item.text: item.similarity for item in reversed(evidence)}
    written = {draft.text for draft in drafts if not is_degenerate(draft.text)}
    texts = sorted(written if alone and written else nearest.keys() | written)
    scores = by_consensus(texts, np.array([nearest.get(text, 0) for text in texts], np.float32), evidence)
    return texts[int(scores.argmax())]


PARSED = ("spice", "softspice")
"""Metrics that parse all references: done once for all systems, their corpus value being a mean."""


def score_systems(
    bench: Bench, test: Split, systems: Mapping[str, Sequence[str]], metrics: Sequence[str]
) -> dict[str, Report]:
    """Return a report for each system, whose captions are in the order of the split; one judge for all of them.

    That is the setup's encoder and map for judging, fitted to the training pairs. Where the split has no captions of
    people, the metrics that need none are left.
    """
    references = test.captions if test.has_captions else None
    judging = bench.judge
    seen = test if judging is bench else judging.load(test.name, test.part)
    known = replace(judging.encoder, image=_Known(judging.encoder, seen))
    alignment = judging.load(test.name, "train").fit(bench.setup.judge_method)
    judge = partial(evaluate, encoder=known, alignment=alignment)
    parsed = [name for name in metrics if name in PARSED]
    others = [name for name in metrics if name not in PARSED]
    together = judge(
        [text for captions in systems.values() for text in captions],
        references,
        test.ids,
        metrics=parsed,
        image_index=np.tile(np.arange(len(test.ids)), len(systems)),
    )
    reports = {}
    for number, (name, captions) in enumerate(systems.items()):
        own = slice(number * len(test.ids), (number + 1) * len(test.ids))
        report = judge(captions, references, test.ids, metrics=others)
        rows = (*report.rows, *(mean_result(row.name, row.per_image[own]) for row in together.rows))
        reports[name] = replace(report, rows=rows, unavailable=(*report.unavailable, *together.unavailable))
    return reports


def judged_note(bench: Bench) -> str:
    """Return who judges, for a table."""
    return (
        f"aCLIP-S and RefaCLIP-S are judged by the {bench.setup.judge_method} map of {bench.judge.encoder.name}, "
        "fitted to the training pairs, in every row."
    )


def score_cells(reports: Mapping[str, Report], names: Sequence[str]) -> dict[str, tuple[Cell, ...]]:
    """Return for each system the cells of some metrics, by their names in a report."""
    found = {}
    for label, report in reports.items():
        known = {row.name: points(row) for row in report.rows}
        found[label] = tuple(known.get(name, Cell()) for name in names)
    return found


def points(result: MetricResult) -> Cell:
    """Return a metric for a table: in hundredths, with its standard error where there is one."""
    value, error = (in_points(result.name, number) for number in (result.value, result.standard_error))
    return Cell(value, error if np.isfinite(error) else None) if np.isfinite(value) else Cell()


class _Known:
    """An image encoder that knows the pictures of a split by their ids."""

    def __init__(self, encoder: Encoder, split: Split) -> None:
        self.name, self.fingerprint = encoder.image.name, encoder.image.fingerprint
        self.dimension = encoder.image.dimension
        self._vectors = dict(zip(split.ids, split.images, strict=True))

    def encode_images(self, images: Sequence[ImageLike], *, progress: bool = False) -> Vectors:
        """Return the rows of pictures by id."""
        return np.stack(list(self.encode_each(images)))

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors]:
        """Yield the row of each picture by id."""
        for image in images:
            if not isinstance(image, str) or image not in self._vectors:
                raise InputError(f"{image!r} is no picture of this split")
            yield self._vectors[image]
