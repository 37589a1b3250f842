"""How good the captions are: CIDEr-D of every way to choose candidates, on real pictures.

    python benchmarks/captions.py flickr8k DIR [--encoder builtin-large] [--lm smollm2 --lm-images 200]
    python benchmarks/captions.py coco DIR

``flickr8k``: DIR holds ``images/``, ``captions.token.txt`` and ``train.txt``, ``dev.txt``, ``test.txt``; the map is
fitted on train, whose captions are the datastore. ``coco``: DIR holds ``coco-vectors/`` (ids.npy, test_ids.npy,
tinyvit.npy) and ``coco/karpathy_test_references.json``; the map is that of the built-in pack, the datastore holds all
captions of train2014, and recall both ways among the test pictures is printed too. Vectors are kept in the cache: a
second run takes seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir
from recap.builtin import coco_datastore, packaged_file
from recap.captioner import ReCap
from recap.datasets import read_flickr8k
from recap.encoders import load_encoder
from recap.language import Decoding, LanguageModel, load_language_model
from recap.metrics import cider_d
from recap.types import Draft, Prompt, Vectors

RETRIEVED = (
    ("retrieved", "cosine", "ols"),
    ("retrieved", "cosine", "procrustes"),
    ("retrieved", "consensus", "procrustes"),
)
WRITTEN = (
    ("lm", "cosine", "ols"),
    ("lm", "consensus", "procrustes"),
    ("both", "cosine", "ols"),
    ("both", "consensus", "procrustes"),
)


class Remembering:
    """A language model that writes about each prompt once, so that the rows of the table share its drafts."""

    def __init__(self, model: LanguageModel) -> None:
        self.name, self.completes, self._model = model.name, model.completes, model
        self._known: dict[str, list[Draft]] = {}

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return drafts, from memory where there are some."""
        for prompt in prompts:
            if prompt.text not in self._known:
                self._known[prompt.text] = self._model.write([prompt], decoding)[0]
        return [self._known[prompt.text] for prompt in prompts]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["flickr8k", "coco"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--split", default="test", choices=["dev", "test"], help="of Flickr8k; choose settings on dev")
    parser.add_argument("--lm", help="also with this language model")
    parser.add_argument("--lm-images", type=int, default=200, help="on the first so many pictures")
    arguments = parser.parse_args()
    if arguments.data == "flickr8k":
        captioner, vectors, references = flickr8k(arguments.folder, arguments.encoder, arguments.split)
        title = f"Flickr8k {arguments.split}, {arguments.encoder}"
    else:
        captioner, vectors, references = coco(arguments.folder)
        title = f"COCO Karpathy test (pictures with a vector), {captioner.encoder.name}"
        print_recall(captioner, vectors, references)
    print_captions(title, captioner, vectors, references)
    if arguments.lm:
        count = arguments.lm_images
        model = load_language_model(arguments.lm)
        assert model is not None
        written = captioner.configured(language_model=Remembering(model))
        print_captions(f"{title}, {arguments.lm}", written, vectors[:count], references[:count], RETRIEVED + WRITTEN)


def flickr8k(folder: Path, encoder: str, split: str) -> tuple[ReCap, Vectors, list[list[str]]]:
    """Fit on train; return the captioner, and vectors and captions of the split."""
    loaded = load_encoder(encoder, cache=cache_dir() / "vectors.sqlite")
    pairs, judged = read_flickr8k(folder, "train"), read_flickr8k(folder, split)
    started = time.perf_counter()
    captioner = ReCap.fit(pairs, encoder=loaded, source="flickr8k", progress=True)
    print(f"encoded and fitted {len(pairs)} pictures in {time.perf_counter() - started:.1f} s")
    vectors = loaded.encode_images([pair.image for pair in judged], progress=True)
    return captioner, vectors, [list(pair.captions) for pair in judged]


def coco(folder: Path) -> tuple[ReCap, Vectors, list[list[str]]]:
    """Return the built-in map over all captions of train2014, and vectors and captions of the test pictures."""
    loaded = load_encoder("builtin", cache=cache_dir() / "vectors.sqlite")
    captioner = ReCap(
        loaded,
        PairStatistics.load(packaged_file(pack.STATISTICS)),
        coco_datastore(loaded, 0, progress=True),
        alignment=LinearAlignment.load(packaged_file(pack.ALIGNMENT)),
    )
    references: dict[int, list[str]] = {}
    for item in json.loads((folder / "coco" / "karpathy_test_references.json").read_text(encoding="utf-8")):
        number = re.search(r"_(\d+)\.", item["image"])
        assert number is not None
        references[int(number[1])] = item["caption"]
    place = {image: row for row, image in enumerate(np.load(folder / "coco-vectors" / "ids.npy").tolist())}
    tested = [image for image in np.load(folder / "coco-vectors" / "test_ids.npy").tolist() if image in references]
    vectors = np.load(folder / "coco-vectors" / "tinyvit.npy")[[place[image] for image in tested]].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return captioner, vectors, [references[image] for image in tested]


def print_captions(
    title: str,
    captioner: ReCap,
    vectors: Vectors,
    references: Sequence[Sequence[str]],
    rows: Sequence[tuple[str, str, str]] = RETRIEVED,
) -> None:
    """Print CIDEr-D for each way to choose."""
    table = Table(title=f"{title}: {len(vectors):,} pictures, {len(captioner.datastore):,} captions")
    for column in ("candidates", "selection", "map", "CIDEr-D", "CPU ms a picture"):
        table.add_column(column, justify="right" if column in ("CIDEr-D", "CPU ms a picture") else "left")
    for candidates, selection, method in rows:
        configured = captioner.configured(candidates=candidates, selection=selection, method=method)
        started = time.process_time()
        texts = [caption.text for caption in configured.caption_vectors(vectors)]
        spent = 1000 * (time.process_time() - started) / len(vectors)
        result = cider_d(texts, references)
        value = f"{100 * result.value:.1f} ± {100 * result.standard_error:.1f}"
        table.add_row(candidates, selection, method, value, f"{spent:.1f}")
    Console().print(table)


def print_recall(captioner: ReCap, vectors: Vectors, references: Sequence[Sequence[str]], first: int = 1000) -> None:
    """Print recall both ways among the first pictures and all of their captions."""
    owners = np.array([row for row, captions in enumerate(references[:first]) for _ in captions])
    texts = captioner.encoder.encode_texts([" ".join(c.split()) for captions in references[:first] for c in captions])
    table = Table(title=f"Recall in percent among the first {first:,} pictures")
    for column in ("map", "image to text R@1", "R@5", "R@10", "text to image R@1", "R@5", "R@10"):
        table.add_column(column)
    for method in ("procrustes", "ols"):
        alignment = captioner.configured(method=method).alignment
        similarity = alignment.transform(vectors[:first]) @ alignment.transform_texts(texts).T
        own = owners[None, :] == np.arange(len(similarity))[:, None]
        best = np.where(own, similarity, -2).max(1, keepdims=True)
        to_text = (similarity > best).sum(1)
        to_image = (similarity > similarity[owners, np.arange(len(owners))][None, :]).sum(0)
        recalls = [f"{100 * np.mean(ranks < k):.1f}" for ranks in (to_text, to_image) for k in (1, 5, 10)]
        table.add_row(method, *recalls)
    Console().print(table)


if __name__ == "__main__":
    main()
