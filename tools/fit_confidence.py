"""Fit the confidence of the built-in pack, and write it into the package.

    python tools/fit_confidence.py --flickr8k DIR --coco-vectors DIR [--lm NAME]

``--flickr8k`` holds ``images/``, ``captions.token.txt``, ``dev.txt``, ``test.txt`` and ``expert_annotations.txt``;
``--coco-vectors`` holds ``ids.npy``, ``test_ids.npy`` and ``tinyvit.npy``, as for ``fit_builtin.py``. Fitted are the
judge, on what the experts said, and the calibration, on that and on the captioner's own captions of Flickr8k dev and
of some COCO train2014 pictures (whose captions are not retrieved for them), which the judge labels. The three have
equal weight. Only a few numbers are written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import recap
from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir, fetch
from recap.builtin import LANGUAGE_MODEL, coco_datastore, packaged_file
from recap.calibration import Judge, KnownPictures, Places, closeness_to_references, given_rows, own_rows, unit_of
from recap.captioner import ReCap
from recap.confidence import Calibration, Floats
from recap.datasets import read_flickr8k
from recap.datasets.judgements import Judgements, read_judgements
from recap.encoders import load_encoder
from recap.files import write_json

RIGHT = 3
"""Who gives at least this calls a caption right: 4 is without errors, 3 with minor ones, 2 is related, 1 is not."""

COCO_PICTURES = 2000


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


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True)
    parser.add_argument("--coco-vectors", type=Path, required=True)
    parser.add_argument("--lm", default=LANGUAGE_MODEL, help="whose sentences are judged too; none for no model")
    parser.add_argument("--out", type=Path, default=Path(recap.__file__).parent / "data" / pack.BUILTIN)
    arguments = parser.parse_args()
    captioner = builtin_captioner(arguments.lm)
    judge, calibration = fit(
        captioner,
        experts(captioner, arguments.flickr8k),
        own_sets(captioner, arguments.flickr8k, arguments.coco_vectors),
    )
    path = arguments.out / pack.CONFIDENCE
    write_json(path, {"calibration": calibration.as_dict(), "judge": asdict(judge)})
    print(f"{path}\n{path.read_text(encoding='utf-8')}")


def builtin_captioner(language_model: str = LANGUAGE_MODEL) -> ReCap:
    """Return the captioner of the built-in pack, with a cache of vectors."""
    encoder = load_encoder("builtin", cache=cache_dir() / "vectors.sqlite")
    statistics = PairStatistics.load(packaged_file(pack.STATISTICS))
    alignment = LinearAlignment.load(packaged_file(pack.ALIGNMENT))
    captioner = ReCap(encoder, statistics, coco_datastore(encoder, progress=True), alignment=alignment)
    return captioner.configured(language_model=language_model)


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


def own_sets(captioner: ReCap, flickr8k: Path, coco_vectors: Path) -> list[OwnCaptions]:
    """Return own captions of Flickr8k dev and of COCO train2014."""
    sets = []
    for known in (flickr8k_pictures(captioner, flickr8k, "dev"), coco_pictures(captioner, coco_vectors)):
        rows, closeness = own_rows(captioner, known)
        sets.append(OwnCaptions(rows, closeness / unit_of(captioner, known), len(known.counts)))
    return sets


def fit(captioner: ReCap, rated: Experts, own: Sequence[OwnCaptions]) -> tuple[Judge, Calibration]:
    """Fit the judge on the experts, and the calibration on them and on own captions, each set with equal weight."""
    fingerprint = captioner.encoder.text.fingerprint
    judge = Judge.fit(rated.closeness, rated.right, unit=rated.unit, text_encoder=fingerprint)
    rows = [rated.rows, *(captions.rows for captions in own)]
    labels = [rated.right, *(judge.probabilities(captions.closeness) for captions in own)]
    each = sum(map(len, rows)) / len(rows)
    calibration = Calibration.fit(
        np.concatenate(rows),
        np.concatenate(labels),
        weights=np.concatenate([np.full(len(part), each / len(part)) for part in rows]),
        method=captioner.settings.method,
        pictures=len(np.unique(rated.owners)) + sum(captions.pictures for captions in own),
        labels="Flickr8k-Expert, and own captions as labelled by a judge fitted on it",
    )
    return judge, calibration


def flickr8k_pictures(captioner: ReCap, folder: Path, split: str) -> KnownPictures:
    """Return the pictures of a split with their five captions."""
    pairs = read_flickr8k(folder, split)
    images = captioner.encoder.encode_images([pair.image for pair in pairs], progress=True)
    texts = captioner.encoder.encode_texts([text for pair in pairs for text in pair.captions])
    return KnownPictures(images, texts, tuple(len(pair.captions) for pair in pairs), tuple(pair.id for pair in pairs))


def coco_pictures(captioner: ReCap, folder: Path, count: int = COCO_PICTURES) -> KnownPictures:
    """Return some train2014 pictures that have a vector, none of them of Karpathy's test split."""
    captions: dict[int, list[str]] = {}
    for item in json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))["annotations"]:
        captions.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    ids, tested = np.load(folder / "ids.npy").tolist(), set(np.load(folder / "test_ids.npy").tolist())
    there = [row for row, image in enumerate(ids) if image in captions and image not in tested]
    chosen = [there[place] for place in np.linspace(0, len(there) - 1, count, dtype=int)]
    vectors = np.load(folder / "tinyvit.npy", mmap_mode="r")[chosen].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = captioner.encoder.encode_texts([text for row in chosen for text in captions[ids[row]]])
    counts = tuple(len(captions[ids[row]]) for row in chosen)
    return KnownPictures(vectors, texts, counts, tuple(str(ids[row]) for row in chosen))


if __name__ == "__main__":
    main()
