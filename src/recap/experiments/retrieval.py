"""What images and captions find in each other, and where they lie: experiments without a language model.

``retrieval``: image to text and text to image, for every map.
``examples``: captions retrieved for some test pictures with and without alignment; a figure and its texts. Without
means the encoder's own space. An encoder without one can only compare pictures with pictures: its captions are then
those of the picture that looks most alike. ``--option shown=6`` shows more pictures, ``method=ols`` takes another map,
and another ``--seed`` draws other pictures.
``modality-gap``: where images and captions lie before and after alignment; a figure and numbers. ``projection=pca`` or
``umap`` (where it is installed) draws something other than t-SNE, ``pictures=1000`` fewer than 5,000 pictures, each
with one caption.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recap.alignment.rows import Indices
from recap.captioner import ReCap
from recap.errors import InputError, MissingExtraError, check_name
from recap.experiments.base import Outcome, Runs, Setup, new_figure
from recap.experiments.data import TITLES, Bench, Split, read_pixels
from recap.experiments.study import Fitted, fit_all, unavailable_maps, unimodal_evidence
from recap.experiments.table import Cell, Column, Row, Section, Table, retrieval_sections
from recap.metrics.corpus import mean_standard_error
from recap.types import Evidence, Vectors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def run_retrieval(setup: Setup) -> Outcome:
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


def retrieve_test(item: Fitted, test: Split) -> Retrieval:
    """Let pictures and captions of a split find each other through a map."""
    return retrieve(item.alignment.transform(test.images), item.alignment.transform_texts(test.texts), test.owners)


def recall_cells(item: Fitted, test: Split) -> tuple[Cell, ...]:
    """Return recall and cosine of a map, both ways."""
    found = retrieve_test(item, test)
    to_text, to_image = [found.to_text(k) for k in KS], [found.to_image(k) for k in KS]
    return (*to_text, mean_cell(found.image_cosines), *to_image, mean_cell(found.text_cosines))


def fitting_times(fitted: list[Fitted]) -> Table:
    """Return the CPU seconds each map took, and how many times as long as the quickest that is."""
    quickest = min(item.seconds for item in fitted)
    columns = (Column("CPU seconds", 2, "lower"), Column("times the quickest", 1, "lower"))
    rows = tuple(Row(item.label, (Cell(item.seconds), Cell(item.seconds / quickest))) for item in fitted)
    return Table("Time to fit the map, vectors given", columns, (Section("", rows),))


SHOWN = 3
CAPTIONS = 3
"""As many of each as the paper shows."""
MOST = 12
"""No more pictures are drawn side by side."""
WIDTH = 44
"""Letters in a line below a picture."""


def run_examples(setup: Setup) -> Outcome:
    """Retrieve for some test pictures, both ways."""
    bench, method = Bench(setup), setup.option("method", "procrustes")
    train, test = bench.load(setup.on, "train"), bench.measured(setup.on)
    shown = _some_pictures(test, setup)
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
    return Outcome(
        {"examples": table}, {"examples": _draw_captions(test, shown, {without: bare, "with alignment": aligned})}
    )


def _some_pictures(test: Split, setup: Setup) -> list[int]:
    drawn = np.random.default_rng(setup.seed).permutation(len(test.ids))[: min(setup.number("shown", SHOWN), MOST)]
    return [int(place) for place in np.sort(drawn)]


def _joined(evidence: tuple[Evidence, ...]) -> str:
    return "; ".join(f"{item.text} ({item.similarity:.2f})" for item in evidence)


def _draw_captions(test: Split, shown: list[int], found: dict[str, list[tuple[Evidence, ...]]]) -> Figure:
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


DRAWN = 5000
"""Pictures that are drawn, each with one caption."""
NEIGHBOURS = 10

GAP_COLUMNS = (
    Column("distance of the means", 3, "lower"),
    Column("cosine of pairs", 3),
    Column("neighbours of the other kind, %"),
)


def run_modality_gap(setup: Setup) -> Outcome:
    """Fit Procrustes on train and draw some of its pairs, as the paper does."""
    bench = Bench(setup)
    train = bench.load(setup.on, "train")
    images, texts = _some_pairs(train, setup)
    alignment = train.fit("procrustes")
    states = {
        "before": _padded(images, texts),
        "after": (alignment.transform(images), alignment.transform_texts(texts)),
    }
    name = setup.option("projection", "t-sne")
    check_name("projection", name, PROJECTIONS)
    points = {state: PROJECTIONS[name](np.concatenate(rows), setup.seed) for state, rows in states.items()}
    title = f"{TITLES[setup.on]} train, {bench.encoder.name}, {len(images):,} pairs"
    rows = tuple(Row(state, gap(*vectors)) for state, vectors in states.items())
    notes: tuple[str, ...] = (
        f"Half of {NEIGHBOURS} neighbours are of the other kind where images and captions mix freely.",
    )
    if not bench.encoder.shares_space:
        notes += ("Before: this encoder has no common space, so the first coordinates are laid over each other.",)
    table = Table("The modality gap", GAP_COLUMNS, (Section(title, rows),), notes, first="alignment")
    return Outcome({"modality-gap": table}, {f"modality-gap-{name}": _draw_clouds(points, f"{name}: {title}")})


def gap(images: Vectors, texts: Vectors) -> tuple[Cell, ...]:
    """Return how far apart two clouds of unit rows in pairs are: by their means, by pairs, and by neighbours."""
    distance = float(np.linalg.norm(images.mean(axis=0) - texts.mean(axis=0)))
    cosine = float(np.einsum("ij,ij->i", images, texts).mean())
    rows = np.concatenate([images, texts])
    count = min(NEIGHBOURS, len(rows) - 1)
    kind, others = np.arange(len(rows)) >= len(images), 0
    for start in range(0, len(rows), BLOCK):
        similarities = rows[start : start + BLOCK] @ rows.T
        places = np.arange(len(similarities))
        similarities[places, start + places] = -np.inf
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        others += int((kind[nearest] != kind[start + places, None]).sum())
    return Cell(distance), Cell(cosine), Cell(100 * others / (len(rows) * count))


def _some_pairs(train: Split, setup: Setup) -> tuple[Vectors, Vectors]:
    """Return some pictures, each with its first caption."""
    drawn = np.random.default_rng(setup.seed).permutation(len(train.ids))
    chosen = np.sort(drawn[: setup.number("pictures", DRAWN, least=2)])
    first = np.searchsorted(train.owners, chosen)
    return train.images[chosen], train.texts[first]


def _padded(images: Vectors, texts: Vectors) -> tuple[Vectors, Vectors]:
    """Return both sides with as many columns as the wider has."""
    width = max(images.shape[1], texts.shape[1])
    images, texts = (np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in (images, texts))
    return images, texts


def _pca(rows: Vectors, seed: int) -> Vectors:
    centred = rows - rows.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    # the sign of an axis is arbitrary: its largest value is made positive
    points = u[:, :2] * s[:2]
    return np.asarray(points * np.sign(points[np.abs(points).argmax(axis=0), [0, 1]]))


def _tsne(rows: Vectors, seed: int) -> Vectors:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtraError("t-SNE", "experiments") from error
    perplexity = min(30.0, (len(rows) - 1) / 3)
    return np.asarray(TSNE(init="pca", random_state=seed, perplexity=perplexity, n_jobs=1).fit_transform(rows))


def _umap(rows: Vectors, seed: int) -> Vectors:
    try:
        from umap import UMAP
    except ImportError as error:
        raise InputError(
            "the projection umap needs the package umap-learn: install it, or take t-sne or pca"
        ) from error
    return np.asarray(UMAP(random_state=seed, metric="cosine", n_jobs=1).fit_transform(rows))


PROJECTIONS: dict[str, Callable[[Vectors, int], Vectors]] = {"t-sne": _tsne, "pca": _pca, "umap": _umap}


def _draw_clouds(points: dict[str, Vectors], title: str) -> Figure:
    figure = new_figure(9, 4.6)
    figure.suptitle(title)
    for axes, (state, rows) in zip(figure.subplots(1, 2), points.items(), strict=True):
        half = len(rows) // 2
        axes.scatter(*rows[:half].T, s=6, alpha=0.6, linewidths=0, label="pictures", color="tab:blue")
        axes.scatter(*rows[half:].T, s=6, alpha=0.6, linewidths=0, label="captions", color="tab:orange")
        axes.set_title(f"{state} alignment")
        axes.set_xticks([])
        axes.set_yticks([])
    axes.legend(markerscale=2)
    return figure


RUNS: Runs = {
    "retrieval": (run_retrieval, ("maps",)),
    "examples": (run_examples, ("method", "shown")),
    "modality-gap": (run_modality_gap, ("pictures", "projection")),
}
