"""What the writer learns from: pictures as points in caption space, what is retrieved for them, and their captions.

Four sources, each a ``.npz`` in the work folder: pictures of COCO train2014 with their real vectors; the others of its
pictures as text alone, the mean of their captions moved by the residual of a real picture; pictures of Flickr8k train
with its own captions retrieved, mapped by maps fitted on the other four fifths of them, for both built-in encoders; and
the same pictures with captions of COCO retrieved. Nothing of COCO val2014 or of other splits of Flickr8k is in them.
``dev-*.npz`` are pictures of Flickr8k dev, and those of COCO train2014 that are held out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recap import pack
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir, fetch
from recap.builtin import choose_captions, packaged_file
from recap.datasets import read_flickr8k
from recap.encoders import Encoder, load_encoder
from recap.language.reading import SPECIAL, VOTERS
from recap.types import Pair, Vectors
from recap.words import words

HELD_OUT = 1500
"""So many pictures of COCO train2014 are never trained on: dev."""
MINIMUM = 8
"""A word must occur so often in the captions to be in the vocabulary."""
FOLDS = 5
SEED = 7

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Store:
    """Captions to retrieve from: vectors in centred caption space, pictures, and places in the texts."""

    vectors: torch.Tensor
    owners: npt.NDArray[np.int64]
    texts: Ids


class Texts:
    """All captions, each once, as numbers of words."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {}

    def add(self, caption: str) -> int:
        """Return the number of a caption, a new one if it was not seen."""
        return self.place.setdefault(caption, len(self.place))

    def save(self, folder: Path) -> None:
        """Write the words by frequency, the size of the vocabulary, and the captions as numbers of words."""
        cut = [words(text) for text in self.place]
        counts = Counter(word for sentence in cut for word in sentence)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        known = [*SPECIAL, *ranked]
        number = {word: place for place, word in enumerate(known)}
        vocabulary = len(SPECIAL) + sum(counts[word] >= MINIMUM for word in ranked)
        flat = np.array([number[word] for sentence in cut for word in sentence], np.int32)
        ends = np.cumsum([len(sentence) for sentence in cut], dtype=np.int64)
        np.savez(folder / "texts.npz", flat=flat, ends=ends)
        content = {"vocabulary": vocabulary, "words": known, "texts": list(self.place)}
        (folder / "words.json").write_text(json.dumps(content), encoding="utf-8")
        print(f"{len(cut):,} captions, {len(ranked):,} words, {vocabulary:,} of them in the vocabulary")


def prepare(data: Path, folder: Path) -> None:
    """Write everything that training reads."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder("builtin", cache=cache_dir() / "vectors.sqlite")
    texts = Texts()
    coco = _coco(data, folder, encoder, texts)
    for name in ("builtin", "builtin-large"):
        _flickr8k(data, folder, name, texts, coco if name == "builtin" else None)
    texts.save(folder)


def _coco(data: Path, folder: Path, encoder: Encoder, texts: Texts) -> Store:
    """Write the sources of COCO and return its captions as a store."""
    content = json.loads(fetch("coco-captions-train").read_text(encoding="utf-8"))
    records = [(str(item["image_id"]), item["caption"]) for item in content["annotations"]]
    captions: dict[int, list[str]] = {}
    for image, caption in records:
        captions.setdefault(int(image), []).append(" ".join(caption.split()))
    alignment = LinearAlignment.load(packaged_file(pack.ALIGNMENT))
    chosen = choose_captions(records, 0)
    store = _store(encoder, alignment, [text for _, text in chosen], [int(image) for image, _ in chosen], texts)

    ids = np.load(data / "coco-vectors" / "ids.npy").astype(np.int64)
    rows = [row for row, image in enumerate(ids) if int(image) in captions]
    vectors = np.load(data / "coco-vectors" / "tinyvit.npy")[rows].astype(np.float32)
    order = np.random.default_rng(SEED).permutation(len(rows))
    images, vectors = ids[rows][order], vectors[order]
    queries = alignment.transform(vectors)
    least_squares = LinearAlignment.from_statistics(PairStatistics.load(packaged_file(pack.STATISTICS)), "ols")
    others = least_squares.transform(vectors)
    own = [captions[int(image)] for image in images]
    dev, train = slice(0, HELD_OUT), slice(HELD_OUT, None)
    _save(folder / "dev-coco.npz", texts, queries[dev], others[dev], own[dev], images[dev], store)
    _save(folder / "coco.npz", texts, queries[train], others[train], own[train], images[train], store)

    unseen = np.array(sorted(set(captions) - set(images.tolist())))
    queries = _imagined(encoder, alignment, queries[train], own[train], [captions[int(image)] for image in unseen])
    _save(folder / "text.npz", texts, queries, queries, [captions[int(image)] for image in unseen], unseen, store)
    return store


def _imagined(
    encoder: Encoder,
    alignment: LinearAlignment,
    seen: Vectors,
    seen_captions: Sequence[Sequence[str]],
    captions: Sequence[Sequence[str]],
) -> Vectors:
    """Return points for pictures without vector: the mean of their captions plus the residual of some real picture."""
    draw = np.random.default_rng(SEED).choice(len(seen), len(captions))
    residuals = seen[draw] - _means(encoder, alignment, [seen_captions[row] for row in draw])
    moved = _means(encoder, alignment, captions) + residuals
    points: Vectors = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return points


def _means(encoder: Encoder, alignment: LinearAlignment, captions: Sequence[Sequence[str]]) -> Vectors:
    """Return the direction in which the captions of each picture lie together."""
    flat = alignment.transform_texts(encoder.encode_texts([text for group in captions for text in group]))
    starts = np.cumsum([0, *(len(group) for group in captions[:-1])])
    sums = np.add.reduceat(flat, starts, axis=0)
    means: Vectors = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return means


def _flickr8k(data: Path, folder: Path, name: str, texts: Texts, coco: Store | None) -> None:
    """Write the sources of Flickr8k for one encoder, and with captions of COCO retrieved where there are some."""
    encoder = load_encoder(name, cache=cache_dir() / "vectors.sqlite")
    train, dev = (read_flickr8k(data / "flickr8k", split) for split in ("train", "dev"))
    vectors = encoder.encode_images([pair.image for pair in train], progress=True)
    dev_vectors = encoder.encode_images([pair.image for pair in dev], progress=True)
    own, dev_own = ([list(pair.captions) for pair in pairs] for pairs in (train, dev))
    whole = _fit(encoder, vectors, train)
    flat = [text for group in own for text in group]
    owners = [row for row, group in enumerate(own) for _ in group]
    store = _store(encoder, whole, flat, owners, texts)
    queries, others = np.empty((2, len(train), encoder.text.dimension), np.float32)
    for fold in range(FOLDS):
        kept = [row for row in range(len(train)) if row % FOLDS != fold]
        left = [row for row in range(len(train)) if row % FOLDS == fold]
        queries[left] = _fit(encoder, vectors[kept], [train[row] for row in kept]).transform(vectors[left])
        others[left] = _fit(encoder, vectors[kept], [train[row] for row in kept], "ols").transform(vectors[left])
    images = np.arange(len(train))
    nobody = np.full(len(dev), -1)
    _save(folder / f"flickr8k-{name}.npz", texts, queries, others, own, images, store)
    dev_queries = whole.transform(dev_vectors)
    _save(folder / f"dev-flickr8k-{name}.npz", texts, dev_queries, dev_queries, dev_own, nobody, store)
    if coco is not None:
        alignment = LinearAlignment.load(packaged_file(pack.ALIGNMENT))
        queries = alignment.transform(vectors)
        _save(folder / "flickr8k-from-coco.npz", texts, queries, queries, own, np.full(len(train), -1), coco)
        queries = alignment.transform(dev_vectors)
        _save(folder / "dev-flickr8k-from-coco.npz", texts, queries, queries, dev_own, nobody, coco)


def _fit(encoder: Encoder, vectors: Vectors, pairs: Sequence[Pair], method: str = "procrustes") -> LinearAlignment:
    flat = encoder.encode_texts([text for pair in pairs for text in pair.captions])
    groups = [row for row, pair in enumerate(pairs) for _ in pair.captions]
    return LinearAlignment(method).fit(vectors, flat, groups=groups)


def _store(
    encoder: Encoder, alignment: LinearAlignment, captions: Sequence[str], owners: Sequence[int], texts: Texts
) -> Store:
    vectors = alignment.transform_texts(encoder.encode_texts(captions))
    numbers = np.array([texts.add(text) for text in captions], np.int32)
    return Store(torch.from_numpy(vectors), np.array(owners, np.int64), numbers)


def _save(
    path: Path,
    texts: Texts,
    queries: Vectors,
    others: Vectors,
    captions: Sequence[Sequence[str]],
    images: npt.NDArray[np.int64],
    store: Store,
) -> None:
    """Write points (of two maps), what is retrieved for the first from other pictures, and own captions (at most 5)."""
    own = np.full((len(captions), 5), -1, np.int32)
    for row, group in enumerate(captions):
        for place, text in enumerate(group[:5]):
            own[row, place] = texts.add(text)
    found = _search(store, queries, images)
    np.savez(path, queries=queries.astype(np.float16), others=others.astype(np.float16), found=found, own=own)
    print(f"{path.name}: {len(queries):,} pictures", flush=True)


def _search(store: Store, queries: Vectors, images: npt.NDArray[np.int64], block: int = 512) -> Ids:
    """Return for each point the nearest captions of other pictures."""
    found = np.empty((len(queries), VOTERS), np.int32)
    spare = 40
    # made once: fresh pages for each block would cost more than the products
    table = torch.empty(block, len(store.vectors))
    for start in range(0, len(queries), block):
        run = slice(start, start + block)
        rows = torch.from_numpy(queries[run])
        similarity = torch.mm(rows, store.vectors.T, out=table[: len(rows)])
        nearest = similarity.topk(VOTERS + spare).indices.numpy()
        foreign = store.owners[nearest] != images[run, None]
        for place, (ids, kept) in enumerate(zip(nearest, foreign, strict=True), start):
            found[place] = store.texts[ids[kept][:VOTERS]]
    return found
