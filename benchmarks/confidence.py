"""Whether confidence can be trusted: calibration and risk-coverage on Flickr8k-Expert and on recap's own captions.

    python benchmarks/confidence.py DIR --coco DIR --work DIR --tested FILE [--lm none] [--figures docs/images]

DIR holds ``images/``, ``captions.token.txt``, ``dev.txt``, ``test.txt`` and ``expert_annotations.txt``; ``--coco`` is
the folder of ``benchmarks/captions.py coco``; ``--work`` and ``--tested`` are as for ``tools/fit_confidence.py``.
Everything is fitted twice, each time with the experts' ratings of one half of the pictures, and measured on the other
half. The table of own captions has no people in it: there the judge of ``recap.fitting.confidence`` says what is right,
as fitted on the half that is not measured, and CIDEr-D is computed from the pictures' own captions. ECE is the expected
calibration error over 10 bins of equally many captions, and beside it over 10 bins of equal width. Vectors are kept
in the cache; a second run takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from recap.assets import vector_file
from recap.captioner import ReCap
from recap.confidence import Calibration, Floats, calibration_error
from recap.datasets import read_flickr8k
from recap.datasets.published import read_coco_captions
from recap.datastore import Datastore
from recap.encoders import load_encoder
from recap.errors import ImageError
from recap.fitting.confidence import Judge, KnownPictures, Places, closeness_to_references, fit_calibration, unit_of
from recap.metrics import cider_d
from recap.packs.builtin import LANGUAGE_MODEL
from recap.selection import RULES
from recap.types import Evidence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from fit_confidence import (
    Experts,
    OwnCaptions,
    builtin_captioner,
    experts,
    fit,
    flickr8k_pictures,
    own_sets,
)
from writer.prepare import World

BINS = 10
COCO_TESTED = 1000
PACK = 2000
HUMAN_RULES = ("consensus", "cosine")
"""Those that can choose among captions no model wrote."""

ALONE = ", fitted on the experts alone"


@dataclass(frozen=True, slots=True)
class Measured:
    """Captions with their confidence, the share that is right, and CIDEr-D where references were compared."""

    name: str
    confidence: Floats
    right: Floats
    cider: Floats | None = None

    @property
    def best_half(self) -> Places:
        """The more confident half."""
        return np.argsort(-self.confidence, kind="stable")[: len(self.confidence) // 2]


@dataclass(frozen=True, slots=True)
class Fits:
    """The two fits, and the pictures each was fitted without: ``unseen[i]`` belongs to ``calibrations[i]``."""

    unseen: tuple[Places, ...]
    judges: tuple[Judge, ...]
    calibrations: tuple[Calibration, ...]


def main() -> None:
    """Fit twice, print the tables, draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--coco", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tested", type=Path, required=True)
    parser.add_argument("--lm", default=LANGUAGE_MODEL, help="none for no language model")
    parser.add_argument("--figures", type=Path, help="draw into this folder")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    captioner = builtin_captioner(arguments.lm)
    rated = experts(captioner, folder)
    own = own_sets(captioner, folder, World(arguments.work, {int(number) for number in np.load(arguments.tested)}))
    fits, naive = fit_halves(captioner, rated, own), fit_halves(captioner, rated, [])
    people = by_people(captioner, folder, rated, fits)
    print_table("Flickr8k-Expert: right by the experts, pictures not fitted on", people)
    pictures = flickr8k_pictures(captioner, folder, "test")
    references = [list(pair.captions) for pair in read_flickr8k(folder, "test")]
    tested, captions = coco_tested(captioner, arguments.coco)
    own_rows: list[Measured] = []
    for name, chosen in (("", fits), (ALONE, naive)):
        own_rows.append(own_captions(f"own captions, Flickr8k test{name}", captioner, pictures, references, chosen))
        own_rows.append(own_captions(f"own captions, COCO test{name}", captioner, tested, captions, chosen))
    own_rows.append(own_pack(folder, arguments.lm, pictures, references))
    print_table("recap's own captions: right by the judge with references", own_rows)
    if arguments.figures:
        arguments.figures.mkdir(parents=True, exist_ok=True)
        draw_reliability(arguments.figures / "confidence-reliability.png", people[2:5], own_rows)
        draw_coverage(arguments.figures / "confidence-coverage.png", [*people[2:5], *own_rows[:2], own_rows[-1]])


def fit_halves(captioner: ReCap, rated: Experts, own: Sequence[OwnCaptions]) -> Fits:
    """Fit on the ratings of one half of the pictures and the other."""
    pictures = int(rated.owners.max()) + 1
    first = np.zeros(pictures, dtype=bool)
    first[np.random.default_rng(0).permutation(pictures)[: pictures // 2]] = True
    pairs = [fit(captioner, rated.of(half), own) for half in (first, ~first)]
    judges, calibrations = zip(*pairs, strict=True)
    return Fits((np.flatnonzero(~first), np.flatnonzero(first)), judges, calibrations)


def by_people(captioner: ReCap, folder: Path, rated: Experts, fits: Fits) -> list[Measured]:
    """Return confidence and what the experts said, for all captions and for those that recap would choose."""
    confidence = np.empty(len(rated.texts))
    halves = []
    for number, (unseen, calibration) in enumerate(zip(fits.unseen, fits.calibrations, strict=True), start=1):
        rows = np.flatnonzero(np.isin(rated.owners, unseen))
        confidence[rows] = calibration.probabilities(rated.rows[rows])
        halves.append(Measured(f"all rated captions, half {number}", confidence[rows], rated.right[rows]))
    chosen = {"all rated captions": np.arange(len(rated.texts))}
    chosen |= {
        f"recap's choice among those rated, {rule}": best_rated(captioner, folder, rated, rule) for rule in HUMAN_RULES
    }
    chosen |= {f"nearest of other pictures' captions, {r}": found(captioner, folder, rated, r) for r in HUMAN_RULES}
    return halves + [Measured(name, confidence[rows], rated.right[rows]) for name, rows in chosen.items()]


def best_rated(captioner: ReCap, folder: Path, rated: Experts, rule: str) -> Places:
    """Return for each picture which of its rated captions the captioner would choose."""
    cosines = rated.rows[:, 0].astype(np.float32)
    known = flickr8k_pictures(captioner, folder, "test")
    proposals = captioner.configured(candidates="retrieved").propose(known.images)
    best = []
    for picture in np.unique(rated.owners):
        rows = np.flatnonzero(rated.owners == picture)
        evidence: Sequence[Evidence] = proposals[picture].evidence
        scores = RULES.get(rule).score([rated.texts[row] for row in rows], cosines[rows], evidence)
        best.append(rows[int(np.argmax(scores))])
    return np.array(best)


def found(captioner: ReCap, folder: Path, rated: Experts, rule: str) -> Places:
    """Return the rated captions that recap chooses from all captions of the other test pictures."""
    pairs, text = read_flickr8k(folder, "test"), captioner.encoder.text
    store = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint)
    captions = [caption for pair in pairs for caption in pair.captions]
    store.add(
        captions,
        captioner.encoder.encode_texts(captions),
        image_ids=[pair.id for pair in pairs for _ in pair.captions],
    )
    other = ReCap(captioner.encoder, captioner.statistics, store, alignment=captioner.alignment)
    known = flickr8k_pictures(captioner, folder, "test")
    said = other.configured(selection=rule).caption_vectors(known.images, exclude_image_ids=known.ids)
    place = {
        (owner, text): row for row, (owner, text) in enumerate(zip(rated.owners.tolist(), rated.texts, strict=True))
    }
    return np.array([place[owner, c.text] for owner, c in enumerate(said) if (owner, c.text) in place])


def own_captions(
    name: str, captioner: ReCap, known: KnownPictures, references: Sequence[Sequence[str]], fits: Fits
) -> Measured:
    """Caption pictures with the confidence of the fit that has not seen them; COCO ones were never seen."""
    everything = np.arange(len(known.images))
    unit = unit_of(captioner, known)
    confidence, right, texts = np.empty(len(everything)), np.empty(len(everything)), [""] * len(everything)
    captioner = captioner.configured()
    for unseen, judge, calibration in zip(fits.unseen, fits.judges, fits.calibrations, strict=True):
        part = unseen[unseen < len(everything)]
        captioner.calibration = calibration
        said = captioner.caption_vectors(known.images[part])
        closeness = closeness_to_references(captioner, known.part(part), [c.text for c in said], np.arange(len(part)))
        right[part] = judge.probabilities(closeness / unit)
        confidence[part] = [caption.confidence for caption in said]
        for row, caption in zip(part, said, strict=True):
            texts[row] = caption.text
    return Measured(name, confidence, right, 100 * cider_d(texts, references).per_image)


def own_pack(folder: Path, language_model: str, known: KnownPictures, references: Sequence[Sequence[str]]) -> Measured:
    """Fit a pack to the first training pictures and calibrate it on the same, as ``recap fit`` does."""
    pairs = read_flickr8k(folder, "train")[:PACK]
    encoder = load_encoder("builtin", cache=vector_file())
    captioner = ReCap.fit(pairs, encoder=encoder, language_model=language_model, calibrate=False)
    captioner.calibration = fit_calibration(captioner, pairs)
    said = captioner.caption_vectors(known.images)
    texts = [caption.text for caption in said]
    closeness = closeness_to_references(captioner, known, texts, np.arange(len(texts))) / unit_of(captioner, known)
    return Measured(
        f"own captions, Flickr8k test, a pack of {PACK:,} pairs",
        np.array([caption.confidence for caption in said], dtype=np.float64),
        Judge.packaged().probabilities(closeness),
        100 * cider_d(texts, references).per_image,
    )


def coco_tested(captioner: ReCap, folder: Path) -> tuple[KnownPictures, list[list[str]]]:
    """Return pictures of Karpathy's test split that are there, and their captions."""
    there = {path.stem: path for path in (folder / "images").iterdir()}
    pairs = [pair for pair in read_coco_captions(folder, "test") if pair.id in there][:COCO_TESTED]
    images = [row for row in captioner.encode_each(there[pair.id] for pair in pairs) if not isinstance(row, ImageError)]
    captions = [list(pair.captions) for pair in pairs]
    return KnownPictures.of(captioner.encoder, [pair.id for pair in pairs], captions, np.stack(images)), captions


def print_table(title: str, rows: Sequence[Measured]) -> None:
    """Print how confidence and what is right compare, and what the more confident half is worth."""
    table = Table(title=title)
    for column in (
        "captions",
        "n",
        "confidence",
        "right",
        "ECE",
        "equal width",
        "right, confident half",
        "CIDEr-D",
        "confident half",
    ):
        table.add_column(column, justify="left" if column == "captions" else "right")
    for row in rows:
        half = row.best_half
        cider = ("", "") if row.cider is None else (f"{row.cider.mean():.1f}", f"{row.cider[half].mean():.1f}")
        table.add_row(
            row.name,
            f"{len(row.right):,}",
            f"{row.confidence.mean():.3f}",
            f"{row.right.mean():.3f}",
            f"{calibration_error(row.confidence, row.right, bins=BINS):.3f}",
            f"{calibration_error(row.confidence, row.right, bins=BINS, equal_width=True):.3f}",
            f"{row.right[half].mean():.3f}",
            *cider,
        )
    Console(width=160).print(table)


def draw_reliability(path: Path, left: Sequence[Measured], right: Sequence[Measured]) -> None:
    """Draw the share that is right against confidence, in bins of equally many captions."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 6.2), sharex=True, sharey=True, layout="constrained")
    axes[0].set(title="right by the experts", ylabel="share that is right")
    axes[1].set(title="own captions: right by the judge with references")
    for axis, rows in zip(axes, (left, right), strict=True):
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        for number, row in enumerate(rows):
            parts = np.array_split(np.argsort(row.confidence, kind="stable"), BINS)
            points = np.array([(row.confidence[part].mean(), row.right[part].mean()) for part in parts])
            style = ":" if row.name.endswith(ALONE) else "-"
            label = f"{row.name}: ECE {calibration_error(row.confidence, row.right, bins=BINS):.3f}"
            axis.plot(*points.T, marker="o", markersize=4, linestyle=style, color=f"C{number}", label=label)
        axis.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def draw_coverage(path: Path, rows: Sequence[Measured]) -> None:
    """Draw what is wrong, and CIDEr-D, among the most confident captions."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for number, row in enumerate(rows):
        order = np.argsort(-row.confidence, kind="stable")
        kept = np.arange(1, len(order) + 1)
        # the mean of a handful of captions is noise
        shown = kept >= max(20, len(order) // 50)
        share, colour = (kept / len(order))[shown], f"C{number}"
        axes[0].plot(share, 1 - (np.cumsum(row.right[order]) / kept)[shown], color=colour, label=row.name)
        if row.cider is not None:
            axes[1].plot(share, (np.cumsum(row.cider[order]) / kept)[shown], color=colour)
    axes[0].set(title="share that is not right", ylim=(0, 1))
    axes[1].set(title="CIDEr-D", ylim=(0, None))
    for axis in axes:
        axis.set(xlabel="share of captions kept, most confident first", xlim=(0, 1))
        axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
