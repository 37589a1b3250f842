"""What alignment changes: captions retrieved for some test pictures with and without it. A figure and its texts.

Without alignment means the encoder's own space. An encoder without one can only compare pictures with pictures: its
captions are then those of the picture that looks most alike. ``--option pictures=6`` shows more pictures, ``--option
method=ols`` another map, and another ``--seed`` draws other pictures.
"""

from __future__ import annotations

from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import numpy as np

from recap.captioner import ReCap
from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.captions import unimodal_evidence
from recap.experiments.data import Bench, Split, read_pixels
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.types import Evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = ("method", "shown")

PICTURES = 3
CAPTIONS = 3
"""As many of each as the paper shows."""
MOST = 12
"""No more pictures are drawn side by side."""
WIDTH = 44
"""Letters in a line below a picture."""


def run(setup: Setup) -> Outcome:
    """Retrieve for some test pictures, both ways."""
    bench, method = Bench(setup), setup.option("method", "procrustes")
    train, test = bench.load(setup.on, "train"), bench.measured(setup.on)
    shown = _sample(test, setup)
    store, alignment = train.store(bench.encoder), train.fit(method, seed=setup.seed)
    captioner = ReCap(bench.encoder, alignment.statistics_, store, alignment=alignment)
    aligned = captioner.retrieve_vectors(test.images[shown], CAPTIONS)
    if bench.encoder.shares_space:
        bare, without = captioner.retrieve_vectors(test.images[shown], CAPTIONS, aligned=False), "without alignment"
    else:
        bare = [found[:CAPTIONS] for found in unimodal_evidence(train, store, test.images[shown], 1)]
        without = "of the picture that looks most alike"
    title = f"{test.title}, {bench.encoder.name}, {method}"
    columns = tuple(Column(name, better="neither") for name in (without, "with alignment", "a person"))
    rows = tuple(
        Row(test.ids[place], tuple(map(Cell, (_joined(one), _joined(other), test.captions[place][0]))))
        for place, one, other in zip(shown, bare, aligned, strict=True)
    )
    notes = () if bench.encoder.shares_space else (f"{bench.encoder.name} has no space that both share.",)
    table = Table("Retrieved captions", columns, (Section(title, rows),), notes, first="picture")
    return Outcome({"examples": table}, {"examples": _draw(test, shown, {without: bare, "with alignment": aligned})})


def _sample(test: Split, setup: Setup) -> list[int]:
    drawn = np.random.default_rng(setup.seed).permutation(len(test.ids))[: min(setup.number("shown", PICTURES), MOST)]
    return [int(place) for place in np.sort(drawn)]


def _joined(evidence: tuple[Evidence, ...]) -> str:
    return "; ".join(f"{item.text} ({item.similarity:.2f})" for item in evidence)


def _draw(test: Split, shown: list[int], found: dict[str, list[tuple[Evidence, ...]]]) -> Figure:
    figure = new_figure(3.6 * len(shown), 5.0)
    grid = figure.subplots(2, len(shown), squeeze=False, height_ratios=(3, 2.2))
    for column, place in enumerate(shown):
        picture, text = grid[:, column]
        for axes in (picture, text):
            axes.axis("off")
        seen = read_pixels(test, place)
        if seen is None:
            words = "\n".join(wrap(f"{test.ids[place]}, known by its vector; a person: {test.captions[place][0]}", 36))
            picture.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, style="italic")
        else:
            picture.imshow(seen)
        text.text(0, 1, _lines({way: rows[column] for way, rows in found.items()}), va="top", fontsize=7.5)
    return figure


def _lines(found: dict[str, tuple[Evidence, ...]]) -> str:
    parts = []
    for way, evidence in found.items():
        parts.append(f"{way}:")
        for item in evidence:
            words = shorten(item.text.rstrip(" .").replace("$", "\\$"), 2 * WIDTH, placeholder=" ...")
            parts += wrap(f"{item.similarity:.2f}  {words}", WIDTH, subsequent_indent="        ")
        parts.append("")
    return "\n".join(parts)
