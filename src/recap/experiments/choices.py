"""What experiments choose alike: the model that writes, how it is asked, the map that judges, and the ways to align."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from recap.alignment import LinearAlignment, search_beta
from recap.encoders import Encoder
from recap.errors import InputError, check_name
from recap.experiments.base import Setup
from recap.experiments.data import Split
from recap.language import LanguageModel
from recap.packs.settings import Settings

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
    if model is None or settings.candidates != "lm":
        facts["candidates among"] = f"the {settings.pool} nearest captions" + (", too" if model else "")
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
