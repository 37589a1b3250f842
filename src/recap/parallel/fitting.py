"""``recap fit`` from shards of vectors: the same as ``recap.fitting.fit``, with the work in parts.

1. Hashes of pictures and captions are read from all shards, and it is decided which come for the first time.
2. Statistics of some shards at a time are added up in a tree; whoever does a part has one block of rows in memory.
3. Captions and their vectors are taken into the datastore here, in the order of the input.

A pack from pairs or their vectors, in parts: what ``recap fit`` does where ``ReCap.fit`` would not do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from recap.alignment import PairStatistics
from recap.assets import cache_dir
from recap.captioner import ReCap
from recap.datasets.records import MissingCaptionError
from recap.datastore import MutableStore
from recap.datastore.base import unit_rows
from recap.encoders import Encoder, load_encoder
from recap.errors import ImageError, InputError
from recap.fitting.fit import BLOCK, EncodedPairs, Pairs, PairStore, finish_fit, kept_apart
from recap.fitting.pairs import Incoming, Intake
from recap.language import load_language_model
from recap.packs.captions import MakeStore
from recap.packs.card import About
from recap.parallel import storage
from recap.parallel.embedding import embed
from recap.parallel.parts import find_parts
from recap.parallel.repetitions import ABSENT, APART, FITTED, WITHHELD, Keys, Mask, ReadKeys, Selected, select
from recap.parallel.runners import LocalRunner, Runner, runner
from recap.parallel.shards import Block, Space, VectorFolder, is_vectors, read_shard
from recap.settings import Settings
from recap.types import Pair, Vectors

if TYPE_CHECKING:
    from recap.fitting.tuning import Trial


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
) -> EncodedPairs:
    """Return what ``recap.fitting.fit.encode_pairs`` would of the pictures themselves; its arguments mean the same."""
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


def is_for_parts(pairs: str, images: str | None = None) -> bool:
    """Tell whether pairs or their pictures lie in a bucket, or are there as vectors."""
    return storage.is_url(pairs) or storage.is_url(images or "") or is_vectors(pairs)


def vectors_beside(target: Path) -> Path:
    """Return where the vectors of a pack's pairs are until it is written."""
    return target.with_name(f".{target.name}.vectors")


def fit_in_parts(
    pairs: str,
    encoder: str,
    address: str | None,
    target: Path,
    *,
    images: str | None = None,
    splits: Collection[str] | None = None,
    device: str = "cpu",
    source: str = "",
    validation: float | Pairs | None = None,
    keep_vectors: bool = False,
    progress: bool = False,
    language_model: str = "none",
    tune: bool | Callable[[Trial], None] = False,
    about: About | None = None,
    make_store: MakeStore = lambda text: None,
    calibrate: bool = True,
    **settings: Any,
) -> ReCap:
    """Fit a captioner to pairs; their vectors are made first, unless they are what is given.

    Args:
        pairs: what ``find_parts`` cuts into parts, or a folder of vectors.
        encoder: its name; vectors know by which they were made.
        address: of a Ray cluster; None for this machine.
        target: the pack; vectors are kept beside it until it is there, so that a killed fit goes on.
        images: where the pictures of a file lie.
        splits: of a Karpathy file.
        device: where the encoders run.
        source: a name for these captions in the datastore.
        validation: a share of the pictures, or other pairs.
        keep_vectors: whether the pack keeps image vectors.
        progress: whether to show bars.
        language_model: its name.
        tune: as in ``ReCap.fit``, and all that follows.
        about: author, licence and description for the card.
        make_store: returns an empty store to take the captions; None for one in memory.
        calibrate: whether to fit the confidence of captions, on some of the vectors.
        settings: any of ``recap.settings.Settings``.
    """
    # what is wrong with these is said before the work
    chosen, model = Settings().but(**settings), load_language_model(language_model, device=device)
    who, given = runner(address), is_vectors(pairs)
    folder = VectorFolder(storage.absolute(pairs) if given else str(vectors_beside(target.absolute())))
    name = folder.space.encoder if given and encoder == "builtin" else encoder
    loaded = load_encoder(name, device=device, cache=cache_dir() / "vectors.sqlite")
    if not given:
        parts = find_parts(pairs, images=images, splits=splits, captions_required=True)
        embed(parts, folder.place, loaded, runner=who, device=device, progress=progress)
    encoded = fit_vectors(
        folder,
        loaded,
        runner=who,
        source=source,
        validation=validation,
        keep_vectors=keep_vectors,
        progress=progress,
        datastore=make_store(loaded.text),
    )
    captioner = ReCap.from_encoded(encoded, loaded, language_model=model, settings=chosen, about=about, device=device)
    return finish_fit(captioner, encoded, measure=validation is not None, tune=tune, calibrate=calibrate)
