"""What the writer learns from: pictures as the eyes see them, what is retrieved for them, and their captions.

Sources, each a ``.npz`` in the work folder with a ``.details.npy`` beside it: pictures of COCO outside Karpathy's test;
Conceptual Captions; photographs of IAPR TC-12; pictures that we described ourselves; pictures with a name; pictures of
Flickr8k train with its own captions retrieved, mapped by maps fitted on the other four fifths of them; and the same
pictures with captions of the built-in pack retrieved. ``dev-*.npz`` are held-out pictures of COCO, of Conceptual
Captions and of those that we described, and those of Flickr8k dev.
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
from eyes import data as eyes_data
from eyes.large import Seen
from eyes.large import load as load_large

from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import vector_file
from recap.datasets import read_flickr8k
from recap.encoders import Encoder, load_encoder
from recap.encoders.builtin import PLACES
from recap.errors import ImageError
from recap.language.prompt import SPECIAL, VOTERS
from recap.language.words import words
from recap.language.writer import FOLDER as WRITER
from recap.packs import folder as pack
from recap.packs.builtin import DESCRIBED, coco_captions, concept_sentences, described_captions, packaged_file
from recap.types import Pair, Vectors, unit_rows

MINIMUM = 8
"""A word must occur so often in the captions to be in the vocabulary."""
FOLDS = 5
FITTED = "whitened"
"""The map of Flickr8k's own pairs, as ``recap fit`` has it."""

Ids = npt.NDArray[np.int32]
Names = Sequence[str] | npt.NDArray[np.str_]


@dataclass(frozen=True)
class Store:
    """Captions to retrieve from: vectors in centred caption space, pictures, and places in the texts."""

    vectors: torch.Tensor
    owners: npt.NDArray[np.str_]
    texts: Ids


@dataclass(frozen=True)
class Shown:
    """Some pictures: their vectors and details, their captions, and whose captions must not be retrieved for them."""

    vectors: Vectors
    details: npt.NDArray[np.float16]
    captions: Sequence[Sequence[str]]
    owners: Names
    closer: npt.NDArray[np.bool_]
    """Which of them DINOv2 has looked at, too;"""
    large: Vectors
    """their vectors then,"""
    patches: npt.NDArray[np.float16]
    """and what it says of each place. Anything where it has not."""

    def rows(self, *, large: bool) -> Vectors:
        """Return what a captioner with the eyes, or the larger ones, takes."""
        if not large:
            return np.concatenate([self.vectors, self.details], axis=1, dtype=np.float32)
        halves = [part.reshape(len(part), PLACES, -1) for part in (self.details, self.patches)]
        details = np.concatenate(halves, axis=2).reshape(len(self.large), -1)
        return np.concatenate([self.large, details], axis=1, dtype=np.float32)


@dataclass(frozen=True)
class Maps:
    """Two maps of the vectors of the eyes, and one of those of the larger eyes."""

    own: LinearAlignment
    other: LinearAlignment
    large: LinearAlignment


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
        # the words of the concepts are known whatever their number: they are there to be said; and so are those of the
        # writer in the package, with which a training may begin
        always = {word for sentence in concept_sentences() for word in words(sentence)}
        always |= set(json.loads((WRITER / "config.json").read_text(encoding="utf-8"))["vocabulary"]) - set(SPECIAL)
        counts.update(dict.fromkeys(always - counts.keys(), 0))
        ranked = sorted(counts, key=lambda word: (word not in always and counts[word] < MINIMUM, -counts[word], word))
        known = [*SPECIAL, *ranked]
        number = {word: place for place, word in enumerate(known)}
        vocabulary = len(SPECIAL) + sum(word in always or counts[word] >= MINIMUM for word in ranked)
        flat = np.array([number[word] for sentence in cut for word in sentence], np.int32)
        ends = np.cumsum([len(sentence) for sentence in cut], dtype=np.int64)
        np.savez(folder / "texts.npz", flat=flat, ends=ends)
        content = {"vocabulary": vocabulary, "words": known, "texts": list(self.place)}
        (folder / "words.json").write_text(json.dumps(content), encoding="utf-8")
        print(f"{len(cut):,} captions, {len(ranked):,} words, {vocabulary:,} of them in the vocabulary")


def prepare(data: Path, eyes: Path, tested: Path, folder: Path) -> None:
    """Write everything that training reads; ``eyes`` is the work folder of ``train_eyes.py``."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder, large = (load_encoder(name, cache=vector_file()) for name in ("eyes", "eyes-large"))
    other = LinearAlignment.from_statistics(
        PairStatistics.load(packaged_file(pack.STATISTICS, pack.FAST)), "procrustes"
    )
    own, closer = (LinearAlignment.load(packaged_file(pack.ALIGNMENT, name)) for name in (pack.FAST, pack.BUILTIN))
    maps = Maps(own, other, closer)
    texts = Texts()
    world = World(eyes, {int(number) for number in np.load(tested)})
    store = world.store(encoder, own, texts)
    for name, rows in world.sources().items():
        _save(folder / f"{name}.npz", texts, world.shown(rows), maps, store)
    _flickr8k(data, folder, (encoder, large), texts, maps, store)
    texts.save(folder)


class World:
    """The pictures and sentences of the eyes' work folder."""

    def __init__(self, folder: Path, tested: set[int]) -> None:
        self.records = eyes_data.open_records(folder)
        self.split = eyes_data.split(self.records, eyes_data.Pictures(folder / "maps").there(), tested)
        self.vectors, self.large, self.details = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("vectors", "large_vectors", "details")
        )
        self.seen, self.model = Seen(folder), load_large(folder)
        self.closer = np.isin(np.arange(len(self.records)), self.seen.there())
        self.numbers = eyes_data.Texts(folder).number
        self.sentences = np.load(folder / "text_vectors.npy", mmap_mode="r")
        self.done = np.load(folder / "text_vectors_flag.npy")

    def sources(self) -> dict[str, list[int]]:
        """Return the pictures of each source by their numbers."""
        found: dict[str, list[int]] = {}
        for row in self.split.train.tolist():
            found.setdefault(self.kind(row), []).append(row)
        found["dev-coco"] = self.split.dev["coco"].tolist()
        for kind in ("conceptual", DESCRIBED):
            found[f"dev-{kind}"] = [row for row in self.split.dev["world"].tolist() if self.kind(row) == kind]
        return found

    def kind(self, row: int) -> str:
        """Return the source a picture belongs to."""
        source = self.records[row].source
        return source if source in eyes_data.CAPTIONED else "named"

    def shown(self, rows: list[int]) -> Shown:
        """Return pictures by their numbers."""
        records = [self.records[row] for row in rows]
        owners = [record.id if record.source in ("coco", DESCRIBED) else "" for record in records]
        order = np.argsort(rows)
        details = np.empty((len(rows), self.details.shape[1]), np.float16)
        details[order] = self.details[np.asarray(rows)[order]]
        captions, closer = [record.captions for record in records], self.closer[rows]
        vectors, better = unit_rows(self.vectors[rows]), unit_rows(self.large[rows])
        return Shown(vectors, details, captions, owners, closer, better, self._patches(np.asarray(rows), closer))

    @torch.no_grad()
    def _patches(self, rows: eyes_data.Rows, closer: npt.NDArray[np.bool_]) -> npt.NDArray[np.float16]:
        """Return what DINOv2 says of each place, zeros where it has not looked."""
        patches = np.zeros((len(rows), self.details.shape[1]), np.float16)
        places = np.flatnonzero(closer)
        for start in range(0, len(places), 512):
            block = places[start : start + 512]
            seen = self.model.details(*self.seen.rows(rows[block])).numpy()
            patches[block] = _halves(seen)[1]
        return patches

    def store(self, encoder: Encoder, alignment: LinearAlignment, texts: Texts) -> Store:
        """Return the captions of the built-in pack that have a vector, and the concepts."""
        ours = [(picture, text) for picture, texts_ in described_captions().items() for text in texts_]
        known = [(image, text) for image, text in [*coco_captions(), *ours] if text in self.numbers]
        known = [(image, text) for image, text in known if self.done[self.numbers[text]]]
        concepts = concept_sentences()
        rows = unit_rows(self.sentences[[self.numbers[text] for _, text in known]])
        rows = np.concatenate([rows, encoder.encode_texts(concepts)])
        said = [*(text for _, text in known), *concepts]
        owners = np.array([*(image for image, _ in known), *(["concept"] * len(concepts))])
        numbers = np.array([texts.add(text) for text in said], np.int32)
        print(f"{len(said):,} captions to retrieve from", flush=True)
        return Store(torch.from_numpy(alignment.transform_texts(rows)), owners, numbers)


def _flickr8k(
    data: Path, folder: Path, encoders: tuple[Encoder, Encoder], texts: Texts, maps: Maps, builtin: Store
) -> None:
    """Write the sources of Flickr8k."""
    encoder = encoders[0]
    train, dev = (read_flickr8k(data / "flickr8k", split) for split in ("train", "dev"))
    shown, shown_dev = (_seen(encoders, pairs) for pairs in (train, dev))
    flat = [text for pair in train for text in pair.captions]
    owners = np.array([pair.id for pair in train for _ in pair.captions])
    numbers = np.array([texts.add(text) for text in flat], np.int32)
    said = encoder.encode_texts(flat)
    ways = ((shown.vectors, FITTED), (shown.vectors, "procrustes"), (shown.large, FITTED))
    points = np.empty((len(ways), len(train), encoder.text.dimension), np.float32)
    for fold in range(FOLDS):
        kept = [row for row in range(len(train)) if row % FOLDS != fold]
        left = [row for row in range(len(train)) if row % FOLDS == fold]
        for way, (vectors, method) in enumerate(ways):
            fitted = _fit(encoder, vectors[kept], [train[row] for row in kept], method)
            points[way, left] = fitted.transform(vectors[left])
    whole = Maps(*(_fit(encoder, vectors, train, method) for vectors, method in ways))
    stores = [
        Store(torch.from_numpy(fitted.transform_texts(said)), owners, numbers) for fitted in (whole.own, whole.large)
    ]
    _write(folder / "flickr8k.npz", texts, shown, *points, *stores)
    _save(folder / "dev-flickr8k.npz", texts, shown_dev, whole, *stores)
    _save(folder / "flickr8k-from-coco.npz", texts, shown, maps, builtin)
    _save(folder / "dev-flickr8k-from-coco.npz", texts, shown_dev, maps, builtin)


def _seen(encoders: tuple[Encoder, Encoder], pairs: Sequence[Pair]) -> Shown:
    """Return pictures as the eyes and the larger eyes see them."""
    small, large = (_rows(encoder, pairs) for encoder in encoders)
    width = encoders[0].image.dimension
    details, patches = _halves(large[:, width:])
    captions, closer = [pair.captions for pair in pairs], np.ones(len(pairs), bool)
    return Shown(small[:, :width], details, captions, [pair.id for pair in pairs], closer, large[:, :width], patches)


def _rows(encoder: Encoder, pairs: Sequence[Pair]) -> Vectors:
    rows = []
    for row in encoder.encode_each((pair.image for pair in pairs), details=True):
        if isinstance(row, ImageError):
            raise row
        rows.append(row)
    return np.stack(rows)


def _halves(details: Vectors) -> list[npt.NDArray[np.float16]]:
    """Return what the eyes say of each place, and what DINOv2 does."""
    halves = np.split(details.astype(np.float16).reshape(len(details), PLACES, -1), 2, axis=2)
    return [half.reshape(len(details), -1) for half in halves]


def _fit(encoder: Encoder, vectors: Vectors, pairs: Sequence[Pair], method: str) -> LinearAlignment:
    flat = encoder.encode_texts([text for pair in pairs for text in pair.captions])
    groups = [row for row, pair in enumerate(pairs) for _ in pair.captions]
    return LinearAlignment(method).fit(vectors, flat, groups=groups)


def _save(path: Path, texts: Texts, shown: Shown, maps: Maps, store: Store, large_store: Store | None = None) -> None:
    """Write pictures with the points the maps give them."""
    points = (maps.own.transform(shown.vectors), maps.other.transform(shown.vectors), maps.large.transform(shown.large))
    _write(path, texts, shown, *points, store, large_store or store)


def _write(
    path: Path,
    texts: Texts,
    shown: Shown,
    queries: Vectors,
    others: Vectors,
    large: Vectors,
    store: Store,
    large_store: Store,
) -> None:
    """Write points, what is retrieved from other pictures, own captions, and details."""
    own = np.full((len(shown.captions), 5), -1, np.int32)
    for row, group in enumerate(shown.captions):
        for place, text in enumerate(group[:5]):
            own[row, place] = texts.add(text)
    np.savez(
        path,
        queries=queries.astype(np.float16),
        others=others.astype(np.float16),
        found=_search(store, queries, shown.owners),
        own=own,
        closer=shown.closer,
        large_queries=large.astype(np.float16),
        large_found=_search(large_store, large, shown.owners),
    )
    np.save(path.with_suffix(".details.npy"), shown.details)
    np.save(path.with_suffix(".patches.npy"), shown.patches)
    print(f"{path.name}: {len(queries):,} pictures", flush=True)


def _search(store: Store, queries: Vectors, owners: Names, block: int = 512) -> Ids:
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
        foreign = store.owners[nearest] != np.asarray(owners[run])[:, None]
        for place, (ids, kept) in enumerate(zip(nearest, foreign, strict=True), start):
            found[place] = store.texts[ids[kept][:VOTERS]]
    return found
