"""Cross-modal retrieval: image to text and text to image, for every map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import Indices
from recap.experiments.base import Outcome, Setup
from recap.experiments.choices import Fitted, fit_all, unavailable_maps
from recap.experiments.data import TITLES, Bench, Split
from recap.experiments.paper import retrieval_sections
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.metrics.corpus import mean_standard_error
from recap.types import Vectors

BLOCK = 1024
"""Queries whose similarities are held at once."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Retrieval:
    """Ranks, from 0, of what belongs to each query, and the cosine with it."""

    text_ranks: Indices
    """For each image, how many texts come before the first of its own."""
    image_ranks: Indices
    """For each text, how many images come before its own."""
    image_cosines: Floats
    """Of each image with the closest of its texts."""
    text_cosines: Floats
    """Of each text with its image."""
    owners: Indices

    def to_text(self, k: int) -> Cell:
        """Return in percent how many images find a text of their own among the first k."""
        return _percent((self.text_ranks < k).astype(float))

    def to_image(self, k: int) -> Cell:
        """Return in percent how many texts find their image among the first k.

        The texts of one image do not err independently: the standard error is that of the means of images.
        """
        found = np.bincount(self.owners, weights=self.image_ranks < k) / np.bincount(self.owners)
        shares, value = found[~np.isnan(found)], float((self.image_ranks < k).mean())
        return Cell(100 * value, 100 * mean_standard_error(shares))


def retrieve(images: Vectors, texts: Vectors, owners: Indices) -> Retrieval:
    """Rank all texts for each image and all images for each text by their dot product; ties go by position."""
    text_ranks, best = np.empty(len(images), np.intp), np.empty(len(images))
    image_ranks, own = np.empty(len(texts), np.intp), np.empty(len(texts))
    for start in range(0, len(images), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(images)))
        similarities = images[rows] @ texts.T
        mine = np.where(owners[None, :] == rows[:, None], similarities, -np.inf)
        first = mine.argmax(axis=1)
        best[rows] = mine[np.arange(len(rows)), first]
        text_ranks[rows] = _before(similarities, first)
    for start in range(0, len(texts), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(texts)))
        similarities = texts[rows] @ images.T
        own[rows] = similarities[np.arange(len(rows)), owners[rows]]
        image_ranks[rows] = _before(similarities, owners[rows])
    return Retrieval(text_ranks, image_ranks, best, own, owners)


def mean_cell(values: Floats) -> Cell:
    """Return a mean with its standard error."""
    return Cell(float(values.mean()), mean_standard_error(values))


def _before(similarities: Vectors, places: Indices) -> Indices:
    """Return for each row how many columns come before the given one."""
    at = np.take_along_axis(similarities, places[:, None], axis=1)
    earlier = np.arange(similarities.shape[1])[None, :] < places[:, None]
    return np.asarray(((similarities > at) | ((similarities == at) & earlier)).sum(axis=1))


def _percent(found: Floats) -> Cell:
    """Return a share in percent with its binomial standard error."""
    share = float(found.mean())
    return Cell(100 * share, 100 * float(np.sqrt(share * (1 - share) / len(found))))


OPTIONS = ("maps",)

KS = (1, 5, 10)

COLUMNS = (
    *(Column(f"i2t R@{k}") for k in KS),
    Column("i2t cos", 3),
    *(Column(f"t2i R@{k}") for k in KS),
    Column("t2i cos", 3),
)

NOTES = (
    "Recall in percent. i2t: the picture finds one of its captions; cos: that of a picture with the closest of them. "
    "t2i: the caption finds its picture; cos: that of a caption with its picture.",
)

IN_PAPER = ("coco", "flickr30k")


def run(setup: Setup) -> Outcome:
    """Fit every map on train, and let pictures and captions of test find each other."""
    bench = Bench(setup)
    train, test = bench.load(setup.on, "train"), bench.measured(setup.on)
    fitted = list(fit_all(train, bench.encoder, setup))
    title = test.titled(bench.encoder.name)
    ours = Section(title, tuple(Row(item.label, recall_cells(item, test)) for item in fitted))
    names = [column.name for column in COLUMNS]
    known = setup.on in IN_PAPER
    paper = retrieval_sections(TITLES[setup.on], names, bench.encoder.name) if known else ()
    absent = () if known else ("The paper has no such rows for these data: it has those of COCO and Flickr30k.",)
    notes = (*NOTES, *absent, *unavailable_maps(bench.encoder))
    table = Table("Cross-modal retrieval", COLUMNS, (ours, *paper), notes)
    return Outcome({"retrieval": table}, times=fitting_times(fitted))


def recall_cells(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall and cosine of a map, both ways."""
    images, texts = item.alignment.transform(test.images), item.alignment.transform_texts(test.texts)
    found = retrieve(images, texts, test.owners)
    to_text, to_image = [found.to_text(k) for k in KS], [found.to_image(k) for k in KS]
    return (*to_text, mean_cell(found.image_cosines), *to_image, mean_cell(found.text_cosines))


def fitting_times(fitted: list[Fitted]) -> Table:
    """Return the CPU seconds each map took, and how many times as long as the quickest that is."""
    quickest = min(item.seconds for item in fitted)
    columns = (Column("CPU seconds", 2, "lower"), Column("times the quickest", 1, "lower"))
    rows = tuple(Row(item.label, (Cell(item.seconds), Cell(item.seconds / quickest))) for item in fitted)
    return Table("Time to fit the map, vectors given", columns, (Section("", rows),))
