"""Fit the confidence of the built-in pack, and write it into the package.

    python tools/fit_confidence.py --flickr8k DIR [--work DIR --tested FILE] [--pack NAME] [--readings FILE] [--lm NAME]

``--flickr8k`` holds ``images/``, ``captions.token.txt``, ``dev.txt``, ``test.txt`` and ``expert_annotations.txt``;
``--work`` is the folder ``train_eyes.py`` worked in, and ``--tested`` a file with the numbers of COCO's test pictures
(``.npy``); without them, its pictures are left out. Fitted are the judge, on what the experts said, and the
calibration, on that and on the captioner's own captions of Flickr8k dev and of the pictures the eyes were not trained
on: of COCO, of Conceptual Captions, those that we described, and of the sets with names. The judge labels these. All
sets have equal weight. ``--readings`` are captions that readers judged beside their pictures, a line of json each:
``{"image": PATH, "caption": TEXT, "right": SHARE}`` of the readers; they weigh twice as much as all the others, and are
also what the result is tested on, in turns. Only a few numbers are written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from writer.prepare import World

import recap
from recap.assets import vector_file
from recap.captioner import ReCap
from recap.confidence import Calibration, Floats, calibration_error
from recap.datasets import read_flickr8k
from recap.datasets.judgements import Judgements, read_judgements
from recap.errors import ImageError
from recap.files import write_json
from recap.fitting.confidence import (
    Judge,
    KnownPictures,
    Places,
    closeness_to_references,
    given_rows,
    own_rows,
    unit_of,
)
from recap.packs import folder as pack
from recap.packs.builtin import DESCRIBED, LANGUAGE_MODEL

RIGHT = 3
"""Who gives at least this calls a caption right: 4 is without errors, 3 with minor ones, 2 is related, 1 is not."""

LARGE = "eyes-large"
"""The encoder whose pictures DINOv2 must have looked at."""
FOLDS, SURE = 5, 0.7
READ = 2
"""What people read weighs so many times as much as all the other sets."""
PICTURES = 600
"""So many of each set are captioned."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Captions that experts rated."""

    texts: tuple[str, ...]
    owners: Places
    """Of which picture each caption was rated, by its row in the list of ``test``."""
    rows: Floats
    closeness: Floats
    right: Floats
    """The share of the experts that call it right."""
    unit: float

    def of(self, pictures: npt.NDArray[np.bool_]) -> Experts:
        """Return the ratings of some of the pictures."""
        kept = np.flatnonzero(pictures[self.owners])
        texts = tuple(self.texts[row] for row in kept)
        return Experts(texts, self.owners[kept], self.rows[kept], self.closeness[kept], self.right[kept], self.unit)


@dataclass(frozen=True, slots=True)
class OwnCaptions:
    """What the captioner says of pictures whose captions are known."""

    rows: Floats
    closeness: Floats
    pictures: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Captions that readers judged beside their pictures."""

    rows: Floats
    right: Floats
    owners: Places

    def of(self, kept: npt.NDArray[np.bool_]) -> Readings:
        """Return some of the readings."""
        return Readings(self.rows[kept], self.right[kept], self.owners[kept])


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--tested", type=Path)
    parser.add_argument("--lm", default=LANGUAGE_MODEL, help="whose sentences are judged too; none for no model")
    parser.add_argument("--pack", choices=(pack.BUILTIN, pack.FAST), default=pack.BUILTIN)
    parser.add_argument("--readings", type=Path)
    parser.add_argument("--out", type=Path, default=Path(recap.__file__).parent / "data")
    arguments = parser.parse_args()
    captioner = builtin_captioner(arguments.pack, arguments.lm)
    if (arguments.work is None) != (arguments.tested is None):
        parser.error("--work and --tested belong together")
    world = World(arguments.work, {int(n) for n in np.load(arguments.tested)}) if arguments.work else None
    rated, own = experts(captioner, arguments.flickr8k), own_sets(captioner, arguments.flickr8k, world)
    read = readings(captioner, arguments.readings) if arguments.readings else None
    if read is not None:
        test_on_readings(captioner, rated, own, read)
    judge, calibration = fit(captioner, rated, own, read)
    path = arguments.out / arguments.pack / pack.CONFIDENCE
    write_json(path, {"calibration": calibration.as_dict(), "judge": asdict(judge)})
    print(f"{path}\n{path.read_text(encoding='utf-8')}")


def builtin_captioner(name: str = pack.BUILTIN, language_model: str = LANGUAGE_MODEL) -> ReCap:
    """Return the captioner of a built-in pack, with a cache of vectors."""
    cache = vector_file()
    return ReCap.from_pretrained(name, language_model=language_model, cache=cache, progress=True)


def experts(captioner: ReCap, folder: Path) -> Experts:
    """Return what the experts said of captions, as shares, with the features of these captions."""
    judged = read_judgements(folder / "expert_annotations.txt", "flickr8k-expert")
    assert isinstance(judged, Judgements)
    known = flickr8k_pictures(captioner, folder, "test")
    assert known.ids is not None
    place = {name: row for row, name in enumerate(known.ids)}
    owners = np.array([place[image] for image in judged.images])
    unit = unit_of(captioner, known)
    return Experts(
        judged.captions,
        owners,
        given_rows(captioner, known.images, judged.captions, owners),
        closeness_to_references(captioner, known, judged.captions, owners) / unit,
        (np.array(judged.ratings) >= RIGHT).mean(1),
        unit,
    )


def own_sets(captioner: ReCap, flickr8k: Path, world: World | None) -> list[OwnCaptions]:
    """Return own captions of Flickr8k dev and of what the eyes were not trained on."""
    known_sets = [flickr8k_pictures(captioner, flickr8k, "dev").part(np.arange(PICTURES))]
    if world is not None:
        known_sets += [held_out_pictures(captioner, world, kind) for kind in ("coco", "conceptual", DESCRIBED, "named")]
    unit = unit_of(captioner, known_sets[0])
    sets = []
    for known in known_sets:
        rows, closeness = own_rows(captioner, known)
        # the wordings of a name are closer to each other than what people write: their unit would be no measure
        sets.append(OwnCaptions(rows, closeness / unit, len(known.counts)))
    return sets


def readings(captioner: ReCap, path: Path) -> Readings:
    """Return what people said of captions beside their pictures."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    places = {image: place for place, image in enumerate(dict.fromkeys(record["image"] for record in records))}
    images = [row for row in captioner.encode_each(list(places)) if not isinstance(row, ImageError)]
    owners = np.array([places[record["image"]] for record in records])
    texts = [record["caption"] for record in records]
    right = np.array([float(record["right"]) for record in records])
    return Readings(given_rows(captioner, np.stack(images), texts, owners), right, owners)


def test_on_readings(captioner: ReCap, rated: Experts, own: Sequence[OwnCaptions], read: Readings) -> None:
    """Print how far the confidence of captions can be believed whose pictures were not fitted on."""
    confidence = np.empty(len(read.right))
    for turn in range(FOLDS):
        tested = read.owners % FOLDS == turn
        _, calibration = fit(captioner, rated, own, read.of(~tested))
        confidence[tested] = calibration.probabilities(read.rows[tested])
    sure = confidence >= SURE
    print(f"read: {len(confidence)} captions, {read.right.mean():.2f} right, mean confidence {confidence.mean():.2f}")
    print(
        f"ECE {calibration_error(confidence, read.right):.3f}; {read.right[sure].mean():.2f} of {sure.sum()} sure ones"
    )


def fit(
    captioner: ReCap, rated: Experts, own: Sequence[OwnCaptions], read: Readings | None = None
) -> tuple[Judge, Calibration]:
    """Fit the judge on the experts, and the calibration on them and on own captions, each set with equal weight."""
    fingerprint = captioner.encoder.text.fingerprint
    judge = Judge.fit(rated.closeness, rated.right, unit=rated.unit, text_encoder=fingerprint)
    rows = [rated.rows, *(captions.rows for captions in own)]
    labels = [rated.right, *(judge.probabilities(captions.closeness) for captions in own)]
    each = sum(map(len, rows)) / len(rows)
    weights = [np.full(len(part), each / len(part)) for part in rows]
    pictures = len(np.unique(rated.owners)) + sum(captions.pictures for captions in own)
    source = "Flickr8k-Expert, and own captions as labelled by a judge fitted on it"
    if read is not None:
        rows, labels = [*rows, read.rows], [*labels, read.right]
        weights.append(np.full(len(read.right), READ * each * len(weights) / len(read.right)))
        pictures, source = pictures + len(np.unique(read.owners)), f"{source}, and own captions that readers judged"
    calibration = Calibration.fit(
        np.concatenate(rows),
        np.concatenate(labels),
        weights=np.concatenate(weights),
        method=captioner.settings.method,
        pictures=pictures,
        labels=source,
    )
    return judge, calibration


def flickr8k_pictures(captioner: ReCap, folder: Path, split: str) -> KnownPictures:
    """Return the pictures of a split with their five captions."""
    pairs = read_flickr8k(folder, split)
    images = [row for row in captioner.encode_each([pair.image for pair in pairs]) if not isinstance(row, ImageError)]
    captions = [pair.captions for pair in pairs]
    return KnownPictures.of(captioner.encoder, [pair.id for pair in pairs], captions, np.stack(images))


def held_out_pictures(captioner: ReCap, world: World, kind: str) -> KnownPictures:
    """Return pictures that the eyes were not trained on; those with a name have one sentence."""
    large = captioner.encoder.name == LARGE
    held_out = [row for rows in world.split.dev.values() for row in rows.tolist()]
    rows = [row for row in held_out if world.kind(row) == kind and (world.closer[row] or not large)]
    shown = world.shown(rows[:PICTURES])
    captions = [group[:1] if kind == "named" else group for group in shown.captions]
    # concepts belong to no picture: an empty name would keep them from being retrieved
    owners = [owner or "elsewhere" for owner in shown.owners]
    return KnownPictures.of(captioner.encoder, owners, captions, shown.rows(large=large))


if __name__ == "__main__":
    main()
