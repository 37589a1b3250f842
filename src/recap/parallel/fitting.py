"""``recap fit`` from shards of vectors: the same as ``recap.fitting.fit``, with the work in parts.

1. Hashes of pictures and captions are read from all shards, and it is decided which come for the first time.
2. Statistics of some shards at a time are added up in a tree; whoever does a part has one block of rows in memory.
3. Captions and their vectors are taken into the datastore here, in the order of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from recap.alignment import PairStatistics
from recap.datasets.records import MissingCaptionError
from recap.datastore import MutableStore
from recap.datastore.base import unit_rows
from recap.encoders import Encoder
from recap.errors import ImageError, InputError
from recap.fitting.fit import BLOCK, EncodedPairs, Pairs, PairStore, kept_apart
from recap.fitting.pairs import Incoming, Intake
from recap.parallel.confidence import Fitted, SomePictures
from recap.parallel.repetitions import ABSENT, APART, FITTED, WITHHELD, Keys, Mask, ReadKeys, Selected, select
from recap.parallel.runners import LocalRunner, Runner
from recap.parallel.shards import Block, Space, VectorFolder, read_shard
from recap.types import Pair, Vectors

LEAVES = 64
"""Statistics are taken of so many groups of shards, and more where there are more machines to do it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Some shards, with the captions of each that are fitted: bits in the order of the shard."""

    space: Space
    shards: tuple[tuple[str, npt.NDArray[np.uint8]], ...]


def fit_vectors(
    folder: VectorFolder,
    encoder: Encoder,
    *,
    runner: Runner | None = None,
    source: str = "",
    validation: float | Pairs | None = None,
    keep_vectors: bool = False,
    progress: bool = False,
    datastore: MutableStore | None = None,
    some: SomePictures | None = None,
) -> EncodedPairs:
    """Return what ``recap.fitting.fit.encode_pairs`` would of the pictures themselves; its arguments mean the same.

    ``some`` is shown every picture that is fitted.
    """
    Space.of(encoder).check(folder.space, folder.place)
    chosen = runner or LocalRunner()
    taken = Intake()
    share, apart = kept_apart(validation, encoder, taken, progress=progress)
    shards = selected(folder, chosen, share, frozenset(item.sha256 for item, _ in apart), progress=progress)
    store = PairStore(encoder, source, keep_vectors, datastore)
    if any(part.fitted().any() for part in shards):
        store.statistics = statistics(folder, shards, chosen)
    bar = tqdm(_rows(folder, shards, taken), desc="captions", unit="image", disable=None if progress else True)
    rows = iter(bar)
    while block := list(islice(rows, BLOCK)):
        apart += [(row.incoming, row.vector) for row in block if row.role == APART]
        fitted = [row for row in block if row.role == FITTED]
        if fitted:
            vectors = np.concatenate([row.caption_vectors for row in fitted])
            store.keep([(row.incoming, row.vector) for row in fitted], vectors)
        if some is not None:
            some.take(row.fitted for row in fitted)
    return store.finished(apart, taken, new=True)


def selected(
    folder: VectorFolder,
    runner: Runner,
    share: float = 0.0,
    withheld: frozenset[str] = frozenset(),
    *,
    progress: bool = False,
) -> list[Selected]:
    """Return for each shard what of it is used."""
    keys: list[Keys | None] = [None] * len(folder.shards)
    found = runner.map(ReadKeys(share, withheld), folder.shards)
    for number, read in tqdm(found, total=len(keys), desc="shards", disable=None if progress else True):
        keys[number] = read
    return list(select([read for read in keys if read is not None]))


def statistics(folder: VectorFolder, shards: Sequence[Selected], runner: Runner) -> PairStatistics:
    """Return the statistics of all pairs that are fitted, added up in a tree."""
    todo = [
        (place, np.packbits(part.fitted()))
        for place, part in zip(folder.shards, shards, strict=True)
        if part.fitted().any()
    ]
    step = -(-len(todo) // max(LEAVES, 4 * runner.devices()))
    leaves = [Leaf(folder.space, tuple(todo[start : start + step])) for start in range(0, len(todo), step)]
    return runner.total(leaf_statistics, leaves, add_statistics)


def leaf_statistics(leaf: Leaf) -> PairStatistics:
    """Return the statistics of the fitted pairs of some shards; one block of rows is in memory at a time."""
    total = _no_statistics(leaf.space)
    for place, bits in leaf.shards:
        start, used = 0, np.unpackbits(bits).astype(bool)
        for block in read_shard(place, ("image_vector", "caption_vectors")):
            counts = block.counts
            stop = start + int(counts.sum())
            fitted, start = used[start:stop], stop
            if fitted.any():
                _update(total, block, counts, fitted)
    return total


def add_statistics(*parts: PairStatistics) -> PairStatistics:
    """Return the sum of statistics, which stay as they are: those of other processes cannot be changed."""
    first = parts[0]
    total = PairStatistics.zeros(
        first.d_image, first.d_text, image_encoder=first.image_encoder, text_encoder=first.text_encoder
    )
    for part in parts:
        total.merge(part)
    return total


def _no_statistics(space: Space) -> PairStatistics:
    return PairStatistics.zeros(
        space.image_dimension,
        space.text_dimension,
        image_encoder=space.image_fingerprint,
        text_encoder=space.text_fingerprint,
    )


def _update(total: PairStatistics, block: Block, counts: npt.NDArray[np.int64], fitted: Mask) -> None:
    owners = np.repeat(np.arange(len(counts)), counts)
    left = np.bincount(owners[fitted], minlength=len(counts))
    rows = np.flatnonzero(left)
    # in float64 and from rows as the datastore keeps them, so that the same can be subtracted again
    texts = unit_rows(block.caption_vectors[fitted], total.d_text, "caption vectors").astype(np.float64)
    total.update(block.image_vectors[rows].astype(np.float64), texts, counts=left[rows])


@dataclass(frozen=True, slots=True)
class _Used:
    """A picture with what is new about it."""

    incoming: Incoming
    vector: Vectors
    caption_vectors: Vectors
    role: int

    @property
    def fitted(self) -> Fitted:
        return Fitted(self.incoming.pair.id, self.incoming.sha256, self.vector, self.caption_vectors)


def _rows(folder: VectorFolder, shards: Sequence[Selected], taken: Intake) -> Iterator[_Used]:
    """Yield what is used of all shards in their order; what is not is noted in ``taken``."""
    firsts = _Firsts(shards)
    for place, part in zip(folder.shards, shards, strict=True):
        row = caption = 0
        for block in read_shard(place):
            some = part.rows(row, row + len(block), caption)
            yield from _used(block, some, firsts, taken)
            row, caption = row + len(block), caption + len(some.new)


def _used(block: Block, part: Selected, firsts: _Firsts, taken: Intake) -> Iterator[_Used]:
    vectors, texts = block.image_vectors, block.caption_vectors
    columns = (block.texts(name) for name in ("id", "image", "sha256", "error"))
    end = 0
    for row, (name, image, sha, error, captions) in enumerate(zip(*columns, block.captions, strict=True)):
        start, end = end, end + len(captions)
        new = part.new[start:end]
        first = firsts.name(name, int(part.first[row]))
        if first != name:
            taken.repeated_pictures.append((name, first))
        if sha:
            taken.repeated_pairs += [(name, caption) for caption in compress(captions, ~new)]
        role = int(part.roles[row])
        if role == ABSENT:
            taken.broken.append(_problem(name, image, sha, error))
        elif role != WITHHELD and new.any():
            incoming = Incoming(Pair(image, tuple(compress(captions, new)), name), sha, b"")
            yield _Used(incoming, vectors[row].copy(), texts[start:end][new], role)


class _Firsts:
    """Names the first of pictures with the same content, as rows come by one after the other."""

    def __init__(self, shards: Sequence[Selected]) -> None:
        first = np.concatenate([part.first for part in shards])
        self._names = dict.fromkeys(first[first != np.arange(len(first))].tolist(), "")
        self._row = 0

    def name(self, name: str, first: int) -> str:
        """Return the first name of the content of the next row, which has this name."""
        row, self._row = self._row, self._row + 1
        if first != row:
            return self._names[first]
        if row in self._names:
            self._names[row] = name
        return name


def _problem(name: str, image: str, sha: str, error: str) -> InputError:
    if error:
        return ImageError(error)
    if not sha:
        return InputError(f"{name}: a caption without a picture")
    return MissingCaptionError(f"{image or name}: no caption")
