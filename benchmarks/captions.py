"""How good the captions are: CIDEr-D of every way to choose candidates, on real pictures.

    python benchmarks/captions.py flickr8k DIR/flickr8k [--encoder builtin-fast] [--lm smollm2 --lm-images 200]
    python benchmarks/captions.py coco DIR [--encoder builtin-fast] [--out captions.json]
    python benchmarks/captions.py flickr8k-from-coco DIR/flickr8k [--encoder builtin-fast]

``flickr8k``: DIR holds ``images/``, ``captions.token.txt`` and ``train.txt``, ``dev.txt``, ``test.txt``; the map is
fitted on train, whose captions are the datastore. ``coco``: DIR holds ``karpathy_test_references.json`` and the test
pictures as ``images/NUMBER.jpg`` (those that are missing are left out); the captioner is the built-in pack, and recall
both ways among the first thousand pictures is printed too. ``flickr8k-from-coco``: pictures of Flickr8k and the
built-in pack. All from pixels; vectors are kept in the cache.

"most central" is the plainest way without a language model: of the thirty nearest captions the one whose vector lies
closest to the others'. "verbatim" is the share of captions that stand in the datastore word for word, "repeats" that
of captions with a pair of words twice, "lies" that of captions which name a thing that no reference names (CHAIR).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import vector_file
from recap.captioner import ReCap
from recap.datasets import read_flickr8k
from recap.datasets.published import read_coco_captions
from recap.datastore import Datastore
from recap.encoders import load_encoder
from recap.errors import ImageError
from recap.files import write_json
from recap.language import Decoding, LanguageModel, load_language_model
from recap.language.words import words
from recap.metrics import chair, cider_d
from recap.packs import folder as pack
from recap.packs.builtin import CAPTIONS, LANGUAGE_MODEL, builtin_datastore, packaged_file
from recap.types import Draft, ImageLike, Prompt, Vectors

CENTRAL = "most central"
Way: TypeAlias = tuple[str, str, str]
"""Candidates, selection, map."""

OWN = "the pack's"

RETRIEVED = (
    ("retrieved", "cosine", "ols"),
    ("retrieved", "cosine", OWN),
    ("retrieved", CENTRAL, OWN),
    ("retrieved", "consensus", OWN),
)
WRITTEN = (
    ("lm", "cosine", OWN),
    ("lm", "consensus", OWN),
    ("both", "consensus", OWN),
    ("lm", "likely", OWN),
    ("both", "likely", OWN),
)


class Remembering:
    """A language model that writes about each prompt once, so that the rows of the table share its drafts."""

    def __init__(self, model: LanguageModel) -> None:
        self.name, self.completes, self._model = model.name, model.completes, model
        self.fingerprint = model.fingerprint
        self.sights = getattr(model, "sights", ())
        self._known: dict[str, list[Draft]] = {}

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return drafts, from memory where there are some."""
        new = {prompt.text: prompt for prompt in prompts if prompt.text not in self._known}
        self._known.update(zip(new, self._model.write(list(new.values()), decoding), strict=True))
        return [self._known[prompt.text] for prompt in prompts]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["flickr8k", "coco", "flickr8k-from-coco"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--split", default="test", choices=["dev", "test"], help="of Flickr8k; choose settings on dev")
    parser.add_argument("--lm", default="writer", help="the language model")
    parser.add_argument("--lm-images", type=int, help="only on the first so many pictures: for slow models")
    parser.add_argument("--captions", type=int, default=CAPTIONS, help="of the built-in pack; 0 takes all of them")
    parser.add_argument("--default-only", action="store_true", help="only what recap does when nothing is asked for")
    parser.add_argument("--out", type=Path, help="write the captions of the last row, and references beside them")
    parser.add_argument("--show", type=int, default=0, help="print the captions of so many pictures, too")
    arguments = parser.parse_args()
    if arguments.data == "flickr8k":
        captioner, vectors, references = flickr8k(arguments.folder, arguments.encoder, arguments.split)
        title = f"Flickr8k {arguments.split}, {arguments.encoder}"
    elif arguments.data == "coco":
        captioner, vectors, references = coco(arguments.folder, arguments.encoder, arguments.captions)
        title = f"COCO Karpathy test, {captioner.encoder.name}"
        print_recall(captioner, vectors, references)
    else:
        captioner = builtin_captioner(arguments.encoder, arguments.captions)
        vectors, references = flickr8k_split(captioner, arguments.folder, arguments.split)
        title = f"Flickr8k {arguments.split}, captions of COCO, {captioner.encoder.name}"
    model = load_language_model(arguments.lm)
    known: Sequence[Way] = RETRIEVED if model is None else RETRIEVED + WRITTEN
    rows = known[-1:] if arguments.default_only else known
    written = captioner.configured(language_model=model and Remembering(model))
    first = arguments.lm_images
    texts = print_captions(f"{title}, {arguments.lm}", written, vectors[:first], references[:first], rows)
    for text, own in list(zip(texts, references, strict=False))[: arguments.show]:
        print(f"{text}\t({own[0]})")
    if arguments.out:
        write_json(arguments.out, {str(row): text for row, text in enumerate(texts)})
        beside = arguments.out.with_suffix(".references.json")
        write_json(beside, {str(row): list(own) for row, own in enumerate(references[: len(texts)])})


def flickr8k(folder: Path, encoder: str, split: str) -> tuple[ReCap, Vectors, list[list[str]]]:
    """Fit on train; return the captioner, and vectors and captions of the split."""
    loaded = load_encoder(encoder, cache=vector_file())
    pairs, judged = read_flickr8k(folder, "train"), read_flickr8k(folder, split)
    started = time.perf_counter()
    captioner = ReCap.fit(pairs, encoder=loaded, source="flickr8k", progress=True, calibrate=False)
    print(f"encoded and fitted {len(pairs)} pictures in {time.perf_counter() - started:.1f} s")
    vectors = encoded(captioner, [pair.image for pair in judged])
    return captioner, vectors, [list(pair.captions) for pair in judged]


def flickr8k_split(captioner: ReCap, folder: Path, split: str) -> tuple[Vectors, list[list[str]]]:
    """Return vectors and captions of a split of Flickr8k."""
    judged = read_flickr8k(folder, split)
    return encoded(captioner, [pair.image for pair in judged]), [list(pair.captions) for pair in judged]


def builtin_captioner(name: str, captions: int) -> ReCap:
    """Return the captioner of a built-in pack."""
    loaded = load_encoder(name, cache=vector_file())
    return ReCap(
        loaded,
        PairStatistics.load(packaged_file(pack.STATISTICS, name)),
        builtin_datastore(loaded, captions, progress=True),
        alignment=LinearAlignment.load(packaged_file(pack.ALIGNMENT, name)),
        language_model=load_language_model(LANGUAGE_MODEL),
    )


def coco(folder: Path, name: str, captions: int) -> tuple[ReCap, Vectors, list[list[str]]]:
    """Return the captioner of a built-in pack, and vectors and captions of the test pictures."""
    captioner = builtin_captioner(name, captions)
    there = {path.stem: path for path in (folder / "images").iterdir()}
    pairs = [pair for pair in read_coco_captions(folder, "test") if pair.id in there]
    return captioner, encoded(captioner, [there[p.id] for p in pairs]), [list(p.captions) for p in pairs]


def encoded(captioner: ReCap, pictures: Sequence[ImageLike]) -> Vectors:
    """Return what the captioner sees of each picture."""
    rows = [row for row in captioner.encode_each(tqdm(pictures, unit="image")) if not isinstance(row, ImageError)]
    return np.stack(rows)


def print_captions(
    title: str,
    captioner: ReCap,
    vectors: Vectors,
    references: Sequence[Sequence[str]],
    rows: Sequence[Way],
) -> list[str]:
    """Print CIDEr-D for each way to choose, and return the captions of the last."""
    table = Table(title=f"{title}: {len(vectors):,} pictures, {len(captioner.datastore):,} captions")
    for column in (
        "candidates",
        "selection",
        "map",
        "CIDEr-D",
        "verbatim %",
        "repeats %",
        "lies %",
        "CPU ms a picture",
    ):
        table.add_column(column, justify="left" if column in ("candidates", "selection", "map") else "right")
    assert isinstance(captioner.datastore, Datastore)
    stored = {words(item.text) for item in captioner.datastore}
    texts: list[str] = []
    for candidates, selection, named in rows:
        method = captioner.settings.method if named == OWN else named
        started = time.process_time()
        if selection == CENTRAL:
            texts = most_central(captioner.configured(method=method), vectors)
        else:
            choices: dict[str, Any] = {"candidates": candidates, "selection": selection, "method": method}
            configured = captioner.configured(**choices)
            texts = [caption.text for caption in configured.caption_vectors(vectors)]
        spent = 1000 * (time.process_time() - started) / len(vectors)
        result = cider_d(texts, references)
        value = f"{100 * result.value:.1f} ± {100 * result.standard_error:.1f}"
        copied, repeated = [words(text) in stored for text in texts], [repeats(text) for text in texts]
        shares = (np.mean(copied), np.mean(repeated), chair(texts, references).value)
        table.add_row(candidates, selection, method, value, *(f"{100 * s:.1f}" for s in shares), f"{spent:.1f}")
    Console().print(table)
    return texts


def most_central(captioner: ReCap, vectors: Vectors, count: int = 30) -> list[str]:
    """Return for each picture the nearest caption that has the largest mean cosine with the other near ones."""
    texts = []
    for query in captioner.alignment.transform(captioner.vectors_of(vectors)):
        found = captioner.datastore.search(query[None], count)
        rows = captioner.alignment.transform_texts(captioner.datastore.raw_vectors(found.ids[0]))
        evidence = captioner.datastore.evidence(found.ids[0], found.similarities[0])
        texts.append(evidence[int((rows @ rows.T).sum(1).argmax())].text)
    return texts


def repeats(text: str) -> bool:
    """Tell whether a pair of words occurs twice."""
    pairs = list(pairwise(words(text)))
    return len(set(pairs)) < len(pairs)


def print_recall(captioner: ReCap, vectors: Vectors, references: Sequence[Sequence[str]], first: int = 1000) -> None:
    """Print recall both ways among the first pictures and all of their captions."""
    vectors = captioner.vectors_of(vectors)
    owners = np.array([row for row, captions in enumerate(references[:first]) for _ in captions])
    texts = captioner.encoder.encode_texts([" ".join(c.split()) for captions in references[:first] for c in captions])
    table = Table(title=f"Recall in percent among the first {first:,} pictures")
    for column in ("map", "image to text R@1", "R@5", "R@10", "text to image R@1", "R@5", "R@10"):
        table.add_column(column)
    for method in dict.fromkeys((captioner.settings.method, "procrustes", "ols")):
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
