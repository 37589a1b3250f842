"""The packs that come with the package: the maps are inside, the captions are fetched and embedded on first use.

The maps were fitted by ``tools/fit_builtin.py``. The captions to retrieve from are those of COCO train2014 (CC BY 4.0),
in which neither the test nor the validation pictures of Karpathy's split occur; our own captions of thousands of other
pictures, written by looking at them; and our own list of things and scenes that both hardly name, so that a rocket can
be called a rocket.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

from recap import __version__
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import cache_dir, fetch
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.encoders.cache import VectorCache
from recap.errors import AssetError
from recap.files import exclusive
from recap.language import WorkedExample, load_language_model
from recap.packs import folder as pack
from recap.packs.base import Pack
from recap.packs.config import PackConfig
from recap.packs.settings import EXAMPLE_CAPTIONS, EXAMPLES, Settings

CAPTIONS = 85_000
"""Default number of captions in the datastore."""

LANGUAGE_MODEL = "writer"
SOURCE = "coco-train2014"
DESCRIBED = "described"
CONCEPTS = "concepts"
_DATA = Path(__file__).parent.parent / "data"
_SENTENCES, _DESCRIBED = _DATA / "concepts" / "en.txt", _DATA / "described" / "en.jsonl"
_ASSET = "coco-captions-train"
_SEED = 2024
_WORDS = range(2, 26)
_CHOICE = "most typical, in small letters"
"""Changes whenever ``choose_captions`` chooses or writes others."""


def own_name(name: str) -> str:
    """Return the one name under which a built-in pack is kept."""
    return name if name == pack.FAST else pack.BUILTIN


def builtin_pack(name: str = pack.BUILTIN, *, captions: int | None = None, progress: bool = False) -> Path:
    """Return the folder of a built-in pack, made first if it is not there.

    ``name`` is one of ``pack.BUILTINS``, and that of its encoder. ``captions`` is how many to retrieve from, 0 for all;
    None takes what is there, or ``CAPTIONS``. A killed run goes on where it was.
    """
    name = own_name(name)
    home = cache_dir() / "packs" / f"{name}-{_version(name)}"
    if captions is None and (home / pack.CONFIG).exists():
        return home
    wanted = CAPTIONS if captions is None else captions
    home.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(home.with_suffix(".lock")):
        if not _is_there(home, wanted):
            _make(name, home, wanted, progress)
    return home


def choose_captions(records: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return ``count`` (image id, caption) records (0: all) of 2 to 25 words, no caption twice, always the same.

    Every picture gives its most typical caption before any gives a second one: what several people say of a picture is
    more often true of others like it than what one of them noticed. What is all in capitals is put into small letters.
    """
    unique: dict[str, tuple[str, str]] = {}
    for image_id, caption in records:
        text = " ".join(caption.split())
        text = text.capitalize() if text.isupper() else text
        if len(text.split()) in _WORDS:
            unique.setdefault(text.casefold().rstrip(" ."), (image_id, text))
    known = list(unique.values())
    if not count or count >= len(known):
        return known
    chosen = islice(_most_typical_first(list(unique), [image for image, _ in known]), count)
    return [known[index] for index in sorted(chosen)]


def _most_typical_first(captions: Sequence[str], images: Sequence[str]) -> Iterator[int]:
    """Yield the places of captions: the most typical of each picture, then the second of each, pictures shuffled."""
    groups: dict[str, list[int]] = {}
    for place, image in enumerate(images):
        groups.setdefault(image, []).append(place)
    ranked = [_by_typicality(group, [set(captions[place].split()) for place in group]) for group in groups.values()]
    random.Random(_SEED).shuffle(ranked)
    for turn in zip_longest(*ranked):
        yield from (place for place in turn if place is not None)


def _by_typicality(places: Sequence[int], said: Sequence[set[str]]) -> list[int]:
    """Return the places of one picture's captions, those that share most words with the others first."""
    shared = [sum(len(one & other) / math.sqrt(len(one) * len(other)) for other in said) for one in said]
    return [place for _, place in sorted(zip(shared, places, strict=True), key=lambda pair: (-pair[0], pair[1]))]


def packaged_file(file: str, name: str = pack.BUILTIN) -> Path:
    """Return the path of a data file of a built-in pack inside the package."""
    path = _DATA / own_name(name) / file
    if not path.is_file():
        raise AssetError(f"this installation of recap has no built-in pack: {path} is missing; install it again")
    return path


def _version(name: str) -> str:
    """Return a short name for all that makes a pack, so that one made by an older recap is not taken for it."""
    ours = (packaged_file(file, name) for file in (pack.STATISTICS, pack.ALIGNMENT))
    words = f"{__version__} {LANGUAGE_MODEL} {Settings()} {_CHOICE}"
    contents = (path.read_bytes() for path in (_SENTENCES, _DESCRIBED, *ours))
    return hashlib.sha256(b"".join([words.encode(), *contents])).hexdigest()[:12]


def _is_there(home: Path, captions: int) -> bool:
    if not (home / pack.CONFIG).exists():
        return False
    return PackConfig.read(home).captions == captions


def _make(name: str, home: Path, captions: int, progress: bool) -> None:
    unfinished = home.with_suffix(".sqlite")
    encoder = load_encoder(name, cache=VectorCache(unfinished))
    statistics = PairStatistics.load(packaged_file(pack.STATISTICS, name))
    alignment = LinearAlignment.load(packaged_file(pack.ALIGNMENT, name))
    datastore = _same_captions(encoder, captions) or builtin_datastore(encoder, captions, progress=progress)
    settings = Settings(
        method=alignment.method, examples=_examples(datastore.centred_by(alignment.text_mean_), alignment)
    )
    model = load_language_model(LANGUAGE_MODEL)
    parts = (encoder, statistics, datastore)
    made = Pack(*parts, language_model=model, settings=settings, alignment=alignment)
    pack.save(made, home, captions=captions)
    for leftover in home.parent.glob(f"{unfinished.name}*"):
        leftover.unlink(missing_ok=True)


def _same_captions(encoder: Encoder, captions: int) -> Datastore | None:
    """Return the captions of another built-in pack if one was made with the same text encoder and number of them."""
    for other in (pack.BUILTIN, pack.FAST):
        home = cache_dir() / "packs" / f"{other}-{_version(other)}"
        if _is_there(home, captions):
            stored = Datastore.load(home / pack.DATASTORE)
            if stored.fingerprint == encoder.text.fingerprint:
                return stored
    return None


def concept_sentences() -> list[str]:
    """Return our own sentences about things and scenes."""
    return [line for line in _SENTENCES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def described_captions() -> dict[str, list[str]]:
    """Return our own captions of pictures that are not of COCO, by the names of these."""
    lines = map(json.loads, _DESCRIBED.read_text(encoding="utf-8").splitlines())
    return {line["picture"]: line["captions"] for line in lines}


def coco_captions(count: int = CAPTIONS) -> list[tuple[str, str]]:
    """Return those (image id, caption) records of COCO train2014 that ``choose_captions`` takes."""
    content = json.loads(fetch(_ASSET).read_text(encoding="utf-8"))
    return choose_captions([(str(item["image_id"]), item["caption"]) for item in content["annotations"]], count)


def builtin_datastore(encoder: Encoder, captions: int = CAPTIONS, *, progress: bool = False) -> Datastore:
    """Return a datastore of ``captions`` captions of COCO train2014, 0 for all of them, and of our own sentences."""
    text = encoder.text
    datastore = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint, dtype="float16")
    described = {text: picture for picture, texts in described_captions().items() for text in texts}
    for source, records in (
        (SOURCE, coco_captions(captions)),
        (DESCRIBED, [(id_, text) for text, id_ in described.items()]),
    ):
        texts = [text for _, text in records]
        vectors = encoder.encode_texts(texts, progress=progress)
        datastore.add(texts, vectors, source=source, image_ids=[image for image, _ in records])
    concepts = concept_sentences()
    datastore.add(concepts, encoder.encode_texts(concepts), source=CONCEPTS)
    return datastore


def _examples(datastore: Datastore, alignment: LinearAlignment) -> tuple[WorkedExample, ...]:
    """Return worked examples from captions alone: what lies near one caption of a picture, answered by another."""
    rows = list(datastore)
    first: dict[str, int] = {}
    examples: list[WorkedExample] = []
    for place, row in enumerate(rows):
        other = first.setdefault(row.image_id, place)
        if other == place or not row.image_id:
            continue
        query = alignment.transform_texts(datastore.raw_vectors([rows[other].id]))
        found = datastore.search(query, EXAMPLE_CAPTIONS, exclude_image_ids=[row.image_id])
        captions = tuple(item.text for item in datastore.evidence(found.ids[0], found.similarities[0]))
        examples.append(WorkedExample(captions, row.text))
        if len(examples) == EXAMPLES:
            break
    return tuple(examples)
