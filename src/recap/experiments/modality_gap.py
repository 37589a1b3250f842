"""The modality gap: where images and captions lie before and after alignment. A figure and numbers.

``--option projection=pca`` or ``umap`` (where it is installed) draws something other than t-SNE, ``pictures=1000``
fewer than 5,000 pictures, each with one caption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from recap.errors import InputError, MissingExtraError, check_name
from recap.experiments.base import Outcome, Setup, new_figure
from recap.experiments.data import TITLES, Bench, Split
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.types import Vectors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = ("pictures", "projection")

PICTURES = 5000
"""Pictures that are drawn, each with one caption."""
NEIGHBOURS = 10
BLOCK = 1024
"""Rows whose similarities are held at once."""

COLUMNS = (
    Column("distance of the means", 3, "lower"),
    Column("cosine of pairs", 3),
    Column("neighbours of the other kind, %"),
)


def run(setup: Setup) -> Outcome:
    """Fit Procrustes on train and draw some of its pairs, as the paper does."""
    bench = Bench(setup)
    train = bench.load(setup.on, "train")
    images, texts = _sample(train, setup)
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
    table = Table("The modality gap", COLUMNS, (Section(title, rows),), notes, first="alignment")
    return Outcome({"modality-gap": table}, {f"modality-gap-{name}": _draw(points, f"{name}: {title}")})


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


def _sample(train: Split, setup: Setup) -> tuple[Vectors, Vectors]:
    """Return some pictures, each with its first caption."""
    drawn = np.random.default_rng(setup.seed).permutation(len(train.ids))
    chosen = np.sort(drawn[: setup.number("pictures", PICTURES, least=2)])
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


def _draw(points: dict[str, Vectors], title: str) -> Figure:
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
