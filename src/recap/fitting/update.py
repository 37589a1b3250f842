"""More pairs into a fitted captioner, and pairs out of it again, exactly: from statistics, without the other pairs.

The map is a function of sums over the pairs. What is added to or subtracted from them gives the map of a fit from
scratch, up to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from recap.alignment import LinearAlignment, PairStatistics
from recap.datastore import MutableStore
from recap.encoders.images import digest
from recap.encoders.inputs import read
from recap.errors import InputError
from recap.fitting.confidence import calibrate_fitted, drop_calibration
from recap.fitting.fit import encode_pairs
from recap.fitting.pairs import FITTED, FitReport, KnownPairs, Pairs, as_pairs, keys_of
from recap.packs.register import Picture, Pictures, captions_digest, shorten
from recap.types import Pair, Vectors

if TYPE_CHECKING:
    from recap.captioner import ReCap


def update(
    captioner: ReCap, pairs: Pairs, *, source: str = "", progress: bool = False, calibrate: bool = True
) -> FitReport:
    """Add pairs to the map and their captions to the datastore; pairs that are in the pack already are left out."""
    store = _own_store(captioner)
    store.progress = progress
    pictures = captioner.pictures
    keeps = pictures is not None and pictures.vectors is not None
    encoded = encode_pairs(
        pairs,
        captioner.encoder,
        source=source,
        progress=progress,
        keep_vectors=keeps,
        known=_known(pictures, store),
    )
    ids = dict(zip(encoded.datastore.ids.tolist(), store.merge(encoded.datastore).tolist(), strict=True))
    if pictures is not None:
        captioner.pictures = pictures.joined(encoded.pictures, ids)
    _solve(captioner, captioner.statistics + encoded.statistics, store)
    data = dict(captioner.about.data)
    for name, count in encoded.report.counts().items():
        data[name] = data.get(name, 0) + count
    captioner.about = captioner.about.but(data=data, numbers={}, tuned=())
    captioner.report = encoded.report
    if calibrate:
        captioner.calibration = calibrate_fitted(captioner, encoded.sample, progress=progress)
    else:
        drop_calibration(captioner, "the confidence of captions was fitted to the pack as it was before")
    return encoded.report


def forget(captioner: ReCap, ids: Collection[str], pairs: Pairs | None = None, *, source: str | None = None) -> int:
    """Take pictures and their captions out of map, datastore and examples; return how many captions went.

    The vectors to subtract are the pack's own where it keeps them; otherwise ``pairs`` holds the pictures once more,
    and only the very same files are accepted. Nothing changes unless all of them can be withdrawn.
    """
    store, pictures = _own_store(captioner), captioner.pictures
    if pictures is None:
        raise InputError("this pack does not record its pictures, so none can be withdrawn: fit it again without them")
    places = pictures.find(ids, source)
    gone = pictures.at(places)
    given = {} if pairs is None else {pair.id: pair for pair in as_pairs(pairs) if pair.id in set(ids)}
    vectors = pictures.vectors
    images = vectors[places] if vectors is not None else _encoded_again(captioner, gone, given)
    texts = [_caption_vectors(captioner, store, picture, given) for picture in gone]
    statistics = captioner.statistics - _statistics(captioner.statistics, images, texts)
    if statistics.pairs == 0:
        raise InputError("nothing would be left of this pack: delete its folder instead")
    doomed = np.concatenate([store.find(source=p.source, image_ids=p.id) for p in gone])
    if len(doomed) == len(store):
        raise InputError("no caption would be left in the datastore: delete the pack's folder instead")
    removed = {row.text for row in store.rows(doomed)}
    store.remove(doomed)
    captioner.pictures = pictures.without(places)
    _solve(captioner, statistics, store)
    _forget_examples(captioner, removed)
    drop_calibration(captioner, "the confidence of captions was fitted on these pictures, too")
    data = {**captioner.about.data, "pictures": len(captioner.pictures), "captions": len(store)}
    captioner.about = captioner.about.but(data=data, numbers={}, tuned=())
    return len(doomed)


def _own_store(captioner: ReCap) -> MutableStore:
    store = captioner.datastore
    if not isinstance(store, MutableStore):
        raise InputError("a captioner of several datastores cannot be changed: change the packs they come from")
    if store.url:
        raise InputError(
            f"the captions are in {store.url}, centred by the map that would change: bring them into the pack first "
            "(recap datastore move PACK disk), and back afterwards"
        )
    return store


def _known(pictures: Pictures | None, store: MutableStore) -> KnownPairs:
    """Return the pairs of the pack."""
    texts = {row.id: row.text for row in store}
    known = list(pictures or ())
    captions = ([texts[number] for number in picture.caption_ids if number in texts] for picture in known)
    keys = keys_of((p.sha256, own, FITTED) for p, own in zip(known, captions, strict=True))
    return KnownPairs([picture.id for picture in known], keys)


def _encoded_again(captioner: ReCap, gone: Sequence[Picture], given: dict[str, Pair]) -> Vectors:
    missing = sorted(picture.id for picture in gone if picture.id not in given)
    if missing:
        raise InputError(
            f"the pack keeps no image vectors, so the pictures have to be given again; missing: {shorten(missing)}"
        )
    contents = [read(given[picture.id].image) for picture in gone]
    others = [p.id for p, content in zip(gone, contents, strict=True) if digest(content, p.id).hex() != p.sha256]
    if others:
        raise InputError(f"not the pictures that were fitted, but others of the same name: {shorten(others)}")
    return captioner.encoder.encode_images(contents)


def _caption_vectors(captioner: ReCap, store: MutableStore, picture: Picture, given: dict[str, Pair]) -> Vectors:
    """Return the vectors of the captions a picture was fitted with: the datastore's, or those of the same words."""
    there = np.isin(picture.caption_ids, store.ids)
    if there.all():
        return store.raw_vectors(picture.caption_ids)
    captions = given[picture.id].captions if picture.id in given else ()
    unique = tuple(dict.fromkeys(captions))
    if captions_digest(unique) != picture.captions_sha256:
        raise InputError(
            f"{picture.id}: some of its captions have left the datastore since it was fitted; give the picture again "
            "with the captions it had then"
        )
    return captioner.encoder.encode_texts(unique)


def _statistics(like: PairStatistics, images: Vectors, texts: Sequence[Vectors]) -> PairStatistics:
    rows = np.concatenate(texts).astype(np.float64)
    return like.zeros_like().update(images.astype(np.float64), rows, counts=[len(part) for part in texts])


def _solve(captioner: ReCap, statistics: PairStatistics, store: MutableStore) -> None:
    captioner.statistics = statistics
    captioner.alignment = LinearAlignment.from_statistics(statistics, **captioner.alignment.get_params())
    captioner.datastore = store.centred_by(captioner.alignment.text_mean_)
    # a view of the old centre, made when it was first asked for
    captioner.__dict__.pop("_uncentred", None)


def _forget_examples(captioner: ReCap, removed: set[str]) -> None:
    """Drop the worked examples that hold words of a caption that nobody else wrote too."""
    still = {row.text for row in captioner.datastore} if isinstance(captioner.datastore, MutableStore) else set()
    lost = removed - still
    kept = tuple(e for e in captioner.settings.examples if not lost & {e.caption, *e.captions})
    captioner.settings = captioner.settings.but(examples=kept)
